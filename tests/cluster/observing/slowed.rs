//! A process that gets a share of the processor only, as on a busy host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::Program;

/// How long it runs and how long it is stopped, in turns.
const RUNS: Duration = Duration::from_millis(10);
const STANDS: Duration = Duration::from_millis(90);

/// A program that is stopped most of the time, until this is dropped.
pub(super) struct Slowed {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    pub(super) fn new(program: &Program) -> Self {
        let process = Pid::from_raw(program.id().cast_signed()).expect("a process has a number");
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            // The program outlives this, so its process id is not reused.
            while !seen.load(Ordering::Relaxed) {
                for (signal, time) in [(Signal::STOP, STANDS), (Signal::CONT, RUNS)] {
                    let _ = kill_process(process, signal);
                    std::thread::sleep(time);
                }
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Its last signal lets the program go on.
        let _ = self.thread.take().expect("it is joined once").join();
    }
}
