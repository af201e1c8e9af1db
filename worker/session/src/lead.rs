//! Leads a run: the task that the client has asked has the other tasks run their parts, runs its own, and
//! returns the fetches. If a part fails anywhere, all parts end, and the client gets the first error.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{
    Abort, Aborted, PartRan, Ran, RefusalCode, Run as Request, RunPart, Transfer, Transferred,
};
use pushpull_messages::tensor::{Tensor, TensorSpec};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{CallError, Peer};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tracing::Instrument;

use crate::error::{RunError, SessionError};
use crate::graphs::OpenGraph;
use crate::open::{on_thread, open_there};
use crate::part::run_here;
use crate::parts::run_parts;
use crate::payload::{payload_of, tensors_of};
use crate::plan::{Plan, Signature};
use crate::run::{Feeds, Held, Outgoing, Run};
use crate::runs::Registered;
use crate::state::State;

/// A run that a client has requested, with its graph, and its plan if it is known.
pub(crate) struct Requested {
    pub graph: Arc<OpenGraph>,
    pub signature: Signature,
    pub known: Option<Arc<Plan>>,
    /// The values of the feeds, which are not decoded yet.
    payload: Payload,
}

/// The size up to which values are decoded and encoded on the task of a connection, in bytes.
pub(crate) const DECODED_AT_ONCE_MAX: u64 = 64 << 10;

impl Requested {
    /// Finds the graph of a client's request.
    ///
    /// # Errors
    /// If the graph is not open.
    pub fn new(state: &State, peer: &Peer, request: Request, payload: Payload) -> Result<Self, SessionError> {
        let graph = state.graphs.get(peer.connection, request.graph)?;
        let signature =
            Signature { feeds: request.feeds, fetches: request.fetches, targets: request.targets };
        Ok(Self { known: graph.known_plan(&signature), graph, signature, payload })
    }

    /// Runs the request at once, on the current thread, if it is small and its plan is known.
    pub fn run_small(self, state: &State) -> Result<Result<Fetched, SessionError>, Self> {
        let small = self.payload.bytes() as u64 <= DECODED_AT_ONCE_MAX;
        let Some(plan) = self.known.clone().filter(|plan| small && plan.is_small) else {
            return Err(self);
        };
        if state.runs.is_draining() {
            return Ok(Err(SessionError::Draining));
        }
        Ok(feeds(&self.signature, &self.payload).and_then(|feeds| {
            let control = (state.run_key(), Arc::default());
            let run = Run::here(state.site(), control, self.graph, plan, feeds);
            // A panic here would end the connection.
            let values = catch_unwind(AssertUnwindSafe(|| run_here(&run)));
            let values = values.unwrap_or_else(|_| Err(run.panicked()))?;
            Ok(Fetched::new(&run.plan, values))
        }))
    }
}

/// Decodes the values of feeds.
fn feeds(signature: &Signature, payload: &Payload) -> Result<Feeds, SessionError> {
    let values = tensors_of(signature.feeds.iter().map(|fed| &fed.tensor), payload)?;
    Ok(signature.feeds.iter().map(|fed| fed.node).zip(values).collect())
}

/// The values of the fetches.
pub(crate) struct Fetched {
    pub specs: Vec<TensorSpec>,
    pub values: Vec<Arc<Tensor>>,
}

impl Fetched {
    fn new(plan: &Plan, values: Vec<Arc<Tensor>>) -> Self {
        Self { specs: plan.fetched.clone(), values }
    }

    /// Returns true if encoding the values takes no time worth mentioning.
    pub fn is_small(&self) -> bool {
        self.bytes() <= DECODED_AT_ONCE_MAX
    }

    fn bytes(&self) -> u64 {
        self.values.iter().map(|value| value.bytes_len() as u64).sum()
    }

    /// Encodes the values.
    ///
    /// # Errors
    /// If they take more than `bytes_max` bytes: the plan does not know the lengths of texts.
    pub fn answer(self, bytes_max: u64) -> Result<(Ran, Payload), SessionError> {
        let got = self.bytes();
        if got > bytes_max {
            let (what, remedy) = ("the fetches".to_owned(), "raise --client-memory-limit");
            return Err(SessionError::TooLarge { what, got, max: bytes_max, remedy });
        }
        let payload = payload_of(self.values.iter().map(|value| &**value));
        Ok((Ran { fetches: self.specs }, payload))
    }
}

/// Returns the plan of a run. It is made on a thread for long work if it is not known.
pub(crate) async fn plan(
    state: &State,
    graph: &Arc<OpenGraph>,
    signature: &Signature,
) -> Result<Arc<Plan>, SessionError> {
    if let Some(known) = graph.known_plan(signature) {
        return Ok(known);
    }
    let _turn = graph.planning.lock().await;
    if let Some(known) = graph.known_plan(signature) {
        return Ok(known);
    }
    let (planned, own, to_plan) = (Arc::clone(graph), state.index, signature.clone());
    let plan = Arc::new(on_thread(state, move || planned.plan(&to_plan, own)).await?);
    if let Some(memory) = state.take_spare(graph.client, plan.kept_bytes) {
        graph.keep(signature.clone(), &plan, memory);
    }
    Ok(plan)
}

/// Returns what a run holds on this task: memory for its values, and the threads of its parts.
///
/// # Errors
/// If there is not enough of one of them.
pub(crate) fn hold(state: &State, graph: &OpenGraph, plan: &Plan) -> Result<Held, SessionError> {
    let memory = state.take(graph.client, "the values of the run", plan.bytes)?;
    Ok(Held { _memory: memory, _threads: threads(state, plan)? })
}

/// Returns the permits for the threads of a run's parts on this task.
fn threads(state: &State, plan: &Plan) -> Result<OwnedSemaphorePermit, SessionError> {
    let parts = 2 * plan.parts_of(state.index).count();
    let max = state.config.threads_max as usize;
    Arc::clone(&state.threads).try_acquire_many_owned(parts as u32).map_err(|_| {
        let remedy = "wait until some runs have ended";
        SessionError::TooMany { what: "parts of runs on this task", max, remedy }
    })
}

/// Leads a run to its end.
///
/// # Errors
/// If the run cannot begin, or if a part of it fails.
pub(crate) async fn lead(
    state: &Arc<State>,
    registered: &Registered,
    requested: Requested,
) -> Result<Fetched, SessionError> {
    let Requested { graph, signature, payload, .. } = requested;
    let control = &registered.control;
    let plan = control.unless_failed(plan(state, &graph, &signature)).await??;
    let others = plan.others(state.index);
    let opened = try_join_all(others.iter().map(|&index| open_there(state, &graph, index)));
    control.unless_failed(opened).await??;
    let held = hold(state, &graph, &plan)?;
    let feeds = match payload.bytes() as u64 {
        0..=DECODED_AT_ONCE_MAX => feeds(&signature, &payload)?,
        _ => {
            let (signature, payload) = (signature.clone(), payload.clone());
            control.unless_failed(on_thread(state, move || feeds(&signature, &payload))).await??
        }
    };
    let identity = (registered.key, Arc::clone(control));
    let (run, outgoing) =
        Run::new(state.site(), identity, Arc::clone(&graph), Arc::clone(&plan), feeds, held);
    let run = registered.begin(run);
    let ask = |&index: &usize| ask_to_run(state, &run, &graph, index, &signature);
    let asked = async {
        let mut asked: FuturesUnordered<_> = others.iter().map(ask).collect();
        while let Some(result) = asked.next().await {
            if let Err(error) = result {
                control.fail(error);
            }
        }
    };
    let parts = async {
        let result = tokio::join!(run_parts(&run), asked).0;
        run.close();
        result
    };
    let all = async { tokio::join!(parts, send_all(state, &run, outgoing)).0 };
    // If the run fails, its threads end by themselves. The client need not wait for them.
    let ended = control.unless_failed(all).await.and_then(|result| result);
    ended.map(|values| Fetched::new(&plan, values)).map_err(|error| {
        abort_others(state, &run, others, &error);
        error.into()
    })
}

/// Has another task run its part.
async fn ask_to_run(
    state: &State,
    run: &Run,
    graph: &OpenGraph,
    index: usize,
    signature: &Signature,
) -> Result<(), RunError> {
    let task = graph.devices.task(index);
    let peer = state.peers.connection(task).await?;
    let Signature { feeds, fetches, targets } = signature.clone();
    let request = RunPart { run: run.key, graph: graph.home.graph, feeds, fetches, targets };
    match peer.connection.call::<PartRan>(request, Payload::EMPTY).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failed_there(task, error)),
    }
}

/// Returns the error for a request that another task has not carried out.
fn failed_there(task: TaskId, error: CallError) -> RunError {
    match error {
        // The reason names the node and the task that have failed.
        CallError::Refused { refusal, .. } if refusal.code == RefusalCode::Failed => {
            RunError::Aborted(refusal.reason)
        }
        CallError::Refused { refusal, .. } => RunError::Task { task, reason: refusal.reason },
        error => RunError::Task { task, reason: error.to_string() },
    }
}

/// Sends the values that other tasks need, until the run has ended and all of them have arrived.
pub(crate) async fn send_all(state: &State, run: &Run, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
    let mut sent = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = run.control.wait_failed() => return,
            Some(result) = sent.next() => {
                if let Err(error) = result {
                    run.control.fail(error);
                }
            }
            next = outgoing.recv() => match next {
                Some(value) => sent.push(send(state, run, value)),
                None => break,
            },
        }
    }
    let rest = async {
        while let Some(result) = sent.next().await {
            if let Err(error) = result {
                return run.control.fail(error);
            }
        }
    };
    // If the run fails, it needs the values no more.
    let _ = run.control.unless_failed(rest).await;
}

async fn send(state: &State, run: &Run, outgoing: Outgoing) -> Result<(), RunError> {
    let Outgoing { part, key, tensor, payload } = outgoing;
    let task = run.graph.devices.task(run.plan.parts[part as usize].task);
    let peer = state.peers.connection(task).await?;
    let request = Transfer { run: run.key, part, value: key, tensor };
    match peer.connection.call::<Transferred>(request, payload).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failed_there(task, error)),
    }
}

/// Tells the other tasks that the run has failed, without waiting for them. A task that cannot be told fails
/// by itself, because it loses the connection.
fn abort_others(state: &Arc<State>, run: &Run, others: BTreeSet<usize>, error: &RunError) {
    let (state, request) = (Arc::clone(state), Abort::new(run.key, error));
    let tasks: Vec<TaskId> = others.into_iter().map(|index| run.graph.devices.task(index)).collect();
    let abort_all = async move {
        let abort = async |task: TaskId| {
            let Some(peer) = state.peers.open(task).await else { return };
            let _ = peer.connection.call::<Aborted>(request.clone(), Payload::EMPTY).await;
        };
        join_all(tasks.into_iter().map(abort)).await;
    };
    tokio::spawn(abort_all.in_current_span());
}
