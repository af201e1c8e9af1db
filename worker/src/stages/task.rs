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
/// The number of unanswered requests of the leader. Its requests for values wait until the values are computed, and must
/// not keep other requests from being read.
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
    /// Serves the leader until it has left the job in good order. A leader that is lost may come back as another
    /// incarnation.
    ///
    /// # Errors
    /// If the task cannot listen; if the chief is lost, or the job has ended, while there is no leader; if the task is
    /// interrupted while there is no leader.
    pub(crate) async fn run(&self, chief: &ChiefLink, serve_stage: ServeStage) -> Result<(), WorkerError> {
        let Self { config, identity, transport, pool, interrupt, life } = *self;
        let ServeStage { leader, replicas } = serve_stage;
        let leader = TaskId::worker(leader);
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
            replicas: replicas.max(1),
            seat: parking_lot::Mutex::default(),
            connections: parking_lot::Mutex::default(),
            closed: CancellationToken::new(),
        });
        let service = Arc::new(StageService { shared: Arc::clone(&shared) });
        let server = serve(
            listener,
            identity.clone(),
            service,
            ServerConfig { requests_max: REQUESTS_MAX, ..ServerConfig::default() },
        );
        let result = loop {
            let has_leader = shared.seat.lock().is_some();
            tokio::select! {
                biased;
                () = shared.closed.cancelled() => break Ok(()),
                () = interrupt.cancelled(), if !has_leader => {
                    break Err(WorkerError::Interrupted { local_step: LocalStep(0) });
                }
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
            if !has_leader && let Err(error) = chief.call::<Registration>(Register::default()).await {
                break Err(error.into());
            }
        };
        shared.drop_seat("this task ends");
        server.stop().await;
        result
    }
}
