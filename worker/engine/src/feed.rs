//! The data of one step. Knows neither data sets nor the order of examples.

use pushpull_messages::input::Column;

/// The data that one step runs on, beside the variables.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The columns of a worker's whole batch, in the order of the specs that the program was compiled for.
    pub columns: &'a [Column],
    /// The number of examples in the whole batch.
    pub examples: usize,
    /// The first example of this device's part of the batch; the program knows the number of examples in a
    /// part.
    pub first: usize,
    /// The seed of this step's random numbers: different for every step, the same for all devices.
    pub random: u64,
}

impl<'a> Feed<'a> {
    /// Returns the feed of a whole batch, with the seed 0.
    pub const fn whole(columns: &'a [Column], examples: usize) -> Self {
        Self { columns, examples, first: 0, random: 0 }
    }
}
