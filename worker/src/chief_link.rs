//! The worker's link to the chief, which outlives one run of the chief. If the chief is started again, the
//! link connects to the new run and introduces the worker to it. Wanted properties: (A) every call ends with
//! a reply of some run of the chief, or with the reason why no reply will come; (B) after the worker has
//! begun to train, it introduces itself to each new run of the chief before it sends other requests.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{Message, RefusalCode, Rejoin, Rejoined};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{
    CallError, DialError, Identity, Patience, ReconnectingClient, RetryConfig, Transport,
};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::Instrument;

use crate::error::{WorkerError, is_rolled_back};

/// The pause before the worker introduces itself again to a chief that does not lead the job yet.
const PAUSE: Duration = Duration::from_millis(200);

/// How the worker dials the chief.
pub(crate) struct DialChief {
    pub transport: Arc<dyn Transport>,
    pub identity: Identity,
    /// How long the worker waits for the first connection.
    pub start_timeout: Duration,
    /// How long the worker waits for another run of the chief after it has lost one.
    pub lost_after: Duration,
    pub retry: RetryConfig,
}

impl DialChief {
    async fn dial(&self, patience: Patience) -> Result<ReconnectingClient, WorkerError> {
        let host = self.identity.cluster.chief_host();
        let address = self.identity.cluster.address(host).ok_or(WorkerError::NotInCluster(host))?;
        let (transport, identity) = (Arc::clone(&self.transport), &self.identity);
        let (address, chief, retry) = (address.as_str(), TaskId::CHIEF, self.retry);
        Ok(ReconnectingClient::connect(transport, address, identity, chief, patience, retry).await?)
    }
}

/// The state of the link.
#[derive(Clone, Debug)]
enum State {
    Connected(Arc<ReconnectingClient>),
    /// The last run of the chief is lost, and another one is being dialled.
    Away,
    /// No run of the chief came in time, or one has refused the worker.
    Lost(CallError),
}

/// The link to the chief. It disconnects when it is dropped.
pub(crate) struct ChiefLink {
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// A function that is called with each connection.
type OnConnect = Box<dyn Fn(&Arc<ReconnectingClient>) + Send + Sync>;

struct Shared {
    dial: DialChief,
    state: watch::Sender<State>,
    /// How the worker introduces itself to a new run of the chief; `None` before the worker trains. Locked
    /// during the introduction, and until the other users of the link get the new connection.
    rejoin: tokio::sync::Mutex<Option<Rejoin>>,
    /// Called with each connection to a run of the chief.
    on_connect: OnConnect,
    /// The reason why the last run of the chief is lost.
    reason: Mutex<String>,
}

impl ChiefLink {
    /// Connects to the chief. Calls `on_connect` for this connection, and again for each later run of the
    /// chief.
    ///
    /// # Errors
    /// If the chief cannot be reached in time.
    pub(crate) async fn connect(
        dial: DialChief,
        on_connect: impl Fn(&Arc<ReconnectingClient>) + Send + Sync + 'static,
    ) -> Result<Self, WorkerError> {
        let client = Arc::new(dial.dial(Patience::of(dial.start_timeout)).await?);
        on_connect(&client);
        let (state, _) = watch::channel(State::Connected(Arc::clone(&client)));
        let (rejoin, reason) = (tokio::sync::Mutex::new(None), Mutex::default());
        let shared = Arc::new(Shared { dial, state, rejoin, on_connect: Box::new(on_connect), reason });
        let task = tokio::spawn(Arc::clone(&shared).keep(client).in_current_span()).abort_handle();
        Ok(Self { shared, task })
    }

    /// Waits for a connection to a run of the chief.
    ///
    /// # Errors
    /// If the chief is lost for good.
    pub(crate) async fn client(&self) -> Result<Arc<ReconnectingClient>, CallError> {
        self.shared.client().await
    }

    /// Returns true if another run of the chief has replaced the lost run that `client` was connected to.
    /// Waits for the other run if necessary. Returns false if `client` is not lost, or if no other run comes.
    pub(crate) async fn is_renewed(&self, client: &Arc<ReconnectingClient>) -> bool {
        client.is_lost() && self.shared.after(client).await
    }

    /// Makes the worker known to each later run of the chief. `client` is the connection to the run that has
    /// let the worker begin.
    ///
    /// # Errors
    /// If a later run of the chief is connected already, and the introduction to that run fails.
    pub(crate) async fn begin(
        &self,
        client: &Arc<ReconnectingClient>,
        rejoin: Rejoin,
    ) -> Result<(), CallError> {
        let mut known = self.shared.rejoin.lock().await;
        *known = Some(rejoin);
        let current = self.shared.state.borrow().clone();
        match current {
            State::Connected(other) if !Arc::ptr_eq(&other, client) => {
                self.shared.introduce(&other, rejoin, self.shared.deadline()).await
            }
            _ => Ok(()),
        }
    }

    /// Sends a request and waits for the reply. If the run of the chief that received the request is lost,
    /// sends the request to the next run.
    ///
    /// # Errors
    /// If the chief refuses the request or is lost for good, or if the reply is not an `R`.
    pub(crate) async fn call<R>(&self, message: impl Into<Message>) -> Result<R, CallError>
    where
        R: TryFrom<Message, Error = Message>,
    {
        let message = message.into();
        loop {
            let client = self.shared.client().await?;
            match client.call(message.clone(), Payload::EMPTY).await {
                Err(CallError::Lost { .. }) if client.is_lost() => {
                    self.shared.after(&client).await;
                }
                result => return result.map(|(reply, _)| reply),
            }
        }
    }
}

impl Drop for ChiefLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    /// Waits for a connection.
    async fn client(&self) -> Result<Arc<ReconnectingClient>, CallError> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Away)).await;
        match settled.as_deref() {
            Ok(State::Connected(client)) => Ok(Arc::clone(client)),
            Ok(State::Lost(error)) => Err(error.clone()),
            _ => Err(self.lost("the link to the chief has ended".to_owned())),
        }
    }

    /// Waits until another connection replaces `client`. Returns false if the chief is lost for good.
    async fn after(&self, client: &Arc<ReconnectingClient>) -> bool {
        let mut state = self.state.subscribe();
        let replaced = state.wait_for(|state| match state {
            State::Connected(other) => !Arc::ptr_eq(other, client),
            State::Away => false,
            State::Lost(_) => true,
        });
        matches!(replaced.await.as_deref(), Ok(State::Connected(_)))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.dial.lost_after
    }

    fn lost(&self, reason: String) -> CallError {
        CallError::Lost { peer: TaskId::CHIEF, reason }
    }

    /// Connects to the next run of the chief whenever a run is lost.
    async fn keep(self: Arc<Self>, mut client: Arc<ReconnectingClient>) {
        loop {
            *self.reason.lock() = client.wait_lost().await;
            self.state.send_replace(State::Away);
            drop(client);
            client = match self.renew(self.deadline()).await {
                Ok(next) => next,
                Err(error) => {
                    // After a rollback, the job goes on, and the worker registers again.
                    if !is_rolled_back(&error) {
                        tracing::warn!(%error, "no chief leads the job any more");
                    }
                    self.state.send_replace(State::Lost(error));
                    return;
                }
            };
        }
    }

    /// Dials the chief until a run of the chief has accepted the worker. Then gives the connection to the
    /// users of the link.
    async fn renew(&self, deadline: Instant) -> Result<Arc<ReconnectingClient>, CallError> {
        let seconds = self.dial.lost_after.as_secs_f32();
        loop {
            let patience = Patience { deadline, ..Patience::of(self.dial.lost_after) };
            let client = match self.dial.dial(patience).await {
                Ok(client) => Arc::new(client),
                Err(WorkerError::Dial(DialError::Refused { to, refusal }))
                    if refusal.code == RefusalCode::RolledBack =>
                {
                    return Err(CallError::Refused { peer: to, refusal });
                }
                Err(error) => {
                    let before = self.reason.lock().clone();
                    return Err(self.lost(format!(
                        "{before}; waited {seconds} s for the chief to be started again: {error}"
                    )));
                }
            };
            (self.on_connect)(&client);
            let rejoin = self.rejoin.lock().await;
            let introduced = match *rejoin {
                Some(rejoin) => self.introduce(&client, rejoin, deadline).await,
                None => Ok(()),
            };
            match introduced {
                Ok(()) => {
                    self.state.send_replace(State::Connected(Arc::clone(&client)));
                    return Ok(client);
                }
                Err(CallError::Lost { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Introduces the worker to a run of the chief, and waits until this run leads the job.
    async fn introduce(
        &self,
        client: &ReconnectingClient,
        rejoin: Rejoin,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let seconds = self.dial.lost_after.as_secs_f32();
        let introduced = async {
            while !client.call::<Rejoined>(rejoin, Payload::EMPTY).await?.0.leads {
                tokio::time::sleep(PAUSE).await;
            }
            tracing::info!("rejoined the job under a chief that was started again");
            Ok(())
        };
        let late = |_| {
            self.lost(format!("the chief was started again, but did not lead the job within {seconds} s"))
        };
        tokio::time::timeout_at(deadline, introduced).await.map_err(late)?
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::id::{GlobalStep, Incarnation, JobName, LocalStep};
    use pushpull_messages::message::{Finish, Finished, TrainingResult};
    use pushpull_transport::{InProcess, Peer, Reply, Server, ServerConfig, Service, serve};

    use super::*;

    /// A run of a simulated chief, which records the kinds of the requests that it receives.
    #[derive(Default)]
    struct Chief {
        rolled_back: bool,
        received: Mutex<Vec<&'static str>>,
    }

    impl Service for Chief {
        fn call(&self, _: &Peer, message: Message, _: Payload, reply: Reply) {
            self.received.lock().push(message.name());
            match message {
                Message::Rejoin(_) if self.rolled_back => reply.refuse(RefusalCode::RolledBack, "to step 0"),
                Message::Rejoin(_) => reply.send(Rejoined { leads: true }, Payload::EMPTY),
                _ => reply.send(Finished { evaluate: false, step: GlobalStep(7) }, Payload::EMPTY),
            }
        }
    }

    fn identity(task: TaskId, incarnation: u64) -> Identity {
        let jobs =
            [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])];
        let (cluster, incarnation) = (ClusterSpec::new(jobs).expect("a cluster"), Incarnation(incarnation));
        Identity { task, incarnation, cluster, graph: None, http: None, nonce: 0 }
    }

    async fn start(transport: &Arc<InProcess>, chief: &Arc<Chief>, incarnation: u64) -> Server {
        let listener = transport.listen("c:1").await.expect("a free address");
        let service: Arc<dyn Service> = chief.clone();
        serve(listener, identity(TaskId::CHIEF, incarnation), service, ServerConfig::default())
    }

    /// Returns a link of a worker that trains. The run of the chief that let it begin is lost, and `next` is
    /// the next one.
    async fn renewed(next: &Arc<Chief>) -> (ChiefLink, Server) {
        let transport = Arc::new(InProcess::new());
        let first = start(&transport, &Arc::default(), 1).await;
        let patience = Duration::from_secs(60);
        let dial = DialChief {
            transport: transport.clone(),
            identity: identity(TaskId::worker(0), 5),
            start_timeout: patience,
            lost_after: patience,
            retry: RetryConfig::default(),
        };
        let link = ChiefLink::connect(dial, |_| {}).await.expect("it runs");
        let rejoin = Rejoin { job: 3, files: None };
        link.begin(&link.client().await.expect("it is connected"), rejoin).await.expect("nothing to do");
        first.stop().await;
        (link, start(&transport, next, 2).await)
    }

    fn finish() -> Finish {
        let result = TrainingResult::Completed;
        Finish { result, local_step: LocalStep(7), loss: 0.5, skipped: 0 }
    }

    /// Checks (B).
    #[tokio::test]
    async fn the_next_run_is_told_of_the_worker_first() {
        let next = Arc::new(Chief::default());
        let (link, _server) = renewed(&next).await;
        link.call::<Finished>(finish()).await.expect("the next run replies");
        assert_eq!(*next.received.lock(), ["Rejoin", "Finish"]);
    }

    /// Checks (A).
    #[tokio::test]
    async fn a_refused_rejoin_answers_every_call() {
        let next = Arc::new(Chief { rolled_back: true, ..Default::default() });
        let (link, _server) = renewed(&next).await;
        for _ in 0..2 {
            let error = link.call::<Finished>(finish()).await.expect_err("the job has rolled back");
            assert!(is_rolled_back(&error), "{error}");
        }
        assert_eq!(*next.received.lock(), ["Rejoin"]);
    }
}
