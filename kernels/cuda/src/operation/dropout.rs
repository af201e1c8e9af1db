//! Dropout. Its mask is a function of the step's seed and of the index of an element.

use super::{Operation, Slot, count, thread_for_each};
use crate::driver::Argument;
use crate::source::Library;

impl Operation {
    /// x → y, which may replace it, or dy → dx. It computes what [`dropout`](pushpull_kernels::cpu::dropout)
    /// computes with the step's seed and this stream. `example` is the number of elements of an example, and
    /// `rate` must be 0 or more and less than 1.
    pub fn dropout(elements: usize, rate: f32, stream: u64, example: usize) -> Self {
        if elements == 0 {
            return Self::nothing();
        }
        let numbers = [
            Slot::Step,
            count(elements),
            Slot::Number(Argument::U64(stream)),
            count(example),
            Slot::Number(Argument::F32(rate)),
            Slot::Number(Argument::F32(1.0 / (1.0 - rate))),
        ];
        let arguments = [&[Slot::Output(0), Slot::Input(0)], &numbers[..]].concat();
        // A thread has four elements; the first and the last four may be incomplete.
        let grid = thread_for_each(elements.div_ceil(4) + 1);
        Self::default().then(Library::Dropout, "dropout", grid, &arguments)
    }
}
