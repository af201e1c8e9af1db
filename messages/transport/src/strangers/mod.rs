//! Bounds what peers can take before they have proved who they are. This module opens and closes no
//! connection.

mod bounds;
mod host;
mod hosts;
mod too_many;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use bounds::Bounds;
pub(crate) use host::host_of;
use hosts::Hosts;
pub(crate) use too_many::TooMany;

/// The largest number of connections of a port that have not proved who they are.
pub const STRANGERS_MAX: usize = Bounds::USUAL.open_max;

/// The connections of a port that have not proved who they are.
#[derive(Debug)]
pub(crate) struct Strangers(Mutex<Hosts>);

impl Default for Strangers {
    fn default() -> Self {
        Self(Mutex::new(Hosts::new(Bounds::USUAL)))
    }
}

/// A connection that has not proved who it is. If this guard is dropped, the attempt counts as failed.
#[derive(Debug)]
pub(crate) struct Stranger {
    /// `None` if the peer needs no bound, or if it is no stranger any more.
    counted: Option<Counted>,
}

#[derive(Debug)]
struct Counted {
    strangers: Arc<Strangers>,
    number: u64,
    displaced: Arc<Notify>,
}

impl Strangers {
    /// Counts a new connection of the peer at this address. A peer without an IP address is not counted: it
    /// belongs to this process or to this user.
    ///
    /// # Errors
    /// Returns an error if there are too many. The connection must then be closed at once.
    pub(crate) fn enter(self: &Arc<Self>, peer: &str) -> Result<Stranger, TooMany> {
        let Some(host) = host_of(peer) else { return Ok(Stranger { counted: None }) };
        let (number, displaced) = self.0.lock().enter(host, Instant::now())?;
        Ok(Stranger { counted: Some(Counted { strangers: Arc::clone(self), number, displaced }) })
    }
}

impl Stranger {
    /// Waits for the end of `proof`, in which the peer proves who it is.
    ///
    /// # Errors
    /// Returns an error if the connection has to close before that, in favour of another host.
    pub(crate) async fn unless_displaced<T>(&self, proof: impl Future<Output = T>) -> Result<T, TooMany> {
        let Some(counted) = &self.counted else { return Ok(proof.await) };
        tokio::select! {
            biased;
            proved = proof => Ok(proved),
            () = counted.displaced.notified() => Err(TooMany::Displaced),
        }
    }

    /// Ends the count of a connection that has proved who it is, or that has ended without a fault of its
    /// own.
    pub(crate) fn pass(mut self) {
        self.leave(false);
    }

    fn leave(&mut self, failed: bool) {
        if let Some(Counted { strangers, number, .. }) = self.counted.take() {
            strangers.0.lock().leave(number, failed, Instant::now());
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.leave(true);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn a_peer_of_this_process_is_no_stranger() {
        let strangers = Arc::new(Strangers::default());
        let usual = Bounds::USUAL;
        let peers: Vec<_> =
            (0..2 * usual.open_max).map(|_| strangers.enter("this process").unwrap()).collect();
        drop(peers);
        let open: Vec<_> = (0..usual.host_open_max).map(|_| strangers.enter("10.0.0.1:5").unwrap()).collect();
        assert!(strangers.enter("10.0.0.1:6").is_err());
        open.into_iter().for_each(Stranger::pass);
        strangers.enter("10.0.0.1:6").unwrap().pass();
        assert!(strangers.0.lock().is_empty());
    }

    #[tokio::test]
    async fn a_crowd_displaces_its_own_connections() {
        let strangers = Arc::new(Strangers::default());
        let mut crowd = Vec::new();
        for turn in 0..Bounds::USUAL.open_max {
            let host = turn / Bounds::USUAL.host_open_max as usize;
            crowd.push(strangers.enter(&format!("10.0.1.{host}:5")).unwrap());
        }
        let task = strangers.enter("10.0.0.1:5").unwrap();
        assert_eq!(crowd[0].unless_displaced(pending::<()>()).await, Err(TooMany::Displaced));
        assert_eq!(task.unless_displaced(ready(7)).await, Ok(7));
        task.pass();
        drop(crowd);
    }
}
