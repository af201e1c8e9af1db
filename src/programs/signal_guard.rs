//! Makes signals end the process again when the training that handled them is over. The operating system's
//! default cannot be restored without unsafe code, so a thread does what the default would do.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

use super::signals::{SIGINT, SIGTERM, next_signal};

/// The guard of this process. The handling of signals belongs to a process as a whole, and so does the guard.
static GUARD: Mutex<Option<SignalGuard>> = Mutex::new(None);

/// For each of SIGINT and SIGTERM: true if this process leaves the signal to the operating system, which
/// then ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Defaults {
    interrupt: bool,
    terminate: bool,
}

impl Defaults {
    /// Reads the masks of caught and ignored signals from the text of `/proc/self/status`. A mask that is
    /// missing counts as empty.
    fn read(status: &str) -> Self {
        let mask = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        };
        let taken = mask("SigCgt:") | mask("SigIgn:");
        let is_default = |signal: u8| taken & (1 << (signal - 1)) == 0;
        Self { interrupt: is_default(SIGINT), terminate: is_default(SIGTERM) }
    }

    fn of_process() -> Self {
        Self::read(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }
}

/// A thread that ends the process at a signal.
struct SignalGuard {
    defaults: Defaults,
    end: CancellationToken,
    thread: JoinHandle<()>,
}

impl SignalGuard {
    fn start(defaults: Defaults) -> std::io::Result<Self> {
        let end = CancellationToken::new();
        let ended = end.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || {
            let number = runtime.block_on(async {
                tokio::select! {
                    number = next_signal(defaults.interrupt, defaults.terminate) => number.ok(),
                    () = ended.cancelled() => None,
                }
            });
            if let Some(number) = number {
                std::process::exit(128 + i32::from(number));
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(work)?;
        Ok(Self { defaults, end, thread })
    }

    /// Ends the thread. Returns the signals that the thread handled in place of the operating system.
    fn end(self) -> Defaults {
        self.end.cancel();
        // The thread only waits, so it does not panic.
        let _ = self.thread.join();
        self.defaults
    }
}

/// A record of how the process reacted to signals before a training began to handle them. When the record is
/// dropped, the signals that used to end the process end it again, with the exit status 128 + the signal's
/// number.
/// Signals that the program itself handles or ignores are left to the program.
pub(crate) struct SignalsKept(Defaults);

impl SignalsKept {
    /// Records how the process reacts to signals, and ends the guard, if any, because a training will now
    /// handle the signals.
    pub(crate) fn begin() -> Self {
        let guard = GUARD.lock().unwrap_or_else(PoisonError::into_inner).take();
        Self(guard.map_or_else(Defaults::of_process, SignalGuard::end))
    }
}

impl Drop for SignalsKept {
    fn drop(&mut self) {
        match SignalGuard::start(self.0) {
            Ok(guard) => *GUARD.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard),
            Err(error) => tracing::warn!("signals no longer end this process: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_the_program_are_left_to_it() {
        let read = |caught: u64, ignored: u64| {
            Defaults::read(&format!(
                "Name:\tx\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\nThreads:\t1\n"
            ))
        };
        let (interrupt, terminate) = (1 << 1, 1 << 14);
        assert_eq!(read(0, 0), Defaults { interrupt: true, terminate: true });
        assert_eq!(read(interrupt, 0), Defaults { interrupt: false, terminate: true });
        assert_eq!(read(0, terminate), Defaults { interrupt: true, terminate: false });
        assert_eq!(read(u64::MAX, 0), Defaults { interrupt: false, terminate: false });
        assert_eq!(Defaults::read("no masks"), Defaults { interrupt: true, terminate: true });
    }
}
