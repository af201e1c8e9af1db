//! The queues of the streams. The seed draws which request is carried out next, among all orders that a card
//! may choose. So a program that forgets to wait computes something else under some seed.

use std::collections::{BTreeSet, VecDeque};

use super::work::Work;
use crate::driver::Stream;

/// The requests that were not carried out yet, each with its name.
#[derive(Debug)]
pub(super) struct Queues {
    streams: [VecDeque<(String, Work)>; 3],
    /// The events that are still in a queue.
    ahead: BTreeSet<u64>,
    /// The stream that runs ahead of the others.
    favourite: usize,
    /// The state of the generator that draws.
    random: u64,
}

impl Queues {
    /// The largest number of requests that wait.
    const WAITING_MAX: usize = 1024;

    pub fn new(seed: u64) -> Self {
        Self { streams: Default::default(), ahead: BTreeSet::new(), favourite: 0, random: seed }
    }

    /// Adds a request to a stream.
    pub fn push(&mut self, stream: Stream, name: String, work: Work) {
        if let Work::Record(event) = work {
            self.ahead.insert(event);
        }
        self.streams[stream.index()].push_back((name, work));
    }

    /// Returns whether some requests should be carried out now, although nothing waits for them.
    pub fn are_ahead(&mut self) -> bool {
        let waiting: usize = self.streams.iter().map(VecDeque::len).sum();
        waiting > Self::WAITING_MAX || self.draw(4) == 0
    }

    /// Removes the request that is next; `None` if there is no request. Events and waits are no requests: the
    /// queues carry them out themselves.
    pub fn pop(&mut self) -> Option<(String, Work)> {
        loop {
            if self.draw(6) == 0 {
                self.favourite = self.draw(3);
            }
            let may_run = |stream: &usize| match self.streams[*stream].front() {
                Some((_, Work::Wait(event))) => !self.ahead.contains(event),
                front => front.is_some(),
            };
            let ready: Vec<usize> = (0..3).filter(may_run).collect();
            // An event is recorded before a wait for it is requested, so some stream can always go on.
            let drawn = *ready.get(self.draw(ready.len().max(1)))?;
            let stream = if ready.contains(&self.favourite) { self.favourite } else { drawn };
            match self.streams[stream].pop_front()? {
                (_, Work::Record(event)) => _ = self.ahead.remove(&event),
                (_, Work::Wait(_)) => (),
                request => return Some(request),
            }
        }
    }

    /// Draws a number below `end` (splitmix64).
    fn draw(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}
