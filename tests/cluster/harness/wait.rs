//! Waits for events in other processes.

use std::time::{Duration, Instant};

/// A time limit that is much longer than any operation in these tests, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(5);

/// Calls `ask` repeatedly until it returns a value. Panics if that takes longer than `within`.
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        std::thread::sleep(PAUSE);
    }
}
