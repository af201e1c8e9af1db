//! Runs a program on batches: the instructions in order, all working memory in one arena that is there from the start.
//! A step allocates nothing.

use std::ops::Range;

use pushpull_messages::buffer::Buffer;
use pushpull_messages::id::VariableId;

use super::error::{StepError, StepFault};
use super::execute::{Outputs, Sources, execute};
use super::memory::Place;
use super::program::Program;
use crate::gradients::Gradients;
use crate::input::Batch;
use crate::values::Values;

/// A program and its arena.
pub struct Executor {
    program: Program,
    arena: Buffer,
    results: Vec<f32>,
}

/// What one step runs on, beside the values.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The whole batch of a worker.
    pub batch: &'a Batch,
    /// The first of its examples that this device works on; how many there are the program says.
    pub first: usize,
    /// What this step's random numbers are drawn from: another for every step, the same for all devices.
    pub random: u64,
}

impl<'a> Feed<'a> {
    /// A whole batch, without random numbers.
    pub const fn whole(batch: &'a Batch) -> Self {
        Self { batch, first: 0, random: 0 }
    }
}

impl Executor {
    /// With all the memory it will ever need.
    pub fn new(program: Program) -> Self {
        let arena = Buffer::zeroed(program.arena_bytes());
        let results = Vec::with_capacity(program.results.iter().map(|(_, elements)| elements).sum());
        Self { program, arena, results }
    }

    /// What it runs.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Runs forward, and backward where the program has gradients. Gives the loss, then each metric's numbers.
    ///
    /// The loss is the mean over the program's examples, and the gradients are of that mean times the share that
    /// these examples have of the batch, so that the gradients of several devices add up to those of the whole batch.
    /// `complete` is told of each gradient as soon as it is complete, in the program's
    /// [`gradient_order`](Program::gradient_order).
    ///
    /// # Errors
    /// Where a label is none of the classes or an id none of the rows; the gradients are not to be used then.
    ///
    /// # Panics
    /// Where the batch is not what the program was compiled for.
    pub fn run(
        &mut self,
        feed: Feed<'_>,
        values: &Values,
        mut gradients: Option<&mut Gradients>,
        mut complete: impl FnMut(&mut Gradients, VariableId),
    ) -> Result<&[f32], StepError> {
        let Self { program, arena, results } = self;
        assert!(
            feed.first + program.batch <= feed.batch.examples,
            "the program was compiled for a larger batch"
        );
        let arena = arena.as_f32_mut();
        if let Some(gradients) = gradients.as_deref_mut() {
            for &variable in &program.unused {
                gradients.variable_mut(variable).fill(0.0);
                complete(gradients, variable);
            }
        }
        for instruction in &program.instructions {
            let mut cut = [const { 0..0 }; OUTPUTS + 1];
            cut[OUTPUTS] = instruction.scratch.clone();
            for (cut, output) in cut.iter_mut().zip(&instruction.outputs) {
                if let Place::Arena(range) = output {
                    *cut = range.clone();
                }
            }
            let ([mut output, second, third, scratch], rest) = carve(arena, &cut);
            if let [Place::Gradient(variable)] = instruction.outputs[..] {
                let gradients = gradients.as_deref_mut().expect("this program computes gradients");
                output = gradients.variable_mut(variable);
            }
            let sources = Sources { rest, values, feed, program };
            let outputs = Outputs { output, more: [second, third], scratch };
            execute(instruction, outputs, &sources)
                .map_err(|fault: StepFault| StepError { node: program.label(instruction.origin), fault })?;
            if let (Some(variable), Some(gradients)) = (instruction.completes, gradients.as_deref_mut()) {
                complete(gradients, variable);
            }
        }
        results.clear();
        for (place, elements) in &program.results {
            match place {
                Place::Arena(range) => results.extend_from_slice(&arena[range.clone()]),
                Place::Variable(variable) => results.extend_from_slice(values.variable(*variable)),
                other => unreachable!("{other:?} of {elements} is no result"),
            }
        }
        Ok(results)
    }
}

/// Most outputs of one kernel.
const OUTPUTS: usize = 3;

/// Cuts out of the arena what an instruction writes, and leaves the rest to be read. The plan keeps all of these apart;
/// where it did not, this would panic rather than mix them up.
fn carve<'a, const N: usize>(
    arena: &'a mut [f32],
    wanted: &[Range<usize>; N],
) -> ([&'a mut [f32]; N], Rest<'a>) {
    let mut order: [usize; N] = std::array::from_fn(|position| position);
    order.sort_unstable_by_key(|&position| wanted[position].start);
    let mut cut: [&'a mut [f32]; N] = std::array::from_fn(|_| Default::default());
    let mut gaps: [(usize, &'a [f32]); GAPS] = [(0, &[]); GAPS];
    let (mut behind, mut start, mut gap) = (arena, 0, 0);
    for position in order {
        let range = &wanted[position];
        if range.is_empty() {
            continue;
        }
        let (before, at) = behind.split_at_mut(range.start - start);
        let (taken, after) = at.split_at_mut(range.len());
        gaps[gap] = (start, before);
        cut[position] = taken;
        (behind, start, gap) = (after, range.end, gap + 1);
    }
    gaps[gap] = (start, behind);
    (cut, Rest { gaps })
}

/// Around the ranges that are cut out there are at most so many gaps.
const GAPS: usize = OUTPUTS + 2;

/// The arena without what is being written.
pub(super) struct Rest<'a> {
    /// Where each begins in the arena, in order.
    gaps: [(usize, &'a [f32]); GAPS],
}

impl<'a> Rest<'a> {
    pub fn get(&self, range: &Range<usize>) -> &'a [f32] {
        let holds = |(start, gap): &&(usize, &[f32])| *start <= range.start && range.end <= start + gap.len();
        let (start, gap) = self.gaps.iter().find(holds).expect("what is read is not being written");
        &gap[range.start - start..range.end - start]
    }
}
