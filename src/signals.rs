//! SIGINT and SIGTERM: the first asks for an orderly end, the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// Whether a signal has come, and which.
#[derive(Clone)]
pub(crate) struct Signals {
    /// For whoever has to stop.
    pub interrupt: CancellationToken,
    number: watch::Receiver<u8>,
}

impl Signals {
    /// Listens from now on, on the current runtime.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Self::listen_and(|| {})
    }

    /// Also does something before a second signal ends the process.
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
            match crate::logging::is_json() {
                true => tracing::error!("a second signal: ending at once"),
                false => eprintln!("a second signal: ending at once"),
            }
            last();
            std::process::exit(128 + i32::from(number));
        });
        Ok(Self { interrupt, number })
    }

    /// The number of the signal that came.
    pub(crate) fn number(&self) -> u8 {
        *self.number.borrow()
    }
}
