//! A process that gets only a share of the time, as on a host that is busy with something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::Program;

/// It runs for so long, and stands for so long.
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
            // The program outlives this: its number is nobody else's.
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
