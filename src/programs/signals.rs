//! Handles SIGINT and SIGTERM: the first signal requests an orderly end, the second one ends the process at
//! once.

use std::io::{Write, stderr};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::logging;

/// The number of the signal that Ctrl-C sends.
pub(super) const SIGINT: u8 = 2;
/// The number of the signal with which schedulers end a process.
pub(super) const SIGTERM: u8 = 15;

/// Waits for the next signal, and returns its number. SIGINT is awaited only if `interrupt` is true, and
/// SIGTERM only if `terminate` is true.
///
/// # Errors
/// Returns an error if the operating system does not let the process handle signals.
pub(super) async fn next_signal(interrupt: bool, terminate: bool) -> std::io::Result<u8> {
    let (mut interrupts, mut terminates) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(tokio::select! {
        _ = interrupts.recv(), if interrupt => SIGINT,
        _ = terminates.recv(), if terminate => SIGTERM,
        else => std::future::pending().await,
    })
}

/// The signals that this process has received.
#[derive(Clone)]
pub(crate) struct Signals {
    /// Cancelled by the first signal.
    pub interrupt: CancellationToken,
    number: watch::Receiver<u8>,
}

impl Signals {
    /// Begins to listen for signals, on the current runtime.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Self::listen_and(|| {})
    }

    /// Begins to listen for signals. `last` will be called just before the second signal ends the process.
    pub(crate) fn listen_and(last: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (mut interrupts, mut terminates) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (set_number, number) = watch::channel(SIGTERM);
        let interrupt = CancellationToken::new();
        let set_interrupt = interrupt.clone();
        tokio::spawn(async move {
            let mut next = async || {
                tokio::select! {
                    _ = interrupts.recv() => SIGINT,
                    _ = terminates.recv() => SIGTERM,
                }
            };
            set_number.send_replace(next().await);
            set_interrupt.cancel();
            let number = next().await;
            match logging::is_json() {
                true => tracing::error!("received a second signal: ending at once"),
                // An error of `writeln` means that the reader of standard error is gone.
                false => drop(writeln!(stderr(), "received a second signal: ending at once")),
            }
            last();
            std::process::exit(128 + i32::from(number));
        });
        Ok(Self { interrupt, number })
    }

    /// Returns the number of the first signal.
    pub(crate) fn number(&self) -> u8 {
        *self.number.borrow()
    }
}
