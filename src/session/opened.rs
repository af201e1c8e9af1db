//! The graphs that a session has opened on its server. A graph is sent once, and closed when many others have
//! been used since.

use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::message::{CloseGraph, GraphClosed, GraphOpened, OpenGraph, encode_graph};
use pushpull_messages::tensor::{DType, TensorSpec};
use pushpull_session::{payload_of_bytes, tensors_of};
use pushpull_transport::Connection;
use pushpull_transport::buffer::Payload;

use super::error::SessionError;
use super::io::Io;
use super::options::SessionOptions;

/// The number of graphs that stay open.
const GRAPHS_MAX: usize = 16;

/// The open graphs; the graph that was used last is at the end.
#[derive(Debug, Default)]
pub(super) struct Opened(Mutex<Vec<Arc<OpenedGraph>>>);

/// An open graph. It is not closed while a run uses it.
#[derive(Debug)]
pub(super) struct OpenedGraph {
    graph: GraphSpec,
    /// The number of the graph on the server.
    pub number: u64,
}

impl Opened {
    /// Returns an open graph. Opens it if it is not open.
    ///
    /// # Errors
    /// If the server refuses the graph or is lost.
    pub fn open(
        &self,
        connection: &Connection,
        io: &Io,
        graph: &GraphSpec,
        options: &SessionOptions,
    ) -> Result<Arc<OpenedGraph>, SessionError> {
        // The lock is held while the graph is opened, so that two threads do not open it twice.
        let mut open = self.0.lock();
        if let Some(position) = open.iter().position(|own| own.graph == *graph) {
            open[position..].rotate_left(1);
            return Ok(Arc::clone(open.last().expect("a graph was found")));
        }
        let (opened, payload) = send(connection, io, graph, options, options.log_placement)?;
        if options.log_placement {
            let devices = devices(graph, &payload)?;
            for (node, device) in graph.nodes.iter().zip(devices) {
                tracing::info!(graph = graph.name, op = node.op.name(), %device, "placed {}", node.name);
            }
        }
        let made = Arc::new(OpenedGraph { graph: graph.clone(), number: opened.graph });
        open.push(Arc::clone(&made));
        if open.len() > GRAPHS_MAX
            && let Some(unused) = open.iter().position(|own| Arc::strong_count(own) == 1)
        {
            let close = CloseGraph { graph: open.remove(unused).number, home: None };
            let _: (GraphClosed, _) = io.wait(connection.call(close, Payload::EMPTY))?;
        }
        Ok(made)
    }

    /// Returns the device of each node of a graph.
    ///
    /// # Errors
    /// If the server refuses the graph or is lost.
    pub fn placement(
        &self,
        connection: &Connection,
        io: &Io,
        graph: &GraphSpec,
        options: &SessionOptions,
    ) -> Result<Vec<String>, SessionError> {
        let (GraphOpened { graph: number }, payload) = send(connection, io, graph, options, true)?;
        let close = CloseGraph { graph: number, home: None };
        let _: (GraphClosed, _) = io.wait(connection.call(close, Payload::EMPTY))?;
        devices(graph, &payload)
    }
}

/// Decodes the device of each node of a graph.
fn devices(graph: &GraphSpec, payload: &Payload) -> Result<Vec<String>, SessionError> {
    let spec = TensorSpec::new(DType::Text, [graph.nodes.len()]);
    let names = tensors_of([&spec], payload).map_err(|error| SessionError::Answer(error.to_string()))?;
    let names = names.first().and_then(|names| names.texts());
    names.map(<[String]>::to_vec).ok_or_else(|| SessionError::Answer("the server returned no devices".into()))
}

fn send(
    connection: &Connection,
    io: &Io,
    graph: &GraphSpec,
    options: &SessionOptions,
    placement: bool,
) -> Result<(GraphOpened, Payload), SessionError> {
    let SessionOptions { container, soft_placement, .. } = options.clone();
    let request = OpenGraph { container, soft_placement, placement, home: None };
    let bytes = encode_graph(graph);
    Ok(io.wait(connection.call(request, payload_of_bytes([&bytes[..]])))?)
}
