//! When the streams of a card work. The card's own clock says it; the host's clock is aligned with it once,
//! while nothing runs.

use std::time::{Duration, Instant};

use super::cuda::{Asked, Queue, TimedMark};
use crate::driver::{Stream, Worked};

/// The largest number of requests that are recorded.
const REQUESTS_MAX: usize = 4096;

/// A record of when streams work.
#[derive(Debug)]
pub(super) struct Watch {
    /// A mark of the time at which the record began, and the same time on the host's clock.
    origin: (TimedMark, Instant),
    requests: Vec<Request>,
}

/// A request, with the marks before and after it.
#[derive(Debug)]
struct Request {
    stream: Stream,
    before: TimedMark,
    after: Option<TimedMark>,
}

impl Watch {
    /// Begins a record. Nothing may be under way.
    pub fn begin(queue: &Queue) -> Asked<Self> {
        let mark = TimedMark::create()?;
        mark.record(queue)?;
        mark.synchronise()?;
        Ok(Self { origin: (mark, Instant::now()), requests: Vec::new() })
    }

    /// Records that a request begins.
    pub fn before(&mut self, stream: Stream, queue: &Queue) -> Asked<()> {
        if self.requests.len() < REQUESTS_MAX {
            let before = TimedMark::create()?;
            before.record(queue)?;
            self.requests.push(Request { stream, before, after: None });
        }
        Ok(())
    }

    /// Records that the request that began last is over.
    pub fn after(&mut self, queue: &Queue) -> Asked<()> {
        if let Some(Request { after: after @ None, .. }) = self.requests.last_mut() {
            let mark = TimedMark::create()?;
            mark.record(queue)?;
            *after = Some(mark);
        }
        Ok(())
    }

    /// Returns the record. All requests must be done.
    pub fn end(self) -> Asked<Vec<Worked>> {
        let (origin, began) = self.origin;
        let at = |mark: &TimedMark| Ok(began + Duration::from_secs_f64(mark.seconds_since(&origin)?));
        let mut all = Vec::new();
        for Request { stream, before, after } in &self.requests {
            if let Some(after) = after {
                all.push(Worked { stream: *stream, began: at(before)?, ended: at(after)? });
            }
        }
        Ok(all)
    }
}
