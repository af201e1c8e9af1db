//! Remembers whether other hosts can reach a process without a proof of who they are, and warns of it. The
//! caller says so when it listens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Instrument;

/// The time between two reminders that other hosts can reach this process.
const REMIND_EVERY: Duration = Duration::from_secs(3600);

/// Whether other hosts can reach a process without a proof of who they are. Clones are about the same
/// process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exposure(Arc<AtomicBool>);

impl Exposure {
    /// Returns true if other hosts can reach the process.
    pub(crate) fn is_exposed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records that other hosts can reach the process, which has an HTTP endpoint that nothing protects.
    pub(crate) fn expose(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Records that the process listens at this address, where its peers need no proof. If other hosts can
    /// reach the address, warns now and every hour of what they `can` do.
    pub(crate) fn listens(&self, address: String, can: &'static str) {
        if !is_reached(&address) {
            return;
        }
        self.expose();
        let remind = async move {
            loop {
                tracing::warn!("everybody who reaches {address} can {can} (--insecure)");
                tokio::time::sleep(REMIND_EVERY).await;
            }
        };
        tokio::spawn(remind.in_current_span());
    }
}

/// Returns true if other hosts can reach the address of a socket.
fn is_reached(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| !address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_an_address_off_loopback_is_exposed() {
        for (address, expected) in [
            ("127.0.0.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("10.0.0.1:1", true),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
        ] {
            let exposure = Exposure::default();
            exposure.listens(address.to_owned(), "read it");
            assert_eq!(exposure.clone().is_exposed(), expected, "{address}");
        }
    }
}
