//! Slows a process down, so that it gets only a fraction of the processor time, as on a busy host. A test
//! that waits for a timeout also does this to the tasks that train meanwhile, in order to leave the processor
//! to other tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::program::Program;

/// The time for which the process runs, before it is stopped for [`STANDS`]. The two alternate.
const RUNS: Duration = Duration::from_millis(10);
const STANDS: Duration = Duration::from_millis(90);

/// Keeps a program stopped for most of the time, until it is dropped.
pub(crate) struct Slowed {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    pub(crate) fn new(program: &Program) -> Self {
        let process = Pid::from_raw(program.id().cast_signed()).expect("a process has a number");
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            // The program outlives this thread, so its process id is not reused.
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
        // The last signal of the thread lets the program continue.
        let _ = self.thread.take().expect("it is joined once").join();
    }
}
