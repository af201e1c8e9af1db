//! Waiting for something that another process does.

use std::time::{Duration, Instant};

/// Far beyond the time of any operation here, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(5);

/// Polls until there is an answer.
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
