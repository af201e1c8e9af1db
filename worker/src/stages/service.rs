//! The service of a stage: opens a session for an incarnation of the leader, and passes the requests of the
//! leader and of the other stages to it. Refuses every other peer.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use pushpull_messages::device::DeviceKind;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::{
    Message, OpenStage, Refusal, RefusalCode, StageClosed, StageComputed, StageDigests, StageOpened,
    StagePulled, StagePushed, StageValueTaken,
};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, Patience, Peer, Reply, Service, Transport, dial};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::error::{StageError, StageErrorKind};
use super::session::{SessionParts, StageSession, stage_error};
use crate::blocking::blocking;
use crate::client::Parameters;
use crate::config::WorkerConfig;
use crate::devices::{Compute, ReplicaError};
use crate::error::WorkerError;

/// The service of a stage.
pub(super) struct StageService {
    pub shared: Arc<StageShared>,
}

/// What all requests to a stage share.
pub(super) struct StageShared {
    pub config: WorkerConfig,
    pub identity: Identity,
    pub transport: Arc<dyn Transport>,
    pub pool: BufferPool,
    /// The task that leads the replica.
    pub leader: TaskId,
    pub replicas: u32,
    pub leading: Mutex<Leading>,
    /// Cancelled when the leader has left the job in good order.
    pub closed: CancellationToken,
}

/// What a stage has for its leader.
#[derive(Default)]
pub(super) struct Leading {
    /// The connections of the leader, each with a token that is cancelled at its end.
    connections: BTreeMap<u64, CancellationToken>,
    /// What is opened for the leader; `None` if there is no leader at the moment.
    session: Option<Arc<StageSession>>,
}

impl Leading {
    /// Returns whether a leader has opened this stage.
    pub const fn has_session(&self) -> bool {
        self.session.is_some()
    }
}

impl StageShared {
    fn is_stage(&self, task: TaskId) -> bool {
        task.job == JobName::Worker && task.index % self.replicas == self.leader.index
    }

    /// Returns the session of the peer's replica. The leader has a session on the connection on which it has
    /// opened it.
    fn session(&self, peer: &Peer) -> Option<Arc<StageSession>> {
        let session = self.leading.lock().session.clone()?;
        (peer.task != self.leader || session.leader.connection == peer.connection).then_some(session)
    }

    fn failed(&self, reason: impl ToString) -> StageError {
        StageError { task: self.identity.task, kind: StageErrorKind::Failed, reason: reason.to_string() }
    }

    fn gone(&self) -> StageError {
        let reason = "the leader has left".to_owned();
        StageError { task: self.identity.task, kind: StageErrorKind::Lost, reason }
    }

    /// Opens a session for an incarnation of the leader. Ends early if its connection ends.
    async fn open(&self, leader: Peer, request: OpenStage) -> Result<(), StageError> {
        let connection = leader.connection;
        let ended = self.leading.lock().connections.get(&connection).cloned().ok_or_else(|| self.gone())?;
        self.end_session(|own| own < connection, "the leader has opened the stage again");
        let opened = ended.run_until_cancelled(self.prepare(leader, request)).await;
        let session = opened.ok_or_else(|| self.gone())??;
        let mut leading = self.leading.lock();
        let newer = |own: &Arc<StageSession>| own.leader.connection > connection;
        if !leading.connections.contains_key(&connection) || leading.session.as_ref().is_some_and(newer) {
            return Err(self.gone());
        }
        leading.session = Some(session);
        Ok(())
    }

    /// Prepares the job for an incarnation of the leader.
    async fn prepare(&self, leader: Peer, request: OpenStage) -> Result<Arc<StageSession>, StageError> {
        let OpenStage { mut job, placement, stage } = request;
        let (own, stages) = (self.identity.task, job.graph.stages());
        if u64::from(stage) * u64::from(self.replicas) + u64::from(self.leader.index) != u64::from(own.index)
        {
            return Err(self.failed(format!("{own} is not stage {stage} of {}", self.leader)));
        }
        let Self { config, identity, transport, pool, .. } = self;
        let failed = |error: WorkerError| stage_error(own, &error);
        let devices: Vec<_> = config.devices.of(own).collect();
        if devices.len() != 1 || devices[0].kind != DeviceKind::Cpu {
            let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
            return Err(failed(ReplicaError::StageDevices(devices.join(", ")).into()));
        }
        let (count, incarnation) = (stages.count(), leader.incarnation);
        tracing::info!(stage, stages = count, leader = %leader.task, %incarnation, "preparing");
        // The shards know the leader alone: this stage's pushes and pulls are the leader's.
        let name = Identity {
            task: leader.task,
            incarnation: leader.incarnation,
            nonce: leader.nonce,
            http: None,
            ..identity.clone()
        };
        let sent_as = job.sent_as();
        job.freeze();
        let (variables, of_stage) = (&job.graph.variables, (&placement, &stages, stage));
        let parameters =
            Parameters::connect_stage(transport, &name, of_stage, variables, pool, config.client());
        let mut parameters = parameters.await.map_err(|error| failed(error.into()))?;
        parameters.compress(&sent_as);
        let others = self.dial_others(stage, count).await?;
        let compute = Compute::new(config.threads, 1).map_err(|error| failed(error.into()))?;
        let (task, before_pass, pool) = (own, config.before_pass.clone(), pool.clone());
        let runtime = Handle::current();
        let parts =
            SessionParts { task, leader, stage, parameters, others, compute, before_pass, pool, runtime };
        let compile = blocking(true, "compiling", move || Ok(StageSession::new(&job, parts)?));
        Ok(Arc::new(compile.await.map_err(failed)?))
    }

    /// Connects to the stages of the replica, other than the leader and this one.
    async fn dial_others(
        &self,
        stage: u32,
        stages: u32,
    ) -> Result<BTreeMap<u32, Arc<Connection>>, StageError> {
        let others = (1..stages).filter(|&other| other != stage).map(|other| async move {
            let task = TaskId::worker(other * self.replicas + self.leader.index);
            let address = self.identity.cluster.address(task);
            let address = address.ok_or_else(|| self.failed(format!("{task} is not in the cluster spec")))?;
            let (address, patience) = (address.to_string(), Patience::of(self.config.start_timeout));
            let connection = dial(&*self.transport, &address, &self.identity, task, patience).await;
            let connection = connection.map_err(|error| StageError::of_dial(task, &error))?;
            Ok::<_, StageError>((other, Arc::new(connection)))
        });
        Ok(try_join_all(others).await?.into_iter().collect())
    }

    /// Ends what is opened for the leader, if it was opened on a connection for which `ends` returns true.
    pub fn end_session(&self, ends: impl Fn(u64) -> bool, reason: &str) {
        let mut leading = self.leading.lock();
        let ended = leading.session.take_if(|session| ends(session.leader.connection));
        drop(leading);
        if let Some(session) = ended {
            tracing::info!(reason, leader = %self.leader, "ended the work for a leader");
            session.abandon(reason);
        }
    }

    async fn answer(self: Arc<Self>, peer: Peer, message: Message, payload: Payload, reply: Reply) {
        let result = match (message, self.session(&peer)) {
            (Message::OpenStage(request), _) => {
                self.open(peer, *request).await.map(|()| Message::from(StageOpened {}))
            }
            (Message::PullStage(request), Some(session)) => {
                session.pull(&request).await.map(|shards| StagePulled { shards }.into())
            }
            (Message::PushStage(request), Some(session)) => {
                session.push(&request).await.map(|shards| StagePushed { shards }.into())
            }
            (Message::ComputeStage(request), Some(session)) => {
                session.compute(*request).await.map(|()| StageComputed {}.into())
            }
            (Message::DigestStage(request), Some(session)) => {
                session.digests(request.values).await.map(|crc32c| StageDigests { crc32c }.into())
            }
            (Message::StageValue(value), Some(session)) => {
                session.receive(value.key, payload).map(|()| StageValueTaken {}.into())
            }
            (message, _) => {
                let reason = format!("got {}, but the leader has not opened the stage", message.name());
                Err(StageError { reason, ..self.gone() })
            }
        };
        match result {
            Ok(message) => reply.send(message, Payload::EMPTY),
            Err(error) => reply.refuse(error.code(), error.told_by(self.identity.task)),
        }
    }
}

/// Returns whether a request may come from the leader alone.
const fn is_leaders(message: &Message) -> bool {
    matches!(
        message,
        Message::OpenStage(_)
            | Message::PullStage(_)
            | Message::PushStage(_)
            | Message::ComputeStage(_)
            | Message::DigestStage(_)
            | Message::FetchStageValue(_)
            | Message::CloseStage(_)
    )
}

impl Service for StageService {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        if !self.shared.is_stage(peer.task) {
            let leader = self.shared.leader;
            let reason = format!("this task is a stage of {leader}'s replica, and {} is not", peer.task);
            return Err(Refusal::new(RefusalCode::Mismatch, reason));
        }
        if peer.task == self.shared.leader {
            self.shared.leading.lock().connections.insert(peer.connection, CancellationToken::new());
        }
        Ok(())
    }

    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        let is_leader = peer.task == self.shared.leader;
        if !(is_leader && is_leaders(&message) || matches!(message, Message::StageValue(_))) {
            let (task, from) = (self.shared.identity.task, peer.task);
            let reason = format!("{task} does not accept {} from {from}", message.name());
            return reply.refuse(RefusalCode::Malformed, reason);
        }
        match (&message, self.shared.session(peer)) {
            (Message::FetchStageValue(fetch), Some(session)) => return session.fetch(fetch.key, reply),
            (Message::CloseStage(_), Some(_)) => {
                reply.send(StageClosed {}, Payload::EMPTY);
                self.shared.closed.cancel();
                return;
            }
            _ => {}
        }
        let answer = Arc::clone(&self.shared).answer(peer.clone(), message, payload, reply);
        drop(tokio::spawn(answer.in_current_span()));
    }

    fn disconnected(&self, peer: &Peer) {
        if let Some(ended) = self.shared.leading.lock().connections.remove(&peer.connection) {
            ended.cancel();
        }
        self.shared.end_session(|own| own == peer.connection, "the leader has left");
    }
}
