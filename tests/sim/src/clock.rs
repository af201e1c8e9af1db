//! The clock of a simulation: tokio's, which is paused and jumps from timer to timer.

use std::cell::Cell;
use std::time::Duration;

use pushpull_messages::observe::{SimulatedTime, simulate_time};
use tokio::time::Instant;

/// The time of day at which every simulated job starts, as the time since 1970.
const STARTS_AT: Duration = Duration::from_secs(1_800_000_000);

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes tokio's clock the source of all times that tasks measure or write down. A job starts now.
pub fn start() {
    BEGAN.set(Some(Instant::now()));
    simulate_time(|| {
        let now = Instant::now();
        let elapsed = BEGAN.get().map_or(Duration::ZERO, |began| now - began);
        SimulatedTime { now: now.into_std(), unix_time: STARTS_AT + elapsed }
    });
}
