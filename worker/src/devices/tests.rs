//! Tests that a step of several batches has the gradient of one large batch.

use proptest::prelude::*;
use pushpull_engine::Groups;
use pushpull_input::Column;
use pushpull_messages::device::{Device as DeviceSpec, DeviceKind};
use pushpull_messages::graph::{GraphBuilder, GraphSpec, UnaryOp};
use pushpull_messages::id::{PlacementEpoch, ShardId, TaskId, VariableId};
use pushpull_messages::input::ColumnSpec;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::TensorSpec;
use pushpull_messages::variable::InitializerSpec;
use pushpull_transport::buffer::BufferPool;

use super::*;
use crate::client::Layout;

fn graph() -> GraphSpec {
    let mut g = GraphBuilder::new("network");
    let (features, labels) = (g.input("features", [3]), g.input("labels", []));
    let hidden = g.variable("hidden", [3, 4], InitializerSpec::Zeros);
    let output = g.variable("output", [4, 1], InitializerSpec::Zeros);
    let x = g.matmul(features, hidden);
    let x = g.unary(UnaryOp::Tanh, x);
    let x = g.matmul(x, output);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    g.finish(loss, &[]).unwrap()
}

/// A graph, the values of its variables, and buffers for its gradients.
struct Model {
    graph: GraphSpec,
    layout: Arc<Layout>,
    pool: BufferPool,
    values: Arc<Values>,
}

impl Model {
    fn new(values: &[f32]) -> Self {
        let graph = graph();
        let shard = ShardId::new(0, 0);
        let slices = graph.variables.iter().enumerate().map(|(id, variable)| PlacedSlice {
            slice: SliceSpec::whole(VariableId(id as u32), variable),
            shard,
        });
        let slices = slices.collect();
        let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices };
        let (layout, pool) = (Arc::new(Layout::new(&placement, &graph.variables)), BufferPool::default());
        let mut start = Gradients::take(&layout, &pool);
        start.variable_mut(VariableId(0)).copy_from_slice(&values[..12]);
        start.variable_mut(VariableId(1)).copy_from_slice(&values[12..16]);
        Self { graph, layout, pool, values: Arc::new(start.into_values()) }
    }

    /// Runs one step, which adds up the gradients of `batches` batches. Returns its loss and its gradients.
    /// `numbers` has three features and a label for each example.
    async fn step(&self, numbers: &[f32], batches: usize, devices: usize) -> (f32, Vec<f32>) {
        let examples = numbers.len() / 4 / batches;
        let example = |name: &str, example| ColumnSpec { name: name.into(), example };
        let columns = [example("features", TensorSpec::f32([3])), example("labels", TensorSpec::f32([]))];
        let parts = parts(examples, devices).unwrap();
        let replica = |part: &Range<usize>| {
            let device = DeviceSpec { task: TaskId::worker(0), kind: DeviceKind::Cpu, index: 0 };
            let (compute, examples) = (Compute::new(1, 1).unwrap(), part.len());
            let (graph, columns, fetches) = (&self.graph, &columns, &[]);
            let config = ReplicaConfig { graph, examples, columns, device, compute, fetches };
            Box::new(GraphReplica::new(config).unwrap()) as Box<dyn Replica>
        };
        let devices = Devices::start(parts.iter().map(replica).collect(), true, parts, &self.graph);
        let (mut sums, mut total) = (None::<Vec<Gradients>>, 0.0);
        for (index, numbers) in numbers.chunks(4 * examples).enumerate() {
            let features = numbers.chunks(4).flat_map(|example| example[..3].to_vec()).collect();
            let labels = numbers.chunks(4).map(|example| example[3]).collect();
            let columns = vec![Column::F32(features), Column::F32(labels)];
            let batch = Arc::new(Batch { columns, examples, resume_at: None });
            let mut memory: Vec<_> =
                (0..devices.count()).map(|_| Gradients::take(&self.layout, &self.pool)).collect();
            if let Some(sums) = sums.take() {
                let factor = if index + 1 == batches { 1.0 / batches as f32 } else { 1.0 };
                memory.iter_mut().zip(sums).for_each(|(next, sum)| next.follow(sum, factor));
            }
            let recorded = Recorded { traced: false, ops: false, groups: Groups::NONE };
            let fed = Fed { batch: &batch, number: 0, next: None };
            let computed = devices.compute(fed, 0, &self.values, memory, recorded).await.unwrap();
            total += computed.loss;
            sums = Some(computed.gradients);
        }
        let gradients = devices.reduce(sums.expect("there is a batch"), None).await.unwrap();
        let all = [0, 1].iter().flat_map(|&variable| gradients.variable(VariableId(variable)).to_vec());
        (total / batches as f32, all.collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn several_batches_have_the_gradient_of_one_large_batch(
        batches in 1usize..6,
        devices in 1usize..4,
        more in 0usize..4,
        values in prop::collection::vec(-1f32..1.0, 16),
        numbers in prop::collection::vec(-2f32..2.0, 4 * 5 * 6),
    ) {
        let model = Model::new(&values);
        let numbers = &numbers[..4 * batches * (devices + more)];
        let (loss, gradients, expected_loss, expected, again) =
            actix_rt::System::new().block_on(async {
                let (loss, gradients) = model.step(numbers, batches, devices).await;
                let (expected_loss, expected) = model.step(numbers, 1, 1).await;
                (loss, gradients, expected_loss, expected, model.step(numbers, batches, devices).await)
            });
        prop_assert!((loss - expected_loss).abs() <= 1e-5 * (1.0 + expected_loss.abs()));
        let size = expected.iter().fold(1.0, |size: f32, element| size.max(element.abs()));
        for (got, want) in gradients.iter().zip(&expected) {
            prop_assert!((got - want).abs() <= 1e-5 * size, "{got}, not {want}");
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&gradients), bits(&again.1), "the order of addition is fixed");
    }
}
