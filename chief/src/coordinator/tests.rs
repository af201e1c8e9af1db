//! Tests of a coordinator that serves two workers over in-process connections.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, LocalStep, PlacementEpoch, TaskId};
use pushpull_messages::message::{Go, Ready, Register, Registered, Report, Reported};
use pushpull_messages::observe::{Clock, JobPhase, Meter, WorkerState};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{
    Connection, Identity, InProcess, Patience, Server, ServerConfig, Transport, dial, serve,
};
use tokio::sync::{Notify, mpsc, watch};

use super::*;
use crate::config::ChiefConfig;
use crate::error::ChiefError;
use crate::job::tests::{job, placement};
use crate::job::{JobStart, JobState, MembershipOrder};
use crate::monitor::Feed;
use crate::report::JobProgress;

/// The time limit for everything that a test waits for. It is long enough on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn report() -> Report {
    Report { global_step: GlobalStep(2), local_step: LocalStep(3), loss: 0.5, drawn: 3, ..Report::default() }
}

/// A running coordinator, with the other ends of its channels.
struct TestCoordinator {
    transport: InProcess,
    identity: Identity,
    coordinator: Addr<Coordinator>,
    server: Server,
    milestones: mpsc::UnboundedReceiver<Milestone>,
    orders: mpsc::UnboundedReceiver<(PlacementEpoch, MembershipOrder)>,
    bell: Arc<Notify>,
    meter: Arc<Meter>,
}

impl TestCoordinator {
    async fn start(reconnect_timeout: Duration) -> Self {
        let addresses = [
            (JobName::Chief, vec!["chief0:1"]),
            (JobName::Ps, vec!["ps0:1"]),
            (JobName::Worker, vec!["worker0:1", "worker1:1"]),
        ];
        let cluster = ClusterSpec::new(addresses).unwrap();
        let identity = Identity {
            task: TaskId::CHIEF,
            incarnation: Incarnation(1),
            cluster,
            graph: None,
            http: None,
            nonce: 0,
        };
        let transport = InProcess::new();
        let (progress, _) = watch::channel(JobProgress::default());
        let (milestone_sender, milestones) = mpsc::unbounded_channel();
        let (order_sender, orders) = mpsc::unbounded_channel();
        let (bell, meter) = (Arc::<Notify>::default(), Arc::<Meter>::default());
        let channels = CoordinatorChannels {
            progress,
            milestones: milestone_sender,
            orders: order_sender,
            feed: Feed::new().0,
            bell: Arc::clone(&bell),
            meter: Arc::clone(&meter),
            clock: Clock::start(),
        };
        let config = ChiefConfig { reconnect_timeout, ..Default::default() };
        let coordinator = Coordinator::new(JobState::new(job(), 2), 1, &config, channels).start();
        let listener = transport.listen("chief0:1").await.unwrap();
        let service = CoordinatorService { coordinator: coordinator.clone(), meter: Arc::clone(&meter) };
        let server = serve(listener, identity.clone(), Arc::new(service), ServerConfig::default());
        Self { transport, identity, coordinator, server, milestones, orders, bell, meter }
    }

    async fn worker(&self, index: u32, life: u64) -> Connection {
        let (task, incarnation) = (TaskId::worker(index), Incarnation(life));
        let identity = Identity { task, incarnation, ..self.identity.clone() };
        let patience = Patience::of(PATIENCE);
        dial(&self.transport, "chief0:1", &identity, TaskId::CHIEF, patience).await.unwrap()
    }

    /// Connects and registers two workers, and waits until both are told to begin. Returns their
    /// connections.
    async fn training(&self) -> [Connection; 2] {
        let workers = [self.worker(0, 7).await, self.worker(1, 7).await];
        for worker in &workers {
            worker.call::<Registered>(Register::default(), Payload::EMPTY).await.unwrap();
        }
        for worker in 0..2 {
            self.coordinator.send(JobEvent::Appointed(worker, Incarnation(7))).await.unwrap();
        }
        let ready = workers.iter().map(|worker| worker.call::<Go>(Ready::default(), Payload::EMPTY));
        futures_util::future::try_join_all(ready).await.unwrap();
        workers
    }

    async fn observe(&self) -> CoordinatorSnapshot {
        self.coordinator.send(Observe).await.unwrap()
    }

    /// Waits until the second worker is no longer training. Returns two states: the second worker's, then
    /// the first worker's.
    async fn second_worker_changes(&self) -> (WorkerState, WorkerState) {
        loop {
            self.bell.notified().await;
            let workers = self.observe().await.status.workers;
            if workers[1].state != WorkerState::Training {
                return (workers[1].state, workers[0].state);
            }
        }
    }

    /// Fails the job and stops the server. Checks that the coordinator reports the end of the job and then
    /// stops, so that its channels close.
    async fn end(self) {
        let Self { coordinator, server, mut milestones, mut orders, .. } = self;
        let (step, last_step) = (job().last_step, job().last_step);
        coordinator.send(JobEvent::Fail(ChiefError::Interrupted { step, last_step })).await.unwrap();
        coordinator.send(JobEvent::EndFailing).await.unwrap();
        server.stop().await;
        drop(coordinator);
        let ended = async { while !matches!(milestones.recv().await, Some(Milestone::Ended(_)) | None) {} };
        tokio::time::timeout(PATIENCE, ended).await.unwrap();
        assert!(tokio::time::timeout(PATIENCE, milestones.recv()).await.unwrap().is_none());
        while orders.recv().await.is_some() {}
    }
}

#[test]
fn a_worker_that_stays_away_departs() {
    actix::System::new().block_on(async {
        let mut chief = TestCoordinator::start(Duration::from_millis(200)).await;
        chief.coordinator.send(JobEvent::Created(placement(), JobStart::default())).await.unwrap();
        let [first, second] = chief.training().await;
        chief.bell.notified().await;
        let (reported, _) = first.call::<Reported>(report(), Payload::EMPTY).await.unwrap();
        let (again, _) = first.call::<Reported>(report(), Payload::EMPTY).await.unwrap();
        assert!(0 < reported.clock_us && reported.clock_us < again.clock_us);
        let snapshot = chief.observe().await;
        assert_eq!(snapshot.status.phase, JobPhase::Training);
        assert!(snapshot.status.workers.iter().all(|worker| worker.state == WorkerState::Training));
        assert_eq!((snapshot.latest[&0].local_step.0, snapshot.reports[&0].steps), (3, 3));
        assert!(snapshot.placement.is_some() && chief.observe().await.placement.is_none());
        let actor = chief.meter.snapshot("chief/0/desk", "");
        assert!(actor.queue == 0 && actor.handling.count() >= 7, "{actor:?}");
        // The first worker opens another connection, and sends nothing over it.
        let _back = chief.worker(0, 7).await;
        drop(first);
        drop(second);
        // The coordinator notices the broken connection at once, long before the worker counts as lost.
        let away = tokio::time::timeout(PATIENCE, chief.second_worker_changes()).await.unwrap();
        assert_eq!(away, (WorkerState::Away, WorkerState::Training));
        let life = Incarnation(7);
        let expected = [
            MembershipOrder::Appoint(0, life),
            MembershipOrder::Appoint(1, life),
            MembershipOrder::Leave(1, life),
        ];
        for order in expected {
            let told = tokio::time::timeout(PATIENCE, chief.orders.recv()).await.unwrap();
            assert_eq!(told, Some((PlacementEpoch(1), order)));
        }
        chief.end().await;
    });
}
