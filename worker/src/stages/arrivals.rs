//! The values that arrive for one run of a stage, and the news that end the run's waits.
//!
//! Required properties: (A) a value is taken once, by the micro-batch and the edge for which it was sent; (B)
//! a wait ends after any change since the waiting thread has last looked; (C) after a failure every wait
//! returns the first reason.

use std::collections::HashMap;

use parking_lot::{Condvar, Mutex};
use pushpull_transport::buffer::Segment;

use super::error::StageError;

/// The place of a value among those of a run: the micro-batch, and the edge.
pub(super) type ValuePlace = (u32, u64);

/// The values that arrive for one run, and its other news.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<ValuePlace, Segment>,
    failed: Option<StageError>,
    /// The number of other stages that have not yet computed their parts.
    stages_left: usize,
    /// The number of changes so far.
    changes: u64,
}

impl Arrivals {
    /// Returns the arrivals of a run of a leader that waits for this number of other stages.
    pub fn of_leader(stages: usize) -> Self {
        Self { state: Mutex::new(State { stages_left: stages, ..State::default() }), changed: Condvar::new() }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.changes += 1;
        self.changed.notify_all();
    }

    /// Stores a value. A value that has arrived before is replaced by its copy.
    pub fn put(&self, place: ValuePlace, value: Segment) {
        self.change(|state| drop(state.values.insert(place, value)));
    }

    /// Stores a value as [`put`](Self::put) does, unless this number of values wait to be taken. Returns
    /// whether it was stored.
    pub fn try_put(&self, place: ValuePlace, value: Segment, values_max: usize) -> bool {
        let mut stored = false;
        self.change(|state| {
            stored = state.values.len() < values_max;
            if stored {
                state.values.insert(place, value);
            }
        });
        stored
    }

    /// Ends the run.
    pub fn fail(&self, error: StageError) {
        self.change(|state| _ = state.failed.get_or_insert(error));
    }

    /// Records that another stage has computed its part.
    pub fn stage_computed(&self) {
        self.change(|state| state.stages_left = state.stages_left.saturating_sub(1));
    }

    /// Takes all values of the micro-batches before `end`.
    pub fn take_before(&self, end: u32) -> Vec<(ValuePlace, Segment)> {
        self.state.lock().values.extract_if(|&(micro_batch, _), _| micro_batch < end).collect()
    }

    /// Returns the number of changes so far.
    ///
    /// # Errors
    /// If the run has failed.
    pub fn seen(&self) -> Result<u64, StageError> {
        let state = self.state.lock();
        state.failed.clone().map_or(Ok(state.changes), Err)
    }

    /// Waits until there are more changes than `seen`.
    ///
    /// # Errors
    /// If the run has failed.
    pub fn wait(&self, seen: u64) -> Result<(), StageError> {
        self.wait_until(|state| state.changes > seen)
    }

    /// Waits until all other stages have computed their parts.
    ///
    /// # Errors
    /// If the run has failed.
    pub fn wait_for_stages(&self) -> Result<(), StageError> {
        self.wait_until(|state| state.stages_left == 0)
    }

    fn wait_until(&self, ready: impl Fn(&State) -> bool) -> Result<(), StageError> {
        let mut state = self.state.lock();
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if ready(&state) {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }
}
