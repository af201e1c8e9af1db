//! Keeps the certificates of a long job valid: tasks of such a job may stay connected for weeks, and would
//! then have no reason to get new ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tracing::Instrument;

/// How often certificates are looked at. They are renewed days before they expire.
pub(crate) const EVERY: Duration = Duration::from_secs(6 * 3600);
/// How long a task waits that could not renew its own certificate.
pub(crate) const RETRY: Duration = Duration::from_secs(600);
/// The number of times in a row that an address may fail before it is forgotten: by then, the certificate of
/// a task there has expired.
const FAILURES_MAX: u32 = 28;
/// The largest number of addresses that the chief remembers: more than a cluster has tasks.
const ADDRESSES_MAX: usize = 1 << 16;

/// What a transport has to renew.
#[derive(Debug, Default)]
pub(crate) struct Renewal(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether the task that renews has been started.
    runs: bool,
    /// The addresses to which the process with the authority has connected, each with the number of times in
    /// a row that it has failed since.
    addresses: BTreeMap<SocketAddr, u32>,
}

/// The result of a look at all certificates.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    /// The certificate of this process had to be renewed, and was not.
    pub is_own_late: bool,
    /// The addresses at which no certificate was seen.
    pub failed: Vec<SocketAddr>,
}

impl Renewal {
    /// Remembers an address to which the chief has connected.
    pub(crate) fn remember(&self, address: SocketAddr) {
        let addresses = &mut self.0.lock().addresses;
        if addresses.len() < ADDRESSES_MAX || addresses.contains_key(&address) {
            addresses.insert(address, 0);
        }
    }

    /// Counts the failures of addresses, and forgets those that have failed too often.
    fn count(&self, failed: &[SocketAddr]) {
        self.0.lock().addresses.retain(|address, failures| {
            *failures = if failed.contains(address) { *failures + 1 } else { 0 };
            *failures < FAILURES_MAX
        });
    }

    /// Returns the addresses to which the chief has connected.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.lock().addresses.keys().copied().collect()
    }

    /// Calls `renew` in the background, on the current runtime, with the addresses that are remembered, each
    /// time that `every` has passed, or `retry` if the last call could not renew the own certificate. Ends
    /// when all clones of the transport are dropped. Has an effect only once.
    pub(crate) fn start(
        self: &Arc<Self>,
        every: Duration,
        retry: Duration,
        renew: impl Fn(Vec<SocketAddr>) -> BoxFuture<'static, Renewed> + Send + 'static,
    ) {
        if std::mem::replace(&mut self.0.lock().runs, true) {
            return;
        }
        // The background task must not keep alive what it waits for the end of.
        let renewal = Arc::downgrade(self);
        let run = async move {
            let mut pause = every;
            loop {
                tokio::time::sleep(pause).await;
                let Some(addresses) = renewal.upgrade().map(|renewal| renewal.addresses()) else { return };
                let Renewed { is_own_late, failed } = renew(addresses).await;
                renewal.upgrade().inspect(|renewal| renewal.count(&failed));
                pause = if is_own_late { retry } else { every };
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
            renewal.start(every, RETRY, move |addresses| {
                tell.send(addresses).unwrap();
                Box::pin(std::future::ready(Renewed::default()))
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

    #[tokio::test]
    async fn a_late_renewal_is_tried_again_soon() {
        let renewal = Arc::new(Renewal::default());
        let (tell, mut told) = mpsc::unbounded_channel();
        renewal.start(Duration::ZERO, Duration::from_millis(50), move |_| {
            tell.send(tokio::time::Instant::now()).unwrap();
            Box::pin(std::future::ready(Renewed { is_own_late: true, failed: Vec::new() }))
        });
        let first = told.recv().await.unwrap();
        let pause = told.recv().await.unwrap() - first;
        assert!(pause >= Duration::from_millis(50), "{pause:?}");
    }

    #[test]
    fn an_address_that_fails_for_long_is_forgotten() {
        let renewal = Renewal::default();
        let [alive, dead] = ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().unwrap());
        renewal.remember(alive);
        renewal.remember(dead);
        for _ in 1..FAILURES_MAX {
            renewal.count(&[dead]);
        }
        assert_eq!(renewal.addresses(), [alive, dead]);
        renewal.remember(dead);
        renewal.count(&[dead]);
        assert_eq!(renewal.addresses(), [alive, dead], "it was reached in between");
        (1..FAILURES_MAX).for_each(|_| renewal.count(&[dead]));
        assert_eq!(renewal.addresses(), [alive]);
    }
}
