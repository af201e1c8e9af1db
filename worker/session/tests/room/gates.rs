//! A gate, at which a run waits until the test lets it pass.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a test waits for a condition before it fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A gate. It is open until it is closed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    waiting: usize,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().closed = false;
        self.changed.notify_all();
    }

    /// Waits until the gate is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while state.closed {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }

    /// Waits until a run waits at the gate.
    pub(crate) fn reached(&self) {
        let (mut state, deadline) = (self.state.lock(), Instant::now() + LIMIT);
        while state.waiting == 0 {
            assert!(
                !self.changed.wait_until(&mut state, deadline).timed_out(),
                "no run has reached the gate"
            );
        }
    }
}

/// Tries until an attempt succeeds.
#[track_caller]
pub(crate) fn until<T, E: std::fmt::Display>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < deadline, "still failing: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
