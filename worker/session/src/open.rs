//! Opens a graph: on the task that a client has asked, and on the other tasks that run a part of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use pushpull_messages::device::OpDeviceSpec;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, TaskId};
use pushpull_messages::message::{GraphOpened, Home, OpenGraph as Request, decode_graph, encode_graph};
use pushpull_messages::tensor::Tensor;
use pushpull_transport::Peer;
use pushpull_transport::buffer::Payload;

use crate::device::Devices;
use crate::error::{SessionError, Unreachable};
use crate::graphs::{GRAPH_BYTES_MAX, OpenGraph, bytes_of};
use crate::payload::payload_of;
use crate::state::State;
use crate::threads::blocking;

/// Opens a graph on this task, and returns its number and, if requested, the device of each node.
///
/// # Errors
/// If the graph is not valid, requests a device that does not exist, or exceeds a limit.
pub(crate) async fn open(
    state: &Arc<State>,
    peer: &Peer,
    request: Request,
    payload: &Payload,
) -> Result<(GraphOpened, Payload), SessionError> {
    if let Some(Home { task, incarnation, .. }) = &request.home
        && (*task, *incarnation) != (peer.task, peer.incarnation)
    {
        return Err(SessionError::Malformed(format!("{} opens no graph for {task}", peer.task)));
    }
    let segment = &payload.segments()[0];
    let bytes = segment.len();
    if bytes > GRAPH_BYTES_MAX {
        let (what, remedy) = ("the graph".to_owned(), "feed large values instead of making them constants");
        return Err(SessionError::TooLarge { what, got: bytes as u64, max: GRAPH_BYTES_MAX as u64, remedy });
    }
    let graph = segment.clone();
    let decode = move || decode_graph(graph.as_bytes()).map_err(|error| SessionError::Malformed(error.0));
    let spec = on_thread(state, decode).await?;
    let client = request.home.as_ref().map_or(client_of(peer), |home| home.client);
    let memory = state.take(client, "the graph and its nodes", bytes_of(&spec, bytes))?;
    let limited = request.home.is_none();
    let home = match request.home {
        Some(home) => home,
        None => home_of(state, peer, &spec).await?,
    };
    let (cluster, number) = (&state.identity.cluster, home.graph);
    let devices = Devices::new(cluster, &home.cpus, home.task)
        .ok_or_else(|| SessionError::Malformed("the devices do not fit the cluster".into()))?;
    let (container, soft) = (request.container, request.soft_placement);
    let place = move || {
        let opened = OpenGraph::new(spec, memory, (container, soft), home, devices)?;
        let names = request.placement.then(|| names(&opened));
        Ok((opened, names))
    };
    let (opened, names) = on_thread(state, place).await?;
    state.graphs.add(peer.connection, number, Arc::new(opened), limited)?;
    Ok((GraphOpened { graph: number }, names.map_or(Payload::EMPTY, |names| payload_of([&names]))))
}

/// Does work that may take long on a thread for it.
///
/// # Errors
/// That of the work, or the message of its panic.
pub(crate) async fn on_thread<T: Send + 'static>(
    state: &State,
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    let _turn = state.planners.acquire().await.expect("never closed");
    let worked = blocking(work).await;
    worked.unwrap_or_else(|panic| Err(SessionError::Malformed(format!("the server panicked: {panic}"))))
}

/// Returns the device of each node, as a tensor of text.
fn names(graph: &OpenGraph) -> Tensor {
    let nodes = (0..graph.spec.nodes.len()).map(|position| NodeId(position as u32));
    let name = |node: NodeId| graph.devices.name(graph.placement.of(node));
    Tensor::from(nodes.map(name).collect::<Vec<String>>())
}

/// Returns what all tasks must know of a graph that a client opens on this task. Asks the tasks that the
/// graph names for their devices.
async fn home_of(state: &Arc<State>, peer: &Peer, spec: &GraphSpec) -> Result<Home, SessionError> {
    let own = state.task();
    let named: BTreeSet<TaskId> =
        spec.nodes.iter().filter_map(|node| node.device).map(|device| named(&device, own)).collect();
    let asked = state.identity.cluster.tasks().map(async |(task, _)| match task {
        task if task == own => Ok(state.config.cpus),
        task if !named.contains(&task) => Ok(0),
        task => match state.describe_other(task, false).await {
            described if described.error.is_none() => Ok(described.cpus),
            described => Err(Unreachable(described.error.unwrap_or_default())),
        },
    });
    let cpus = join_all(asked).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (task, incarnation) = (own, state.identity.incarnation);
    let read_only = peer.guest.is_some_and(|role| !role.may_change());
    Ok(Home { task, incarnation, graph: state.number(), client: client_of(peer), cpus, read_only })
}

/// Returns the task that a request names. The task may not exist.
fn named(request: &OpDeviceSpec, home: TaskId) -> TaskId {
    let job = request.job.unwrap_or(home.job);
    TaskId::new(job, request.task.unwrap_or(if job == home.job { home.index } else { 0 }))
}

/// Returns a number that identifies the program behind a connection, also after it has dialled again.
const fn client_of(peer: &Peer) -> u64 {
    peer.incarnation.0 ^ peer.nonce.rotate_left(32) ^ (peer.task.index as u64)
}

/// Opens a graph on another task, unless it is open there.
///
/// # Errors
/// If the task cannot be reached, or refuses the graph.
pub(crate) async fn open_there(state: &State, graph: &OpenGraph, index: usize) -> Result<(), SessionError> {
    let task = graph.devices.task(index);
    let peer = state.peers.connection(task).await?;
    let mut opened = graph.opened.lock().await;
    let Some(opened) = &mut *opened else {
        return Err(SessionError::UnknownGraph(graph.home.graph));
    };
    if opened.get(&index) == Some(&peer.number) {
        return Ok(());
    }
    let request = Request {
        container: graph.container.clone(),
        soft_placement: graph.soft_placement,
        placement: false,
        home: Some(graph.home.clone()),
    };
    let bytes = encode_graph(&graph.spec);
    let sent = peer.connection.call::<GraphOpened>(request, crate::payload::payload_of_bytes([&bytes[..]]));
    sent.await.map_err(|error| Unreachable(error.to_string()))?;
    opened.insert(index, peer.number);
    Ok(())
}
