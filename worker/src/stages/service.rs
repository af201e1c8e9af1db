//! The service of a stage: opens a seat for an incarnation of the leader, and passes the requests of the leader and of
//! the other stages to it. Refuses every other peer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::{
    Message, OpenStage, Refusal, RefusalCode, StageClosed, StageComputed, StageDigests, StageOpened,
    StagePulled, StagePushed, StageValueTaken,
};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, Patience, Peer, Reply, Service, Transport, dial};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::error::{StageError, StageErrorKind};
use super::seat::{Seat, SeatParts, stage_error};
use crate::client::Parameters;
use crate::config::WorkerConfig;
use crate::devices::Compute;
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
    /// What is opened for the leader; `None` if there is no leader at the moment.
    pub seat: Mutex<Option<Arc<Seat>>>,
    /// The connections of the leader.
    pub connections: Mutex<BTreeSet<u64>>,
    /// Cancelled when the leader has left the job in good order.
    pub closed: CancellationToken,
}

impl StageShared {
    fn is_stage(&self, task: TaskId) -> bool {
        task.job == JobName::Worker && task.index % self.replicas == self.leader.index
    }

    /// Returns the seat of the peer's replica. The leader has a seat on the connection on which it has opened it.
    fn seat(&self, peer: &Peer) -> Option<Arc<Seat>> {
        let seat = self.seat.lock().clone()?;
        (peer.task != self.leader || seat.leader.connection == peer.connection).then_some(seat)
    }

    fn error(&self, kind: StageErrorKind, reason: impl ToString) -> StageError {
        StageError { task: self.identity.task, kind, reason: reason.to_string() }
    }

    /// Prepares the job for an incarnation of the leader.
    async fn open(&self, leader: Peer, request: OpenStage) -> Result<(), StageError> {
        let OpenStage { mut job, placement, stage } = request;
        let (own, stages) = (self.identity.task, job.graph.stages());
        if stage * self.replicas + self.leader.index != own.index {
            return Err(
                self.error(StageErrorKind::Failed, format!("{own} is not stage {stage} of {}", self.leader))
            );
        }
        self.drop_seat("the leader has opened the stage again");
        tracing::info!(stage, stages = stages.count(), leader = %leader.task, incarnation = %leader.incarnation, "preparing");
        let Self { config, identity, transport, pool, .. } = self;
        // The shards know the leader alone: this stage's pushes and pulls are the leader's.
        let name = Identity {
            task: leader.task,
            incarnation: leader.incarnation,
            nonce: leader.nonce,
            http: None,
            ..identity.clone()
        };
        let failed = |error: WorkerError| stage_error(own, &error);
        let sent_as = job.sent_as();
        job.freeze();
        let variables = &job.graph.variables;
        let parameters = Parameters::connect_stage(
            transport,
            &name,
            (&placement, &stages, stage),
            variables,
            pool,
            config.client(),
        );
        let mut parameters = parameters.await.map_err(|error| failed(error.into()))?;
        parameters.compress(&sent_as);
        let others = self.dial_others(stage, stages.count()).await?;
        let compute = Compute::new(config.threads, 1).map_err(|error| failed(error.into()))?;
        let (task, before_pass, pool) = (own, config.before_pass.clone(), pool.clone());
        let parts = SeatParts { task, leader, stage, parameters, others, compute, before_pass, pool };
        let connection = parts.leader.connection;
        let compiled = tokio::task::spawn_blocking(move || Seat::new(&job, parts)).await;
        let compiled = compiled.map_err(|_| {
            self.error(StageErrorKind::Failed, "the thread that compiles the graph has panicked")
        })?;
        let seat = Arc::new(compiled.map_err(|error| failed(error.into()))?);
        *self.seat.lock() = Some(seat);
        // The end of the connection may have come before the seat.
        if !self.connections.lock().contains(&connection) {
            self.drop_seat("the leader has left");
        }
        Ok(())
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
            let address = address.ok_or_else(|| {
                self.error(StageErrorKind::Failed, format!("{task} is not in the cluster spec"))
            })?;
            let (address, patience) = (address.to_string(), Patience::of(self.config.start_timeout));
            let connection = dial(&*self.transport, &address, &self.identity, task, patience).await;
            let connection = connection.map_err(|error| StageError::of_dial(task, &error))?;
            Ok::<_, StageError>((other, Arc::new(connection)))
        });
        Ok(try_join_all(others).await?.into_iter().collect())
    }

    /// Ends what is opened for the leader.
    pub fn drop_seat(&self, reason: &str) {
        if let Some(seat) = self.seat.lock().take() {
            tracing::info!(reason, leader = %self.leader, "ended the work for a leader");
            seat.abandon(reason);
        }
    }

    async fn answer(self: Arc<Self>, peer: Peer, message: Message, payload: Payload, reply: Reply) {
        let result = match (message, self.seat(&peer)) {
            (Message::OpenStage(request), _) => {
                self.open(peer, *request).await.map(|()| Message::from(StageOpened {}))
            }
            (Message::PullStage(request), Some(seat)) => {
                seat.pull(&request).await.map(|shards| StagePulled { shards }.into())
            }
            (Message::PushStage(request), Some(seat)) => {
                seat.push(&request).await.map(|shards| StagePushed { shards }.into())
            }
            (Message::ComputeStage(request), Some(seat)) => {
                seat.compute(*request).await.map(|()| StageComputed {}.into())
            }
            (Message::DigestStage(request), Some(seat)) => {
                seat.digests(request.values).map(|crc32c| StageDigests { crc32c }.into())
            }
            (Message::StageValue(value), Some(seat)) => {
                seat.receive(value.key, payload).map(|()| StageValueTaken {}.into())
            }
            (message, _) => {
                let reason = format!("got {}, but the leader has not opened the stage", message.name());
                Err(self.error(StageErrorKind::Lost, reason))
            }
        };
        match result {
            Ok(message) => reply.send(message, Payload::EMPTY),
            Err(error) => reply.refuse(error.code(), error.reason),
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
        match self.shared.is_stage(peer.task) {
            true => {
                if peer.task == self.shared.leader {
                    self.shared.connections.lock().insert(peer.connection);
                }
                Ok(())
            }
            false => Err(Refusal::new(
                RefusalCode::Mismatch,
                format!(
                    "this task is a stage of the replica of {}, to which {} does not belong",
                    self.shared.leader, peer.task
                ),
            )),
        }
    }

    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        if !(peer.task == self.shared.leader && is_leaders(&message)
            || matches!(message, Message::StageValue(_)))
        {
            let (task, from) = (self.shared.identity.task, peer.task);
            let reason = format!("{task} does not accept {} from {from}", message.name());
            return reply.refuse(RefusalCode::Malformed, reason);
        }
        match (&message, self.shared.seat(peer)) {
            (Message::FetchStageValue(fetch), Some(seat)) => return seat.fetch(fetch.key, reply),
            (Message::CloseStage(_), _) => {
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
        self.shared.connections.lock().remove(&peer.connection);
        let holds = |seat: &Arc<Seat>| seat.leader.connection == peer.connection;
        if peer.task == self.shared.leader && self.shared.seat.lock().as_ref().is_some_and(holds) {
            self.shared.drop_seat("the leader has left");
        }
    }
}
