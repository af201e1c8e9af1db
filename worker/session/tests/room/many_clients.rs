//! Tests with many clients at once: no answer is lost, none goes to another client, and no change of a shared
//! variable is lost.

use pushpull_messages::graph::{GraphBuilder, GraphSpec};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::{DType, Shape, Tensor, TensorSpec};
use pushpull_messages::variable::InitializerSpec;
use pushpull_session::SessionConfig;

use crate::cluster::Cluster;

const CLIENTS: usize = 8;
const RUNS: i64 = 500;

/// A graph that adds 1 to a fed number, and counts its runs.
struct Counting {
    graph: GraphSpec,
    fed: NodeId,
    next: NodeId,
    steps: NodeId,
    counted: NodeId,
}

impl Counting {
    /// Builds the graph. The counter is on this task.
    fn new(task: usize) -> Self {
        let mut g = GraphBuilder::new("counting");
        let fed = g.placeholder("fed", TensorSpec::new(DType::I64, Shape::scalar()));
        let one = g.value(1i64);
        let next = g.add(fed, one);
        let (steps, counted) = g.device(&format!("/job:worker/task:{task}"), |g| {
            let steps = g.variable_of("steps", [], DType::I64, InitializerSpec::Zeros);
            (steps, g.assign_add(steps, one))
        });
        Self { graph: g.finish_session().unwrap(), fed, next, steps, counted }
    }
}

/// Lets clients run a graph at the same time. The counter is on `task`.
fn check(task: usize, runs: i64) {
    let cluster = Cluster::new(task + 1, &SessionConfig::default());
    let counting = Counting::new(task);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (cluster, counting) = (&cluster, &counting);
            scope.spawn(move || {
                let client = cluster.client(0);
                let graph = client.open_in("shared", &counting.graph).unwrap();
                for run in 0..runs {
                    let value = (number as i64) << 32 | run;
                    let feeds = [(counting.fed, Tensor::from(value))];
                    let fetched = client.run(graph, &feeds, &[counting.next], &[counting.counted]).unwrap();
                    assert_eq!(fetched[0].i64s(), Some(&[value + 1][..]));
                }
            });
        }
    });
    let client = cluster.client(0);
    let graph = client.open_in("shared", &counting.graph).unwrap();
    let steps = client.run(graph, &[], &[counting.steps], &[]).unwrap();
    assert_eq!(steps[0].i64s(), Some(&[CLIENTS as i64 * runs][..]));
}

#[test]
fn clients_at_once_lose_and_mix_up_nothing() {
    check(0, RUNS);
}

#[test]
fn clients_at_once_share_a_counter_elsewhere() {
    check(1, RUNS / 10);
}
