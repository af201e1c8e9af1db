//! The life of a worker task that is a stage of another worker's replica.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::{LocalStep, TaskId};
use pushpull_messages::message::{Message, Register, Registered, ServeStage};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, ServerConfig, Transport, serve};
use tokio_util::sync::CancellationToken;

use super::service::{StageService, StageShared};
use crate::chief_link::ChiefLink;
use crate::config::WorkerConfig;
use crate::error::WorkerError;
use crate::telemetry::Life;

/// How often a stage without a leader asks the chief whether the job goes on.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long a stage serves its leader after an interrupt. If the other tasks were interrupted too, this gives
/// the chief time to stop all of them at the same step, and to save it.
const GRACE: Duration = Duration::from_secs(10);
/// The number of unanswered requests of the leader. Its requests for values wait until the values are
/// computed, and must not keep other requests from being read.
const REQUESTS_MAX: u32 = 1 << 16;

/// A worker task that is a stage of another worker's replica.
pub(crate) struct StageTask<'a> {
    pub config: &'a WorkerConfig,
    pub identity: &'a Identity,
    pub transport: &'a Arc<dyn Transport>,
    pub pool: &'a BufferPool,
    pub interrupt: &'a CancellationToken,
    pub life: &'a Life,
}

/// The chief's reply to the registration of a worker.
pub(crate) enum Registration {
    /// The worker leads a replica.
    Leads(Box<Registered>),
    /// The worker is a stage of another worker's replica.
    Serves(ServeStage),
}

impl TryFrom<Message> for Registration {
    type Error = Message;

    fn try_from(message: Message) -> Result<Self, Message> {
        match message {
            Message::Registered(registered) => Ok(Self::Leads(registered)),
            Message::ServeStage(serve) => Ok(Self::Serves(*serve)),
            other => Err(other),
        }
    }
}

impl StageTask<'_> {
    /// Serves the leader until it has left the job in good order. A leader that is lost may come back as
    /// another incarnation.
    ///
    /// # Errors
    /// If the task cannot listen; if the chief is lost, the job has ended or the chief gives the task another
    /// role, while there is no leader; if the task is interrupted.
    pub(crate) async fn run(&self, chief: &ChiefLink, serve_stage: ServeStage) -> Result<(), WorkerError> {
        let Self { config, identity, transport, pool, life, .. } = *self;
        let leader = TaskId::worker(serve_stage.leader);
        if !config.own_threads {
            return Err(WorkerError::StageThreads);
        }
        let own = identity.cluster.address(identity.task).ok_or(WorkerError::NotInCluster(identity.task))?;
        let address = config.bind.clone().unwrap_or_else(|| own.to_string());
        let listener = transport.listen(&address).await?;
        tracing::info!(%leader, %address, "serving as a stage of a replica");
        life.doing("computing a stage of another worker's replica");
        life.ready();
        let shared = Arc::new(StageShared {
            config: config.clone(),
            identity: identity.clone(),
            transport: Arc::clone(transport),
            pool: pool.clone(),
            leader,
            replicas: serve_stage.replicas,
            leading: parking_lot::Mutex::default(),
            closed: CancellationToken::new(),
        });
        let service = Arc::new(StageService { shared: Arc::clone(&shared) });
        let server_config = ServerConfig { requests_max: REQUESTS_MAX, ..ServerConfig::default() };
        let server = serve(listener, identity.clone(), service, server_config);
        let result = self.serve(&shared, chief, serve_stage).await;
        shared.end_session(|_| true, "this task ends");
        server.stop().await;
        result
    }

    async fn serve(
        &self,
        shared: &StageShared,
        chief: &ChiefLink,
        serve_stage: ServeStage,
    ) -> Result<(), WorkerError> {
        let interrupted = async {
            self.interrupt.cancelled().await;
            let has_leader = shared.leading.lock().has_session();
            if has_leader {
                tokio::time::sleep(GRACE).await;
            }
        };
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => Ok(()),
            () = interrupted => Err(WorkerError::Interrupted { local_step: LocalStep(0) }),
            error = ask(shared, chief, serve_stage) => Err(error),
        }
    }
}

/// Asks the chief again and again whether the job goes on, while there is no leader. Returns the reason why
/// this task is no longer a stage of the replica.
async fn ask(shared: &StageShared, chief: &ChiefLink, serve_stage: ServeStage) -> WorkerError {
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        if shared.leading.lock().has_session() {
            continue;
        }
        match chief.call::<Registration>(Register::default()).await {
            Ok(Registration::Serves(same)) if same == serve_stage => {}
            Ok(_) => return WorkerError::OtherRole,
            // A leader that has come meanwhile knows better.
            Err(_) if shared.leading.lock().has_session() => {}
            Err(error) => return error.into(),
        }
    }
}
