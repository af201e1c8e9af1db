//! The source of all times that tasks measure or record: the clocks of the system or, with the feature
//! `virtual-time`, the clock of a simulation. Timeouts do not use this module: they use tokio's clock, which
//! a simulation can pause. Only the spinning of links does, because no paused clock goes on while it spins.

use std::time::{Duration, Instant};
#[cfg(not(feature = "virtual-time"))]
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time, for measurements.
pub fn now() -> Instant {
    #[cfg(feature = "virtual-time")]
    return simulated().now;
    #[cfg(not(feature = "virtual-time"))]
    Instant::now()
}

/// Returns the time since `moment`; zero if `moment` is in the future.
pub fn since(moment: Instant) -> Duration {
    now().saturating_duration_since(moment)
}

/// Returns the time of day as the time since 1970; zero if the clock shows an earlier time.
pub fn unix_time() -> Duration {
    #[cfg(feature = "virtual-time")]
    return simulated().unix_time;
    #[cfg(not(feature = "virtual-time"))]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The times of a simulation.
#[cfg(feature = "virtual-time")]
#[derive(Clone, Copy, Debug)]
pub struct SimulatedTime {
    /// The current time.
    pub now: Instant,
    /// The time since 1970.
    pub unix_time: Duration,
}

#[cfg(feature = "virtual-time")]
static SIMULATED: std::sync::OnceLock<fn() -> SimulatedTime> = std::sync::OnceLock::new();

/// Makes `source` the source of all times in this process. Only the first call has an effect.
#[cfg(feature = "virtual-time")]
pub fn simulate_time(source: fn() -> SimulatedTime) {
    SIMULATED.get_or_init(|| source);
}

#[cfg(feature = "virtual-time")]
fn simulated() -> SimulatedTime {
    SIMULATED.get().expect("a simulation sets its clock before it starts tasks")()
}
