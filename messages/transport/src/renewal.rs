//! Keeps the certificates of a long job valid: tasks of such a job may stay connected for weeks, and would
//! then have no reason to get new ones.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tracing::Instrument;

/// How often certificates are looked at. They are renewed days before they expire.
pub(crate) const EVERY: Duration = Duration::from_secs(6 * 3600);
/// The largest number of addresses that the chief remembers: more than a cluster has tasks.
const ADDRESSES_MAX: usize = 1 << 16;

/// What a transport has to renew.
#[derive(Debug, Default)]
pub(crate) struct Renewal(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether the task that renews has been started.
    runs: bool,
    /// The addresses to which the process with the authority has connected.
    addresses: BTreeSet<SocketAddr>,
}

impl Renewal {
    /// Remembers an address to which the chief has connected.
    pub(crate) fn remember(&self, address: SocketAddr) {
        let addresses = &mut self.0.lock().addresses;
        if addresses.len() < ADDRESSES_MAX {
            addresses.insert(address);
        }
    }

    /// Returns the addresses to which the chief has connected.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.lock().addresses.iter().copied().collect()
    }

    /// Calls `renew` in the background, on the current runtime, with the addresses that are remembered, each
    /// time that `every` has passed. Ends when all clones of the transport are dropped. Has an effect only
    /// once.
    pub(crate) fn start(
        self: &Arc<Self>,
        every: Duration,
        renew: impl Fn(Vec<SocketAddr>) -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        if std::mem::replace(&mut self.0.lock().runs, true) {
            return;
        }
        // The background task must not keep alive what it waits for the end of.
        let renewal = Arc::downgrade(self);
        let run = async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(renewal) = renewal.upgrade() else { return };
                let addresses = renewal.addresses();
                drop(renewal);
                renew(addresses).await;
            }
        };
        tokio::spawn(run.in_current_span());
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_is_remembered_is_renewed_until_the_end() {
        let (renewal, address) = (Arc::new(Renewal::default()), "127.0.0.1:1".parse().unwrap());
        let every = Duration::from_millis(50);
        let (tell, mut told) = mpsc::unbounded_channel();
        for _ in 0..2 {
            let tell = tell.clone();
            renewal.start(every, move |addresses| {
                tell.send(addresses).unwrap();
                Box::pin(std::future::ready(()))
            });
        }
        drop(tell);
        renewal.remember(address);
        let began = tokio::time::Instant::now();
        for _ in 0..4 {
            assert_eq!(told.recv().await, Some(vec![address]));
        }
        assert!(began.elapsed() >= 4 * every, "it runs once");
        drop(renewal);
        assert_eq!(told.recv().await, None, "it ends");
    }
}
