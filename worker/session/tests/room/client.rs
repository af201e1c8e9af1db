//! A client of a server, which sends the messages of sessions one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{Incarnation, NodeId};
use pushpull_messages::message::{
    CloseGraph, Fed, GraphClosed, GraphOpened, Message, OpenGraph, Ran, Run, encode_graph,
};
use pushpull_messages::tensor::Tensor;
use pushpull_session::{payload_of, payload_of_bytes, tensors_of};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{CallError, Connection, Guest, Patience, Tcp, dial_as_guest};
use tokio::runtime::Runtime;

use crate::gates::LIMIT;

/// The number of the last client.
static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// A client. It disconnects when it is dropped.
pub(crate) struct Client {
    runtime: Runtime,
    connection: Connection,
    runs: AtomicU64,
}

impl Client {
    pub(crate) fn new(address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let nonce = CLIENTS.fetch_add(1, Ordering::Relaxed) + 1;
        let guest = Guest { index: nonce as u32, incarnation: Incarnation(nonce), nonce };
        let connection = runtime.block_on(async {
            let tcp = Tcp::new(BufferPool::default());
            dial_as_guest(&tcp, address, &guest, Patience::of(Duration::from_secs(10))).await.unwrap()
        });
        Self { runtime, connection, runs: AtomicU64::new(0) }
    }

    pub(crate) fn call<R: TryFrom<Message, Error = Message>>(
        &self,
        message: impl Into<Message>,
        payload: Payload,
    ) -> Result<(R, Payload), CallError> {
        let message = message.into();
        let name = message.name();
        let call = async { tokio::time::timeout(LIMIT, self.connection.call(message, payload)).await };
        self.runtime.block_on(call).unwrap_or_else(|_| panic!("no answer to {name}"))
    }

    /// Opens a graph with variables in this container, and returns its number.
    pub(crate) fn open_in(&self, container: &str, graph: &GraphSpec) -> Result<u64, CallError> {
        let container = container.to_owned();
        let request = OpenGraph { container, soft_placement: false, placement: false, home: None };
        let payload = payload_of_bytes([&encode_graph(graph)[..]]);
        self.call::<GraphOpened>(request, payload).map(|(opened, _)| opened.graph)
    }

    pub(crate) fn open(&self, graph: &GraphSpec) -> Result<u64, CallError> {
        self.open_in("", graph)
    }

    pub(crate) fn close(&self, graph: u64) {
        self.call::<GraphClosed>(CloseGraph { graph, home: None }, Payload::EMPTY).unwrap();
    }

    /// Requests a run, and disconnects when `end` is complete, although no answer has come.
    pub(crate) fn run_until(self, graph: u64, fetches: &[NodeId], end: impl Future<Output = ()>) {
        let (fetches, targets) = (fetches.to_vec(), Vec::new());
        let request = Run { graph, number: 1, feeds: Vec::new(), fetches, targets };
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                answer = self.connection.call::<Ran>(request, Payload::EMPTY) => {
                    panic!("the run has ended: {answer:?}")
                }
                () = end => {}
            }
        });
    }

    /// Runs what the fetches and targets need, and returns the fetches.
    pub(crate) fn run(
        &self,
        graph: u64,
        feeds: &[(NodeId, Tensor)],
        fetches: &[NodeId],
        targets: &[NodeId],
    ) -> Result<Vec<Arc<Tensor>>, CallError> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let fed = feeds.iter().map(|(node, value)| Fed { node: *node, tensor: value.spec() }).collect();
        let (fetches, targets) = (fetches.to_vec(), targets.to_vec());
        let request = Run { graph, number, feeds: fed, fetches, targets };
        let (ran, payload) = self.call::<Ran>(request, payload_of(feeds.iter().map(|(_, value)| value)))?;
        Ok(tensors_of(&ran.fetches, &payload).unwrap())
    }

    /// Returns the reason with which the server has refused a request.
    #[track_caller]
    pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
        match result {
            Err(CallError::Refused { refusal, .. }) => refusal.reason,
            other => panic!("not refused: {other:?}"),
        }
    }
}
