//! Notes the signals that tell the soak itself to end, so that no process of a job outlives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use anyhow::Context;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that this process has received.
#[derive(Clone, Debug)]
pub struct Signals(Arc<AtomicU8>);

impl Signals {
    /// Begins to note SIGINT and SIGTERM, which then no longer end this process.
    ///
    /// # Errors
    /// If the system does not let the process handle signals.
    pub fn listen() -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build().context("no runtime for signals")?;
        let (mut interrupts, mut terminates) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let signals = Self(Arc::default());
        let noted = signals.clone();
        thread::spawn(move || {
            let first = runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = interrupts.recv() => SignalKind::interrupt(),
                    _ = terminates.recv() => SignalKind::terminate(),
                }
            });
            noted.0.store(first.as_raw_value() as u8, Ordering::Relaxed);
        });
        Ok(signals)
    }

    /// Returns the number of the signal that tells this process to end; `None` if none was received.
    pub fn received(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&number| number != 0)
    }
}
