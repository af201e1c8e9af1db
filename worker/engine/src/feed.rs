//! The data of one step. This module must not depend on data sets or the order of examples.

use pushpull_messages::input::Column;

use super::fetch::Groups;

/// The data that one step runs on, in addition to the variables.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The columns of the worker's whole batch, in the order of the column specs that the program was
    /// compiled for.
    pub columns: &'a [Column],
    /// The number of examples in the whole batch.
    pub examples: usize,
    /// The index of the first example of this device's part of the batch. The number of examples in the part
    /// is fixed in the program.
    pub first: usize,
    /// The seed of this step's random numbers: different for every step, but the same on all devices.
    pub random: u64,
    /// The groups of fetches that a training step computes in addition to the loss and the gradients.
    pub groups: Groups,
    /// Whether a training step records the time of each operation.
    pub timed: bool,
    /// Whether a training step on a device records when the device copies and computes.
    pub traced: bool,
    /// The number of the batch, which no other batch has; 0 for a batch without a number.
    pub number: u64,
    /// The batch of the step after this one, which a device may copy while it computes; `None` if it is not
    /// known.
    pub next: Option<NextBatch<'a>>,
}

/// A batch that was announced.
#[derive(Clone, Copy, Debug)]
pub struct NextBatch<'a> {
    /// Its number, which is not 0.
    pub number: u64,
    /// Its columns, in the order of the column specs that the program was compiled for.
    pub columns: &'a [Column],
    /// The number of examples in it.
    pub examples: usize,
}

impl<'a> Feed<'a> {
    /// Returns the feed for a whole batch, with the seed 0, without fetches, times and numbers.
    pub const fn whole(columns: &'a [Column], examples: usize) -> Self {
        Self {
            columns,
            examples,
            first: 0,
            random: 0,
            groups: Groups::NONE,
            timed: false,
            traced: false,
            number: 0,
            next: None,
        }
    }
}
