//! Strategies that choose a ps task for each variable of a session's graph.

use pushpull_messages::graph::{NodeSpec, Op, SessionOp};
use pushpull_messages::tensor::TensorSpec;
use pushpull_messages::variable::VariableSpec;

/// The bytes that a text counts for, whose length is not known before it is assigned.
const TEXT_BYTES: u64 = 64;

/// An operation that is placed on a ps task, such as a variable.
#[derive(Clone, Copy, Debug)]
pub struct PsOp<'a> {
    /// The node of the operation.
    pub node: &'a NodeSpec,
    /// The variable that the operation reads; `None` for operations of other kinds.
    pub variable: Option<&'a VariableSpec>,
}

/// Chooses the ps task of an operation. Every `FnMut(&PsOp<'_>) -> u32` is a strategy.
pub trait PsStrategy: Send {
    /// Returns the index of the ps task for the next operation. It is called once for each operation, in the
    /// order of the graph.
    fn task(&mut self, op: &PsOp<'_>) -> u32;
}

impl<F: FnMut(&PsOp<'_>) -> u32 + Send> PsStrategy for F {
    fn task(&mut self, op: &PsOp<'_>) -> u32 {
        self(op)
    }
}

/// Chooses the tasks in turn: 0, 1, …, and then 0 again.
#[derive(Clone, Debug)]
pub(super) struct RoundRobin {
    tasks: u32,
    next: u32,
}

impl RoundRobin {
    /// Makes the strategy for at least one task.
    pub const fn new(tasks: u32) -> Self {
        Self { tasks, next: 0 }
    }
}

impl PsStrategy for RoundRobin {
    fn task(&mut self, _: &PsOp<'_>) -> u32 {
        let task = self.next;
        self.next = (task + 1) % self.tasks;
        task
    }
}

/// Chooses the task with the lowest load so far; of several, the one with the lowest index.
///
/// Wanted property: (A) the highest load is at most the mean load of the tasks plus the largest load of one
/// operation.
#[derive(Clone, Debug)]
pub struct GreedyLoadBalancing<F> {
    loads: Vec<u64>,
    load: F,
}

impl<F: FnMut(&PsOp<'_>) -> u64> GreedyLoadBalancing<F> {
    /// Makes a strategy for `num_tasks` tasks. `load_fn` returns the load of an operation, for example
    /// [`byte_size_load_fn`].
    ///
    /// # Panics
    /// If `num_tasks` is 0.
    pub fn new(num_tasks: u32, load_fn: F) -> Self {
        assert!(num_tasks > 0, "a strategy needs at least one ps task");
        Self { loads: vec![0; num_tasks as usize], load: load_fn }
    }
}

impl<F: FnMut(&PsOp<'_>) -> u64 + Send> PsStrategy for GreedyLoadBalancing<F> {
    fn task(&mut self, op: &PsOp<'_>) -> u32 {
        let loads = self.loads.iter().enumerate();
        let (task, _) = loads.min_by_key(|(_, load)| **load).expect("there is a task");
        self.loads[task] = self.loads[task].saturating_add((self.load)(op));
        task as u32
    }
}

/// Returns the size of a variable or constant in bytes, and 0 for other operations. An element of text counts
/// as 64 bytes.
pub fn byte_size_load_fn(op: &PsOp<'_>) -> u64 {
    let bytes = |tensor: &TensorSpec| {
        let elements = tensor.shape.checked_elements().unwrap_or(usize::MAX) as u64;
        elements.saturating_mul(tensor.dtype.bytes().map_or(TEXT_BYTES, |bytes| bytes as u64))
    };
    match (op.variable, &op.node.op) {
        (Some(variable), _) => bytes(&TensorSpec::new(variable.dtype, variable.shape.clone())),
        (None, Op::Constant { .. }) => 4,
        (None, Op::Session(SessionOp::Constant { value })) => bytes(&value.spec()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::VariableId;
    use pushpull_messages::tensor::{DType, Shape, Tensor};
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    fn node(op: Op) -> NodeSpec {
        NodeSpec { name: "node".into(), op, inputs: Vec::new(), device: None }
    }

    fn variable(dtype: DType, shape: impl Into<Shape>) -> VariableSpec {
        let (shape, initializer) = (shape.into(), InitializerSpec::Zeros);
        VariableSpec { name: "v".into(), shape, dtype, initializer, trainable: false, device: None }
    }

    #[test]
    fn a_load_is_the_size_in_bytes() {
        let read = node(Op::Variable { variable: VariableId(0) });
        for (dtype, bytes) in [(DType::F32, 24), (DType::F64, 48), (DType::Bool, 6), (DType::Text, 384)] {
            let op = PsOp { node: &read, variable: Some(&variable(dtype, [2, 3])) };
            assert_eq!(byte_size_load_fn(&op), bytes, "{dtype}");
        }
        let value = Tensor::from(vec![1i64, 2]);
        let constant = node(Op::Session(SessionOp::Constant { value }));
        assert_eq!(byte_size_load_fn(&PsOp { node: &constant, variable: None }), 16);
        assert_eq!(byte_size_load_fn(&PsOp { node: &node(Op::ToFloat), variable: None }), 0);
    }

    proptest! {
        /// Tests (A), and that every variable is on one of the tasks.
        #[test]
        fn greedy_loads_stay_close_to_the_mean(
            sizes in prop::collection::vec(1usize..5000, 1..100),
            tasks in 1u32..9,
        ) {
            let mut strategy = GreedyLoadBalancing::new(tasks, byte_size_load_fn);
            let (mut loads, read) = (vec![0; tasks as usize], node(Op::Variable { variable: VariableId(0) }));
            for &size in &sizes {
                let variable = variable(DType::F32, [size]);
                let task = strategy.task(&PsOp { node: &read, variable: Some(&variable) });
                prop_assert!(task < tasks);
                loads[task as usize] += 4 * size;
            }
            let highest = *loads.iter().max().unwrap();
            let (sum, largest) = (loads.iter().sum::<usize>(), 4 * sizes.iter().max().unwrap());
            prop_assert!(highest * tasks as usize <= sum + largest * tasks as usize);
        }
    }
}
