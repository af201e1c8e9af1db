//! The ps task: starts its shards, answers connections by handing each request to its shard, and ends when the
//! chief says so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::{Actor, Addr, Context};
use actix_rt::Arbiter;
use pushpull_messages::id::{JobName, ShardId, TaskId};
use pushpull_messages::message::{Message, RefusalCode, StopReason, Stopped};
use pushpull_messages::observe::{Clock, Meter};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Identity, Listener, Peer, Reply, Server, ServerConfig, Service, serve};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::checkpoint::Checkpoints;
use crate::config::PsConfig;
use crate::error::PsError;
use crate::shard::{Reader, Shard, ShardLimits, ShardRequest, ShardState};
use crate::view::{Life, Lifetime, PsView, Sight, Watched};

/// A ps task that serves.
pub struct Ps {
    server: Server,
    shards: Vec<Arbiter>,
    attendance: watch::Receiver<Attendance>,
    /// Cancelled by a signal: the chief, which sees it in the shards' snapshots, then has the job saved.
    leaving: CancellationToken,
    /// Ends the thread that reads and writes checkpoints.
    _files: DropGuard,
    view: PsView,
    /// The view shows the end when this goes.
    _lifetime: Lifetime,
    config: PsConfig,
    identity: Identity,
}

/// Who is here, and how the task is to end.
#[derive(Debug, Default)]
struct Attendance {
    chief_came: bool,
    /// Of the chief's.
    chief_connections: usize,
    connections: usize,
    end: Option<End>,
}

#[derive(Clone, Debug)]
enum End {
    Stop(StopReason),
    Panic(ShardId, String),
}

impl Attendance {
    /// The chief was here and is gone without a word, and nobody is left who might still train.
    const fn deserted(&self) -> bool {
        self.chief_came && self.connections == 0
    }
}

impl Ps {
    /// Starts the shards, each on an arbiter of its own, and serves on the current runtime.
    ///
    /// # Errors
    /// Where a setting is out of range.
    ///
    /// # Panics
    /// Outside of an actix system.
    pub fn start(
        config: PsConfig,
        identity: Identity,
        listener: Box<dyn Listener>,
        pool: &BufferPool,
    ) -> Result<Self, PsError> {
        config.validate()?;
        let (attend, attendance) = watch::channel(Attendance::default());
        let attend = Arc::new(attend);
        let limits = ShardLimits {
            values_bytes_max: config.server.limits.payload_bytes_max,
            // At most half of what the task takes in at a time: the other half is for what is waited for.
            gradients_bytes_max: config.server.in_flight_bytes_max / 2 / u64::from(config.shards),
        };
        let (leaving, files) = (CancellationToken::new(), CancellationToken::new());
        let checkpoints = Checkpoints::start(config.shards, pool.clone(), files.clone());
        let clock = Clock::start();
        let (mut addresses, mut sights, mut arbiters) = (Vec::new(), Vec::new(), Vec::new());
        for shard in 0..config.shards {
            let id = ShardId::new(identity.task.index, shard);
            let arbiter = Arbiter::new();
            let on_panic = {
                let attend = Arc::clone(&attend);
                Box::new(move |reason: String| {
                    attend.send_modify(|now| now.end = Some(End::Panic(id, reason)));
                })
            };
            let (state, checkpoints) = (ShardState::new(id, pool.clone(), limits), checkpoints.clone());
            let (leaving, (showing, sight)) = (leaving.clone(), Sight::new(id));
            let start = move |_: &mut Context<Shard>| {
                Shard::new(state, checkpoints, clock, showing, leaving, on_panic)
            };
            let address = Shard::start_in_arbiter(&arbiter.handle(), start);
            addresses.push((address, Arc::clone(sight.meter())));
            sights.push(sight);
            arbiters.push(arbiter);
        }
        let shards = addresses.iter().map(|(address, _)| address.clone().recipient()).collect();
        let service = Arc::new(Desk { task: identity.task, shards: addresses, attend });
        // Saves are answered late: the chief must be able to say something else to every shard meanwhile.
        let requests_max = config.server.requests_max.max(4 * config.shards);
        let server_config = ServerConfig { shards: config.shards, requests_max, ..config.server.clone() };
        let server = serve(listener, identity.clone(), service, server_config);
        tracing::info!("serving {} shard(s) at {}", config.shards, server.address());
        let (lifetime, view) = PsView::new(Watched {
            task: identity.task,
            incarnation: identity.incarnation,
            sights,
            checkpoints: Arc::clone(checkpoints.meter()),
            server: server.observer(),
            leaving: leaving.clone(),
            life: Mutex::new(Life::Lives { shards, pool: pool.clone(), stopping: false }),
        });
        Ok(Self {
            server,
            shards: arbiters,
            attendance,
            leaving,
            _files: files.drop_guard(),
            view,
            _lifetime: lifetime,
            config,
            identity,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// What it shows of itself.
    pub fn view(&self) -> PsView {
        self.view.clone()
    }

    /// What a shard runs on.
    #[cfg(test)]
    pub(crate) fn arbiter(&self, shard: usize) -> &Arbiter {
        &self.shards[shard]
    }

    /// Serves until the chief ends the job. Where `interrupt` is cancelled the chief, if it is connected, has some time to
    /// save the job first, and to say that it is over.
    ///
    /// # Errors
    /// Where the chief never comes, leaves without a word, or says that the job failed; or a shard panics; or it
    /// was interrupted.
    pub async fn run(mut self, interrupt: CancellationToken) -> Result<(), PsError> {
        let PsConfig { drain_timeout, deserted_timeout, .. } = self.config;
        let (leaving, attendance) = (self.leaving.clone(), self.attendance.clone());
        let drained = drained(interrupt, leaving, attendance, drain_timeout, deserted_timeout);
        let result = tokio::select! {
            // What the chief says counts more than that it goes.
            biased;
            result = self.end() => result,
            () = drained => Err(PsError::Interrupted),
        };
        self.view.stop();
        // Who still waits for others at a shard is refused when that goes.
        for shard in self.shards {
            shard.stop();
        }
        self.server.stop().await;
        // Then the view's counts are the last.
        self.view.ended().await;
        match result {
            // It was this task that was told to stop, and the job could not be saved.
            Err(PsError::JobFailed(_)) if self.leaving.is_cancelled() => Err(PsError::Interrupted),
            result => result,
        }
    }

    async fn end(&mut self) -> Result<(), PsError> {
        let came = self.attendance.wait_for(|now| now.chief_came || now.end.is_some());
        if tokio::time::timeout(self.config.start_timeout, came).await.is_err() {
            let chief = self.identity.cluster.chief_host();
            let address = self.identity.cluster.address(chief).map(ToString::to_string).unwrap_or_default();
            return Err(PsError::NoChief { chief, address, seconds: self.config.start_timeout.as_secs() });
        }
        loop {
            let left = self.attendance.wait_for(|now| now.end.is_some() || now.deserted()).await;
            if left.map_or(true, |now| now.end.is_some()) {
                break;
            }
            // Connections may break, all at the same time, and come again.
            let back = self.attendance.wait_for(|now| now.end.is_some() || !now.deserted());
            if tokio::time::timeout(self.config.deserted_timeout, back).await.is_err() {
                break;
            }
        }
        let end = self.attendance.borrow().end.clone();
        match end {
            Some(End::Stop(StopReason::Completed | StopReason::Saved)) => Ok(()),
            Some(End::Stop(StopReason::Failed(reason))) => Err(PsError::JobFailed(reason)),
            Some(End::Panic(shard, reason)) => Err(PsError::ShardPanicked { shard, reason }),
            None => Err(PsError::ChiefLost),
        }
    }
}

/// Waits for a signal, and then as long as the chief may still save the job.
async fn drained(
    interrupt: CancellationToken,
    leaving: CancellationToken,
    mut attendance: watch::Receiver<Attendance>,
    timeout: Duration,
    back_within: Duration,
) {
    interrupt.cancelled().await;
    leaving.cancel();
    let gone = async {
        loop {
            let _ = attendance.wait_for(|now| now.chief_connections == 0).await;
            // Its connection may break, and come again.
            let back = attendance.wait_for(|now| now.chief_connections > 0);
            if tokio::time::timeout(back_within, back).await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(timeout, gone).await;
}

/// Takes requests from all connections and hands each to its shard.
struct Desk {
    task: TaskId,
    /// Each with what counts what it is sent.
    shards: Vec<(Addr<Shard>, Arc<Meter>)>,
    attend: Arc<watch::Sender<Attendance>>,
}

impl Service for Desk {
    fn admit(&self, peer: &Peer) -> Result<(), pushpull_messages::message::Refusal> {
        self.attend.send_modify(|now| {
            now.connections += 1;
            if peer.task.job == JobName::Chief {
                now.chief_came = true;
                now.chief_connections += 1;
            }
        });
        Ok(())
    }

    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        let shard = match &message {
            Message::CreateShard(create) if peer.task.job == JobName::Chief => create.shard.shard,
            Message::Push(push)
                if peer.task == TaskId::worker(push.id.worker) && peer.incarnation == push.id.incarnation =>
            {
                push.shard
            }
            Message::Pull(pull) => pull.shard,
            Message::Leave(leave) if peer.task.job == JobName::Chief => leave.shard,
            Message::Save(save) if peer.task.job == JobName::Chief => save.shard,
            Message::StopAt(stop) if peer.task.job == JobName::Chief => stop.shard,
            Message::Observe(observe) => observe.shard,
            Message::Stop(stop) if peer.task.job == JobName::Chief => {
                let end = End::Stop(stop.reason.clone());
                reply.send(Stopped {}, Payload::EMPTY);
                self.attend.send_modify(|now| now.end = Some(end));
                return;
            }
            other => {
                let reason = format!("{} takes no {} from {}", self.task, other.name(), peer.task);
                return reply.refuse(RefusalCode::Malformed, reason);
            }
        };
        let Some((address, meter)) = self.shards.get(shard as usize) else {
            let reason = format!("{} has {} shard(s), and no shard {shard}", self.task, self.shards.len());
            return reply.refuse(RefusalCode::Misfit, reason);
        };
        let (task, incarnation, connection) = (peer.task, peer.incarnation, peer.connection);
        let reader =
            (task.job == JobName::Worker).then_some(Reader { worker: task.index, incarnation, connection });
        let queued = meter.queue();
        match address.try_send(ShardRequest { message, payload, reader, connection, reply, queued }) {
            Ok(()) => {}
            Err(actix::dev::SendError::Full(request)) => request
                .reply
                .refuse(RefusalCode::Overloaded, format!("the queue of {}/shard/{shard} is full", self.task)),
            Err(actix::dev::SendError::Closed(request)) => {
                request
                    .reply
                    .refuse(RefusalCode::Unavailable, format!("{}/shard/{shard} has ended", self.task));
            }
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.attend.send_modify(|now| {
            now.connections -= 1;
            now.chief_connections -= usize::from(peer.task.job == JobName::Chief);
        });
    }
}
