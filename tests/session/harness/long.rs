//! A graph whose run takes long, and tells other clients when it has begun.

use pushpull::{DType, GraphBuilder, GraphSpec, InitializerSpec, NodeId, Session, Tensor};

use super::wait::{PATIENCE, wait_until};

/// The number of rows of the matrices that are multiplied.
const ROWS: usize = 512;

/// A graph whose run changes a variable, and then multiplies matrices on another device.
pub(crate) struct Long {
    graph: GraphSpec,
    begun: NodeId,
    product: NodeId,
    watch: GraphSpec,
    watched: NodeId,
}

impl Long {
    /// Makes a graph that has the variable on device `flag` and makes `products` products on device `place`.
    pub(crate) fn new(flag: &str, place: &str, products: usize) -> Self {
        let mut g = GraphBuilder::new("long");
        let count = flag_of(&mut g, flag);
        let one = g.value(1.0f32);
        let begun = g.assign_add(count, one);
        let elements = vec![1.0 / ROWS as f32; ROWS * ROWS];
        let matrix = Tensor::new([ROWS, ROWS], elements).expect("a square");
        let product = g.device(place, |g| {
            let matrix = g.value(matrix);
            let mut x = g.mul(matrix, begun);
            for _ in 0..products {
                x = g.matmul(x, matrix);
            }
            g.reduce(pushpull::ReductionOp::Sum, x, &[0, 1], false)
        });
        let graph = g.finish_session().expect("a graph");
        let mut g = GraphBuilder::new("watch");
        let watched = flag_of(&mut g, flag);
        Self { graph, begun, product, watch: g.finish_session().expect("a graph"), watched }
    }

    /// Runs the graph, and returns the sum of the last product: the number of runs, times the rows.
    pub(crate) fn run(&self, session: &Session) -> Result<f32, String> {
        let fetched = session.run(&self.graph, &[], &[self.begun, self.product]);
        fetched.map(|values| values[1].f32s().expect("a float")[0]).map_err(|error| error.to_string())
    }

    /// Returns the sum that the first run has.
    pub(crate) fn sum() -> f32 {
        ROWS as f32
    }

    /// Waits until this number of runs have begun.
    #[track_caller]
    pub(crate) fn wait_until_begun(&self, session: &Session, runs: u32) {
        wait_until("the begin of a run", PATIENCE, || {
            let value = session.run(&self.watch, &[], &[self.watched]).expect("a variable can be read");
            (value[0].f32s().expect("a float")[0] >= runs as f32).then_some(())
        });
    }
}

fn flag_of(g: &mut GraphBuilder, device: &str) -> NodeId {
    g.device(device, |g| g.variable_of("begun", [], DType::F32, InitializerSpec::Zeros))
}
