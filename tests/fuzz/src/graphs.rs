//! Inputs for the target `session`: random bytes, changed bytes of valid graphs, and valid encodings of
//! changed graphs.

use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::message::encode_graph;

use crate::corpus::Corpus;
use crate::numbers::Numbers;
use crate::seeds::session_graphs;

/// The largest number of random bytes of an input.
const RANDOM_BYTES_MAX: usize = 256;
/// The largest number of changes of an input.
const CHANGES_MAX: usize = 6;
/// Bytes that begin something in MessagePack, or are limits of it.
const MARKERS: [u8; 16] =
    [0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xc0, 0xc3, 0xc4, 0xca, 0xcf, 0xd3, 0xdd, 0xdf, 0xff];

/// Valid graphs with their encodings, from which inputs are made.
#[derive(Debug)]
struct Inputs {
    graphs: Vec<GraphSpec>,
    encoded: Vec<Vec<u8>>,
}

impl Inputs {
    /// Begins with these graphs; there must be at least one.
    fn new(graphs: Vec<GraphSpec>) -> Self {
        let encoded = graphs.iter().map(|graph| encode_graph(graph).to_vec()).collect();
        Self { graphs, encoded }
    }

    /// Returns an input: one of 16 is random, and half of the others are changed graphs.
    fn draw(&self, numbers: &mut Numbers) -> Vec<u8> {
        let mut input = vec![numbers.byte()];
        match numbers.below(16) {
            0 => input.extend((0..numbers.below(RANDOM_BYTES_MAX)).map(|_| numbers.byte())),
            choice if choice % 2 == 0 => {
                let mut graph = self.graphs[numbers.below(self.graphs.len())].clone();
                (0..numbers.changes(CHANGES_MAX)).for_each(|_| self.change_graph(&mut graph, numbers));
                input.extend_from_slice(&encode_graph(&graph));
            }
            _ => {
                input.extend_from_slice(&self.encoded[numbers.below(self.encoded.len())]);
                (0..numbers.changes(CHANGES_MAX)).for_each(|_| self.change_bytes(&mut input, numbers));
            }
        }
        input
    }

    /// Changes an encoded graph at a random place.
    fn change_bytes(&self, bytes: &mut Vec<u8>, numbers: &mut Numbers) {
        if bytes.len() < 2 {
            return bytes.push(numbers.byte());
        }
        let at = 1 + numbers.below(bytes.len() - 1);
        match numbers.below(7) {
            0 => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes[at] = numbers.byte(),
            2 => bytes[at] = MARKERS[numbers.below(MARKERS.len())],
            3 => bytes.insert(at, numbers.byte()),
            4 => drop(bytes.remove(at)),
            5 => bytes.truncate(at),
            _ => {
                let other = &self.encoded[numbers.below(self.encoded.len())];
                let begin = numbers.below(other.len());
                let end = other.len().min(begin + 1 + numbers.below(64));
                bytes.splice(at..at, other[begin..end].iter().copied());
            }
        }
    }

    /// Changes a node or a variable of a graph, mostly to what occurs elsewhere in the graphs.
    fn change_graph(&self, graph: &mut GraphSpec, numbers: &mut Numbers) {
        let other = &self.graphs[numbers.below(self.graphs.len())];
        if graph.nodes.is_empty() || other.nodes.is_empty() {
            return;
        }
        let (at, from) = (numbers.below(graph.nodes.len()), numbers.below(other.nodes.len()));
        let count = graph.nodes.len();
        let node = &mut graph.nodes[at];
        match numbers.below(9) {
            0 => node.op = other.nodes[from].op.clone(),
            1 => node.inputs = other.nodes[from].inputs.clone(),
            2 => node.inputs.push(NodeId(numbers.below(count + 1) as u32)),
            3 => drop(node.inputs.pop()),
            4 => node.inputs.iter_mut().for_each(|input| *input = NodeId(numbers.below(at.max(1)) as u32)),
            5 => node.device = other.nodes[from].device,
            6 => graph.nodes.push(other.nodes[from].clone()),
            7 => graph.nodes.swap(at, numbers.below(count)),
            _ => self.change_variable(graph, numbers),
        }
    }

    fn change_variable(&self, graph: &mut GraphSpec, numbers: &mut Numbers) {
        let other = &self.graphs[numbers.below(self.graphs.len())];
        if graph.variables.is_empty() || other.variables.is_empty() {
            return;
        }
        let at = VariableId(numbers.below(graph.variables.len()) as u32).index();
        let from = &other.variables[numbers.below(other.variables.len())];
        let variable = &mut graph.variables[at];
        match numbers.below(4) {
            0 => variable.shape = from.shape.clone(),
            1 => variable.dtype = from.dtype,
            2 => graph.variables.push(from.clone()),
            _ => {
                let extents = &mut variable.shape.0;
                let extent = [0, 1, 2, 1 << 20, usize::MAX][numbers.below(5)];
                match extents.is_empty() {
                    true => extents.push(extent),
                    false => {
                        let at = numbers.below(extents.len());
                        extents[at] = extent;
                    }
                }
            }
        }
    }
}

/// Draws an input of the target `session`, whose graphs are changed, too.
pub(crate) fn draw_graph(_: &Corpus, numbers: &mut Numbers, input: &mut Vec<u8>) {
    thread_local! {
        static INPUTS: Inputs = Inputs::new(session_graphs());
    }
    *input = INPUTS.with(|inputs| inputs.draw(numbers));
}
