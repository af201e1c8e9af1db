//! The values that a stage has computed for the leader, which fetches them because it does not listen.
//!
//! Required properties: (A) each value is sent once, whether it or its request comes first; (B) nothing of an
//! earlier run stays.

use std::collections::HashMap;

use parking_lot::Mutex;
use pushpull_messages::message::{StageValueFetched, StageValueKey};
use pushpull_transport::Reply;
use pushpull_transport::buffer::Payload;

/// The values for the leader, and its requests.
#[derive(Debug, Default)]
pub(super) struct Departures(Mutex<HashMap<StageValueKey, Departure>>);

#[derive(Debug)]
enum Departure {
    Ready(Payload),
    Requested(Reply),
}

impl Departures {
    /// Hands over a value that has been computed.
    pub fn put(&self, key: StageValueKey, value: Payload) {
        let mut departures = self.0.lock();
        match departures.remove(&key) {
            Some(Departure::Requested(reply)) => reply.send(StageValueFetched {}, value),
            _ => drop(departures.insert(key, Departure::Ready(value))),
        }
    }

    /// Answers a request with its value, as soon as there is one. Refuses an earlier copy of the request.
    pub fn fetch(&self, key: StageValueKey, reply: Reply) {
        let mut departures = self.0.lock();
        match departures.remove(&key) {
            Some(Departure::Ready(value)) => reply.send(StageValueFetched {}, value),
            _ => drop(departures.insert(key, Departure::Requested(reply))),
        }
    }

    /// Forgets everything of runs before `run`. Requests that are dropped are refused.
    pub fn forget_before(&self, run: u64) {
        self.0.lock().retain(|key, _| key.run >= run);
    }
}
