//! Answers the requests of clients and of other servers.

use std::sync::Arc;
use std::time::Instant;

use pushpull_messages::message::{
    Aborted, Cancelled, CloseGraph, GraphClosed, Message, PartRan, Ran, Refusal, RefusalCode,
    Run as RunRequest, Transferred,
};
use pushpull_messages::observe;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Peer, Reply, Service};
use tracing::Instrument;

use crate::error::{RunError, SessionError};
use crate::follow::{arrive, follow, register};
use crate::graphs::OpenGraph;
use crate::lead::{Fetched, Requested, lead};
use crate::open::{on_thread, open};
use crate::runs::{Registered, Requester};
use crate::state::State;

/// The service of a server.
pub(crate) struct SessionService {
    pub state: Arc<State>,
}

impl SessionError {
    /// Returns the code of the refusal that tells the error.
    const fn code(&self) -> RefusalCode {
        match self {
            Self::Run(_) => RefusalCode::Failed,
            Self::Draining | Self::Unreachable(_) => RefusalCode::Unavailable,
            Self::TooMany { .. } | Self::TooLarge { .. } | Self::NoMemory { .. } => RefusalCode::Overloaded,
            Self::Malformed(_) => RefusalCode::Malformed,
            _ => RefusalCode::Misfit,
        }
    }
}

/// Answers a request, or refuses it with the error.
fn answer<T: Into<Message>>(reply: Reply, result: Result<(T, Payload), SessionError>) {
    match result {
        Ok((message, payload)) => reply.send(message, payload),
        Err(error) => reply.refuse(error.code(), error),
    }
}

/// Answers a run, and counts it.
fn answer_run(state: &State, began: Instant, reply: Reply, result: Result<(Ran, Payload), SessionError>) {
    state.meter.ended(result.is_ok(), observe::since(began));
    answer(reply, result);
}

/// Encodes the values of the fetches, on a thread for long work if they are large.
async fn encode(state: &State, fetched: Fetched) -> Result<(Ran, Payload), SessionError> {
    let bytes_max = state.config.client_bytes_max;
    match fetched.is_small() {
        true => fetched.answer(bytes_max),
        false => on_thread(state, move || fetched.answer(bytes_max)).await,
    }
}

/// Leads a run, and answers it.
async fn lead_and_answer(
    state: Arc<State>,
    registered: Registered,
    requested: Requested,
    began: Instant,
    reply: Reply,
) {
    let result = match lead(&state, &registered, requested).await {
        Ok(fetched) => encode(&state, fetched).await,
        Err(error) => Err(error),
    };
    // The run has ended before its client learns of it.
    drop(registered);
    answer_run(&state, began, reply, result);
}

impl Service for SessionService {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let cluster = &self.state.identity.cluster;
        if peer.guest.is_none() && cluster.address(peer.task).is_none() {
            let reason = format!("{} is not in the cluster of this server", peer.task);
            return Err(Refusal::new(RefusalCode::Mismatch, reason));
        }
        self.state.graphs.connect(peer.connection);
        Ok(())
    }

    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        let state = Arc::clone(&self.state);
        let from_member = matches!(&message, Message::OpenGraph(open) if open.home.is_some())
            || matches!(&message, Message::CloseGraph(close) if close.home.is_some());
        if from_member && peer.guest.is_some() {
            let name = message.name();
            return reply
                .refuse(RefusalCode::Malformed, format!("{name} with these fields is for servers alone"));
        }
        if let (Message::Reset(_), Some(role)) = (&message, peer.guest)
            && !role.may_change()
        {
            let error = SessionError::NotAllowed("a reset removes variables".to_owned());
            return reply.refuse(error.code(), error);
        }
        let peer = peer.clone();
        let long = match message {
            Message::Run(request) => return self.run(&peer, *request, &payload, reply),
            Message::Cancel(request) => {
                let running = state.runs.cancel(peer.connection, request.number);
                return reply.send(Cancelled { running }, Payload::EMPTY);
            }
            Message::Abort(request) => {
                if request.run.task == peer.task {
                    state.runs.fail(&request.run, RunError::Aborted(request.reason));
                }
                return reply.send(Aborted {}, Payload::EMPTY);
            }
            Message::CloseGraph(request) => {
                close(&state, &peer, &request);
                return reply.send(GraphClosed {}, Payload::EMPTY);
            }
            Message::RunPart(request) => {
                return match register(&state, &peer, &request) {
                    Ok(registered) => {
                        let follow = async move {
                            let result = follow(&state, &peer, &registered, *request).await;
                            if let Err(SessionError::Run(error)) = &result {
                                registered.control.fail(error.clone());
                            } else if let Err(error) = &result {
                                registered.control.fail(RunError::Aborted(error.to_string()));
                            }
                            drop(registered);
                            answer(reply, result.map(|()| (PartRan {}, Payload::EMPTY)));
                        };
                        drop(tokio::spawn(follow.in_current_span()));
                    }
                    Err(error) => reply.refuse(error.code(), error),
                };
            }
            long => long,
        };
        tokio::spawn(async move { answer_long(state, peer, long, payload, reply).await }.in_current_span());
    }

    fn disconnected(&self, peer: &Peer) {
        let reason = match peer.guest.is_some() {
            true => "the client has disconnected".to_owned(),
            false => format!("the connection from {} is lost", peer.task),
        };
        // The graphs first: a run that begins now finds that the connection has ended.
        let graphs = self.state.graphs.remove_all(peer.connection);
        self.state.runs.fail_all(Some(peer.connection), &reason);
        for graph in graphs {
            close_elsewhere(&self.state, &graph);
        }
    }
}

impl SessionService {
    /// Runs a small request at once, and a larger one on a task of its own.
    fn run(&self, peer: &Peer, request: RunRequest, payload: &Payload, reply: Reply) {
        let began = observe::now();
        let requester = Requester { connection: peer.connection, number: Some(request.number) };
        let requested = match Requested::new(&self.state, peer, request, payload.clone()) {
            Ok(requested) => requested,
            Err(error) => return answer_run(&self.state, began, reply, Err(error)),
        };
        match requested.run_small(&self.state) {
            // The values may be large: a text is fetched several times.
            Ok(Ok(fetched)) if !fetched.is_small() => {
                let state = Arc::clone(&self.state);
                let encode = async move {
                    let result = encode(&state, fetched).await;
                    answer_run(&state, began, reply, result);
                };
                tokio::spawn(encode.in_current_span());
            }
            Ok(result) => {
                let bytes_max = self.state.config.client_bytes_max;
                let result = result.and_then(|fetched| fetched.answer(bytes_max));
                answer_run(&self.state, began, reply, result);
            }
            Err(requested) => match self.state.runs.register(requester, self.state.run_key()) {
                Ok(registered) => {
                    let state = Arc::clone(&self.state);
                    let lead = lead_and_answer(state, registered, requested, began, reply);
                    tokio::spawn(lead.in_current_span());
                }
                Err(error) => answer_run(&self.state, began, reply, Err(error)),
            },
        }
    }
}

/// Answers a request that may take long.
async fn answer_long(state: Arc<State>, peer: Peer, message: Message, payload: Payload, reply: Reply) {
    match message {
        Message::OpenGraph(request) => answer(reply, open(&state, &peer, *request, &payload).await),
        Message::Transfer(request) => {
            let arrived = arrive(&state, *request, payload).await;
            answer(reply, arrived.map(|()| (Transferred {}, Payload::EMPTY)));
        }
        Message::Describe(request) => reply.send(state.describe(*request).await, Payload::EMPTY),
        Message::Reset(request) => match state.reset(*request).await {
            Ok(done) => reply.send(done, Payload::EMPTY),
            Err(reason) => reply.refuse(RefusalCode::Unavailable, reason),
        },
        other => {
            let reason =
                format!("got {}, expected a request of a session: this is a pushpull-server", other.name());
            reply.send(Refusal::new(RefusalCode::Malformed, reason), Payload::EMPTY);
        }
    }
}

fn close(state: &Arc<State>, peer: &Peer, request: &CloseGraph) {
    if let Some(graph) = state.graphs.remove(peer.connection, request.graph) {
        close_elsewhere(state, &graph);
    }
}

/// Closes a graph of a client on the tasks on which this task has opened it, without waiting for them.
fn close_elsewhere(state: &Arc<State>, graph: &Arc<OpenGraph>) {
    if graph.home.task != state.task() {
        return;
    }
    let (state, graph) = (Arc::clone(state), Arc::clone(graph));
    let close = async move {
        let opened = graph.opened.lock().await.take().unwrap_or_default();
        for index in opened.into_keys() {
            let Some(peer) = state.peers.open(graph.devices.task(index)).await else { continue };
            let request = CloseGraph { graph: graph.home.graph, home: Some(graph.home.clone()) };
            let _ = peer.connection.call::<GraphClosed>(request, Payload::EMPTY).await;
        }
    };
    tokio::spawn(close.in_current_span());
}
