//! The routes of a worker: its connections to its parents and children, and the way of each push. The relay
//! decides which pushes belong together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, join_all};
use parking_lot::Mutex;
use pushpull_messages::id::{JobName, ShardId, SliceId, TaskId, Version};
use pushpull_messages::message::{Message, Push, Pushed, Refusal, RefusalCode, RelayPush, RouteJoined};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};
use pushpull_transport::{
    CallError, Identity, Listener, Patience, Peer, ReconnectingClient, Reply, Server, ServerConfig, Service,
    Transport, TransportError, dial, serve,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::parent::Parent;
use super::relay::{ChildPush, NotKept, Relay, Sender, contributions};
use super::route::RouteSpec;
use super::sum::sum;
use crate::client::Layout;
use crate::error::WorkerError;

/// How long a worker that has joined the job waits for its parents and children, which join at about the same
/// time when the job begins.
const JOIN_MAX: Duration = Duration::from_secs(5);
/// How often a worker tries to listen, and the pause between two attempts. An earlier incarnation in this
/// process may not have closed its listener yet.
const LISTEN_ATTEMPTS: u32 = 30;
const LISTEN_PAUSE: Duration = Duration::from_millis(100);

/// The routes of a worker.
pub(crate) struct Routes {
    shared: Arc<Shared>,
    /// The other workers to which this worker passes gradients on.
    parents: BTreeMap<u32, Parent>,
    server: Mutex<Option<Server>>,
    pool: BufferPool,
}

/// What the requests of children share with this worker's own pushes.
struct Shared {
    spec: RouteSpec,
    task: TaskId,
    layout: Layout,
    relay: Mutex<Relay<Reply>>,
    /// Told when a push may have become complete.
    changed: watch::Sender<()>,
}

/// What a worker needs in order to open its routes.
pub(crate) struct RoutesStart<'a> {
    pub spec: RouteSpec,
    pub transport: &'a Arc<dyn Transport>,
    pub identity: &'a Identity,
    pub layout: &'a Layout,
    pub pool: &'a BufferPool,
    /// The address to listen on; `None` for that in the cluster spec.
    pub bind: Option<&'a str>,
    /// How long to wait for a parent that is not there yet.
    pub patience: Duration,
    /// The maximum number of gradient bytes that one child has in flight.
    pub in_flight_bytes_max: u64,
    pub deterministic: bool,
}

impl RoutesStart<'_> {
    /// Listens for the children, and connects to the parents. A parent that is not there is not used.
    ///
    /// # Errors
    /// If this task cannot listen.
    pub(crate) async fn open(&self) -> Result<Routes, WorkerError> {
        let Self { spec, identity, layout, pool, .. } = *self;
        let own = identity.task.index;
        let roots = || layout.shards.iter().map(|shard| spec.root(shard.shard));
        let children: Vec<BTreeSet<u32>> =
            roots().map(|root| spec.children(own, root).into_iter().collect()).collect();
        let parents: BTreeSet<u32> = roots().filter_map(|root| spec.parent(own, root)).collect();
        let count = children.iter().flatten().collect::<BTreeSet<_>>().len() as u64;
        let shared = Arc::new(Shared {
            spec,
            task: identity.task,
            layout: layout.clone(),
            relay: Mutex::new(Relay::new(children)),
            changed: watch::Sender::new(()),
        });
        let server = match count {
            0 => None,
            _ => Some(self.serve(&shared, count).await?),
        };
        let dials = parents.into_iter().map(|parent| self.dial(parent).map(move |own| (parent, own)));
        let parents = join_all(dials).await.into_iter().collect();
        Ok(Routes { shared, parents, server: Mutex::new(server), pool: pool.clone() })
    }

    async fn serve(&self, shared: &Arc<Shared>, children: u64) -> Result<Server, WorkerError> {
        let Self { identity, in_flight_bytes_max, .. } = *self;
        let own = identity.cluster.address(identity.task).ok_or(WorkerError::NotInCluster(identity.task))?;
        let address = self.bind.map_or_else(|| own.to_string(), str::to_owned);
        let listener = self.listen(&address).await?;
        tracing::info!(%address, children, "passing on the gradients of other workers");
        let config = ServerConfig {
            // A child sends one push for each shard at a time.
            requests_max: 2 * shared.layout.shards.len() as u32 + 16,
            connection_bytes_max: in_flight_bytes_max,
            // A child never waits for what another child has in flight.
            in_flight_bytes_max: in_flight_bytes_max.saturating_mul(children),
            ..ServerConfig::default()
        };
        let service = Arc::new(RouteService { shared: Arc::clone(shared) });
        Ok(serve(listener, identity.clone(), service, config))
    }

    async fn listen(&self, address: &str) -> Result<Box<dyn Listener>, TransportError> {
        for _ in 1..LISTEN_ATTEMPTS {
            match self.transport.listen(address).await {
                Err(_) => sleep(LISTEN_PAUSE).await,
                listener => return listener,
            }
        }
        self.transport.listen(address).await
    }

    async fn dial(&self, parent: u32) -> Parent {
        let Self { transport, identity, patience, deterministic, .. } = *self;
        let task = TaskId::worker(parent);
        // The cluster spec has as many workers as the job.
        let address = identity.cluster.address(task).map(ToString::to_string).unwrap_or_default();
        let dialled = dial(&**transport, &address, identity, task, Patience::of(patience)).await;
        Parent::new(task, dialled, deterministic)
    }
}

impl Routes {
    /// Tells parents and children that this worker has joined the job and takes its first step from this
    /// version. Waits a short time for those that join at the same time.
    pub(crate) async fn join(&self, first: Version) {
        let joined = self.shared.relay.lock().join(first);
        for (reply, from) in joined {
            reply.send(RouteJoined { from }, Payload::EMPTY);
        }
        let parents = join_all(self.parents.values().map(|parent| parent.join(first, JOIN_MAX)));
        let children = timeout(JOIN_MAX, self.shared.wait_until(|relay| relay.all_announced()));
        if let (_, Err(_)) = join(parents, children).await {
            tracing::info!("beginning before all workers that push through this one have joined");
        }
    }

    /// Records that this worker has the values of a shard at this version.
    pub(crate) fn read(&self, position: usize, version: Version) {
        let late = self.shared.relay.lock().read(position, version);
        late.into_iter().for_each(refuse_late);
    }

    /// Returns how many times the memory of this worker's own gradients a push to a shard may take.
    pub(crate) fn copies(&self, position: usize) -> u64 {
        let shared = &self.shared;
        let root = shared.root(position);
        if shared.spec.children(shared.task.index, root).is_empty() { 1 } else { 2 }
    }

    /// Pushes gradients to a shard, together with those of the children. `shard` calls the shard directly.
    ///
    /// # Errors
    /// If the shard refuses this worker's gradients, or cannot be reached.
    pub(crate) fn push<'a>(
        &'a self,
        position: usize,
        push: Push,
        gradients: Payload,
        shard: &'a ReconnectingClient,
    ) -> BoxFuture<'a, Result<(Pushed, Payload), CallError>> {
        Box::pin(async move {
            let children = self.collect(position, push.version).await;
            let (reply, waiting) = self.push_with(position, push, gradients, children, shard).await?;
            self.read(position, reply.0.version);
            for ChildPush { push, reply: answer, .. } in waiting {
                let (mut pushed, values) = reply.clone();
                pushed.times = pushed.times.filter(|_| push.traced);
                answer.send(pushed, values);
            }
            Ok(reply)
        })
    }

    /// Waits for the pushes of the children.
    async fn collect(&self, position: usize, version: Version) -> Vec<ChildPush<Reply>> {
        let late = self.shared.relay.lock().begin(position, version);
        late.into_iter().for_each(refuse_late);
        self.shared.wait_until(|relay| !relay.waits(position, version)).await;
        self.shared.relay.lock().take(position, version)
    }

    /// Pushes the sum of this worker's gradients and those of the children. If the shard does not take the
    /// sum, each worker pushes alone. Returns the reply, and the children that get the same reply.
    async fn push_with(
        &self,
        position: usize,
        push: Push,
        gradients: Payload,
        mut children: Vec<ChildPush<Reply>>,
        shard: &ReconnectingClient,
    ) -> Result<((Pushed, Payload), Vec<ChildPush<Reply>>), CallError> {
        // If the writer of the own gradients has failed, this step fails, and the children push alone.
        if children.is_empty() || gradients.ready().await.is_err() {
            return Ok((self.send(position, &push, &gradients, shard).await?, Vec::new()));
        }
        let others: Vec<&Payload> = children.iter().map(|child| &child.gradients).collect();
        let total = sum(&gradients, &others, &self.pool).await;
        let mut combined = push.clone();
        combined.with = contributions(&children);
        combined.traced |= children.iter().any(|child| child.push.traced);
        // The children keep their gradients; the memory that this task has for them gets free.
        children.iter_mut().for_each(|child| child.gradients = Payload::EMPTY);
        match self.send(position, &combined, &total, shard).await {
            Err(CallError::Refused { refusal, .. }) => {
                tracing::debug!(count = combined.count(), "each worker pushes alone: {refusal}");
                children.into_iter().for_each(refuse_late);
                Ok((shard.call::<Pushed>(push, gradients).await?, Vec::new()))
            }
            reply => Ok((reply?, children)),
        }
    }

    /// Sends a push on its way to a shard: through the parent, if there is one that takes it.
    async fn send(
        &self,
        position: usize,
        push: &Push,
        payload: &Payload,
        shard: &ReconnectingClient,
    ) -> Result<(Pushed, Payload), CallError> {
        let Shared { spec, task, layout, .. } = &*self.shared;
        let parent = spec.parent(task.index, self.shared.root(position));
        if let Some(parent) = parent.and_then(|parent| self.parents.get(&parent)) {
            let ps = layout.shards[position].shard.ps;
            let relayed = RelayPush { ps, push: push.clone() };
            if let Some(reply) = parent.push(relayed, payload).await {
                return Ok(reply);
            }
        }
        shard.call::<Pushed>(push.clone(), payload.clone()).await
    }

    /// Ends the routes, because this worker pushes no more. The children push to the shards themselves.
    pub(crate) async fn close(&self) {
        drop(self.shared.relay.lock().close());
        for parent in self.parents.values() {
            parent.close();
        }
        let server = self.server.lock().take();
        if let Some(server) = server {
            server.stop().await;
        }
    }
}

/// Tells a child to push to the shard itself.
fn refuse_late(child: ChildPush<Reply>) {
    refuse_alone(child.reply);
}

fn refuse_alone(reply: Reply) {
    reply.refuse(RefusalCode::Alone, "the sum does not take these gradients: push them alone");
}

impl Shared {
    fn root(&self, position: usize) -> u32 {
        self.spec.root(self.layout.shards[position].shard)
    }

    /// Waits until a condition of the relay holds.
    async fn wait_until(&self, holds: impl Fn(&Relay<Reply>) -> bool) {
        let mut changed = self.changed.subscribe();
        while !holds(&self.relay.lock()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Checks a push of a child, and returns the position of its shard.
    ///
    /// # Errors
    /// Returns what is wrong with the push.
    fn check(&self, peer: &Peer, relayed: &RelayPush, gradients: &Payload) -> Result<usize, &'static str> {
        let RelayPush { ps, push } = relayed;
        let shard = ShardId::new(*ps, push.shard);
        let position = self.layout.shards.iter().position(|own| own.shard == shard);
        let position = position.ok_or("the placement has no such shard")?;
        if (push.epoch, push.placement_digest) != (self.layout.epoch, self.layout.digest) {
            return Err("it has another placement than this worker");
        }
        if peer.task != TaskId::worker(push.id.worker) || peer.incarnation != push.id.incarnation {
            return Err("it is the push of another worker");
        }
        let root = self.root(position);
        if push.with.iter().any(|other| !self.spec.passes(other.id.worker, push.id.worker, root)) {
            return Err("it has gradients that do not pass through its sender");
        }
        if !push.pull {
            return Err("it does not pull the next values");
        }
        let parts = &self.layout.shards[position].parts;
        let slices: Vec<SliceId> = self.layout.shards[position].slices.iter().rev().copied().collect();
        let sizes = parts.iter().rev().map(|part| part.elements * 4);
        if push.slices != slices || !gradients.segments().iter().map(Segment::len).eq(sizes) {
            return Err("its gradients are not those of the shard's slices");
        }
        Ok(position)
    }

    fn relay(&self, peer: &Peer, relayed: RelayPush, gradients: Payload, reply: Reply) {
        let refuse = |reply: Reply, reason: &str| {
            let reason = format!("{} does not pass on the push of {}: {reason}", self.task, peer.task);
            reply.refuse(RefusalCode::Misfit, reason);
        };
        let position = match self.check(peer, &relayed, &gradients) {
            Ok(position) => position,
            Err(reason) => return refuse(reply, reason),
        };
        let kept = self.relay.lock().keep(sender(peer), position, (relayed.push, gradients, reply));
        match kept {
            Ok(()) => self.changed.send_replace(()),
            Err((reply, NotKept::Alone)) => refuse_alone(reply),
            Err((reply, NotKept::Misfit(reason))) => refuse(reply, reason),
            Err((reply, NotKept::Closed)) => {
                let reason = format!("{} passes no pushes on any more", self.task);
                reply.refuse(RefusalCode::Unavailable, reason);
            }
        }
    }
}

fn sender(peer: &Peer) -> Sender {
    Sender { worker: peer.task.index, incarnation: peer.incarnation, connection: peer.connection }
}

/// The service of a worker for its children.
struct RouteService {
    shared: Arc<Shared>,
}

impl Service for RouteService {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        let mut relay = self.shared.relay.lock();
        if peer.guest.is_some() || peer.task.job != JobName::Worker || !relay.is_child(peer.task.index) {
            let reason = format!("no gradients of {} pass through {}", peer.task, self.shared.task);
            return Err(Refusal::new(RefusalCode::Mismatch, reason));
        }
        let earlier = relay.connect(sender(peer));
        drop((relay, earlier));
        self.shared.changed.send_replace(());
        Ok(())
    }

    fn call(&self, peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        match message {
            Message::RelayPush(relayed) => self.shared.relay(peer, *relayed, payload, reply),
            Message::JoinRoute(join) => {
                let announced = self.shared.relay.lock().announce(sender(peer), join.first, reply);
                match announced {
                    Ok(Some((reply, from))) => reply.send(RouteJoined { from }, Payload::EMPTY),
                    Ok(None) => {}
                    Err(reply) => {
                        let reason =
                            format!("{} cannot join a route through {}", peer.task, self.shared.task);
                        reply.refuse(RefusalCode::Unavailable, reason);
                    }
                }
                self.shared.changed.send_replace(());
            }
            other => {
                let (task, from) = (self.shared.task, peer.task);
                let reason = format!("{task} does not accept {} from {from}", other.name());
                reply.refuse(RefusalCode::Malformed, reason);
            }
        }
    }

    fn disconnected(&self, peer: &Peer) {
        let lost = self.shared.relay.lock().disconnect(peer.task.index, peer.connection);
        drop(lost);
        self.shared.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::communication::CommunicationSpec;
    use pushpull_messages::id::{Incarnation, LocalStep, PlacementEpoch, Sequence, VariableId};
    use pushpull_messages::message::{Contribution, JoinRoute, Observe, PushId};
    use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
    use pushpull_messages::tensor::DType;
    use pushpull_messages::variable::{InitializerSpec, VariableSpec};
    use pushpull_transport::buffer::Buffer;
    use pushpull_transport::{Connection, InProcess};

    use super::*;

    /// The incarnation of every worker.
    const LIFE: Incarnation = Incarnation(3);
    const PATIENCE: Duration = Duration::from_secs(5);

    fn identity(worker: u32) -> Identity {
        let workers = vec!["w:1", "w:2", "w:3"];
        let cluster = ClusterSpec::new([(JobName::Ps, vec!["p:1"]), (JobName::Worker, workers)]).unwrap();
        let task = TaskId::worker(worker);
        Identity { task, incarnation: LIFE, cluster, graph: None, http: None, nonce: 0 }
    }

    /// Returns the layout of one shard with a variable of two elements.
    fn layout() -> Layout {
        let shard = ShardId::new(0, 0);
        let slice = SliceSpec { variable: VariableId(0), row: 0, rows: 2 };
        let placement = Placement {
            epoch: PlacementEpoch(1),
            shards: vec![shard],
            slices: vec![PlacedSlice { slice, shard }],
        };
        let variable = VariableSpec {
            name: "x".into(),
            shape: [2].into(),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        };
        Layout::new(&placement, &[variable])
    }

    /// Opens the routes of worker 0, the root of a chain of three workers: 1, 2, 0.
    async fn root(transport: &Arc<dyn Transport>) -> Routes {
        let start = RoutesStart {
            spec: RouteSpec::new(CommunicationSpec::Ring, 3).unwrap(),
            transport,
            identity: &identity(0),
            layout: &layout(),
            pool: &BufferPool::default(),
            bind: None,
            patience: PATIENCE,
            in_flight_bytes_max: 1 << 20,
            deterministic: false,
        };
        start.open().await.unwrap()
    }

    async fn connect(transport: &Arc<dyn Transport>, worker: u32) -> Result<Connection, String> {
        let own = identity(worker);
        let dialled = dial(&**transport, "w:1", &own, TaskId::worker(0), Patience::of(PATIENCE));
        dialled.await.map_err(|error| error.to_string())
    }

    fn push(worker: u32) -> Push {
        let layout = layout();
        Push {
            shard: 0,
            id: PushId { worker, incarnation: LIFE, sequence: Sequence(1) },
            local_step: LocalStep(0),
            epoch: layout.epoch,
            placement_digest: layout.digest,
            version: Version(0),
            slices: vec![SliceId(0)],
            drawn: 1,
            pull: true,
            traced: false,
            with: Vec::new(),
        }
    }

    fn gradients(numbers: &[f32]) -> Payload {
        Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(numbers)))])
    }

    #[tokio::test]
    async fn only_children_are_served() {
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
        let routes = root(&transport).await;
        let refused = connect(&transport, 1).await.unwrap_err();
        assert!(refused.contains("no gradients of worker/1 pass through worker/0"), "{refused}");
        let child = connect(&transport, 2).await.unwrap();
        let refused = child.call::<Pushed>(Observe { shard: 0 }, Payload::EMPTY).await.unwrap_err();
        assert!(refused.to_string().contains("does not accept Observe from worker/2"), "{refused}");
        routes.close().await;
    }

    #[tokio::test]
    async fn a_push_that_does_not_fit_is_refused() {
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
        let routes = root(&transport).await;
        let child = connect(&transport, 2).await.unwrap();
        let with = |worker| {
            let id = PushId { worker, incarnation: LIFE, sequence: Sequence(1) };
            vec![Contribution { id, local_step: LocalStep(0), drawn: 1 }]
        };
        let (good, two) = (push(2), gradients(&[1.0, 2.0]));
        let before = "a child pushes before it has joined the route";
        for (ps, push, payload, reason) in [
            (0, good.clone(), two.clone(), before),
            (0, Push { with: with(1), ..good.clone() }, two.clone(), before),
            (1, good.clone(), two.clone(), "the placement has no such shard"),
            (0, Push { shard: 1, ..good.clone() }, two.clone(), "the placement has no such shard"),
            (0, Push { epoch: PlacementEpoch(2), ..good.clone() }, two.clone(), "another placement"),
            (0, Push { placement_digest: 0, ..good.clone() }, two.clone(), "another placement"),
            (0, push(1), two.clone(), "it is the push of another worker"),
            (0, Push { with: with(0), ..good.clone() }, two.clone(), "do not pass through its sender"),
            (0, Push { with: with(9), ..good.clone() }, two.clone(), "do not pass through its sender"),
            (0, Push { pull: false, ..good.clone() }, two.clone(), "does not pull"),
            (0, Push { slices: vec![SliceId(7)], ..good.clone() }, two.clone(), "the shard's slices"),
            (0, good.clone(), gradients(&[1.0]), "the shard's slices"),
        ] {
            let refused = child.call::<Pushed>(RelayPush { ps, push }, payload).await.unwrap_err();
            let CallError::Refused { refusal, .. } = refused else { panic!("{refused}") };
            assert_eq!(refusal.code, RefusalCode::Misfit);
            assert!(refusal.reason.contains(reason), "{refusal}, expected {reason}");
        }
        routes.close().await;
    }

    #[tokio::test]
    async fn a_child_goes_alone_when_its_parent_has_gone() {
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
        let routes = root(&transport).await;
        let child = connect(&transport, 2).await;
        let parent = Parent::new(TaskId::worker(0), Ok(child.unwrap()), true);
        tokio::join!(parent.join(Version(4), PATIENCE), routes.join(Version(2)));
        routes.read(0, Version(2));
        let relayed = |version| RelayPush { ps: 0, push: Push { version: Version(version), ..push(2) } };
        let two = gradients(&[1.0, 2.0]);
        assert!(parent.push(relayed(3), &two).await.is_none(), "it joins from version 4 on");
        let pushed = async {
            let waits = routes.shared.wait_until(|relay| !relay.waits(0, Version(4)));
            waits.await;
            routes.close().await;
        };
        let (sent, ()) = tokio::join!(parent.push(relayed(4), &two), pushed);
        assert!(sent.is_none() && !parent.close(), "the connection is closed");
    }

    #[tokio::test]
    async fn a_child_joins_from_the_version_that_comes_next() {
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
        let routes = root(&transport).await;
        routes.join(Version(0)).await;
        routes.read(0, Version(8));
        let child = connect(&transport, 2).await.unwrap();
        let first = JoinRoute { first: Version(5) };
        let (joined, _) = child.call::<RouteJoined>(first, Payload::EMPTY).await.unwrap();
        assert_eq!(joined.from, Version(8));
        let again = child.call::<RouteJoined>(first, Payload::EMPTY).await.unwrap_err();
        assert!(again.to_string().contains("cannot join a route"), "{again}");
        // The push of version 8 begins, and waits for the child until its connection ends.
        let begun = routes.collect(0, Version(8));
        let (children, ()) = tokio::join!(begun, async { drop(child) });
        assert!(children.is_empty());
    }
}
