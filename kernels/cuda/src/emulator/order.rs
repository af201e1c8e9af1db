//! Finds requests that touch the same bytes without an order, whatever order they are carried out in. Each
//! request has a vector clock: for each stream, the number of the stream's requests that are done before it.

use std::collections::BTreeMap;

use super::work::Touch;
use crate::driver::{DriverError, Stream};

/// For each stream, a number of its requests.
type Clock = [u64; 3];

/// A request that has touched memory, and of which the caller does not know that it is done.
#[derive(Debug)]
struct Access {
    stream: usize,
    /// The number of the request in its stream.
    number: u64,
    name: String,
    /// The bytes; `None` if they were not declared.
    touch: Option<Touch>,
}

/// The order of all requests.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The requests that are done, as the caller knows.
    caller: Clock,
    /// The requests that come before the next one of each stream.
    streams: [Clock; 3],
    /// The requests that come before each event, if the caller does not know of all of them that they are
    /// done.
    events: BTreeMap<u64, Clock>,
    /// The accesses to each memory.
    accesses: BTreeMap<u64, Vec<Access>>,
}

impl Access {
    const fn comes_before(&self, clock: Clock) -> bool {
        self.number <= clock[self.stream]
    }
}

fn join(clock: &mut Clock, other: Clock) {
    for (own, other) in clock.iter_mut().zip(other) {
        *own = (*own).max(other);
    }
}

impl Order {
    /// Adds a request to a stream. `touched` is what it touches, and `uses` is the memory that it uses
    /// without a declaration. Returns the clock of the request.
    ///
    /// # Errors
    /// If it has no order with a request that touches the same bytes. Then it is not added.
    pub fn add(
        &mut self,
        stream: Stream,
        name: &str,
        touched: &[Touch],
        uses: &[u64],
    ) -> Result<Clock, DriverError> {
        let stream = stream.index();
        let mut clock = self.streams[stream];
        join(&mut clock, self.caller);
        clock[stream] += 1;
        for touch in touched {
            self.check(name, touch, clock)?;
        }
        self.streams[stream] = clock;
        let access = |touch| Access { stream, number: clock[stream], name: name.to_owned(), touch };
        for touch in touched {
            let all = self.accesses.entry(touch.memory).or_default();
            // A request without an order with what is removed here has none with the new access either.
            all.retain(|old| !old.is_covered_by(touch) || !old.comes_before(clock));
            all.push(access(Some(touch.clone())));
        }
        for memory in uses {
            self.accesses.entry(*memory).or_default().push(access(None));
        }
        Ok(clock)
    }

    /// Checks that an access has an order with all earlier ones to the same bytes.
    fn check(&self, name: &str, touch: &Touch, clock: Clock) -> Result<(), DriverError> {
        let meets = |old: &&Access| {
            old.touch.as_ref().is_some_and(|old| {
                let (one, other) = (&old.bytes, &touch.bytes);
                (old.written || touch.written) && one.start < other.end && other.start < one.end
            }) && !old.comes_before(clock)
        };
        let Some(old) = self.accesses.get(&touch.memory).into_iter().flatten().find(meets) else {
            return Ok(());
        };
        let does = |written| if written { "writes" } else { "reads" };
        let of_old = old.touch.as_ref().is_some_and(|old| old.written);
        let (start, end) = (touch.bytes.start, touch.bytes.end);
        Err(DriverError::Refused(format!(
            "{name} {} what {} {}, without an order: memory {}, bytes {start} to {end}",
            does(touch.written),
            old.name,
            does(of_old),
            touch.memory
        )))
    }

    /// Records an event after all requests of a stream.
    pub fn record(&mut self, stream: Stream, event: u64) {
        let mut clock = self.streams[stream.index()];
        join(&mut clock, self.caller);
        self.events.insert(event, clock);
    }

    /// Lets the later requests of a stream come after an event.
    pub fn wait(&mut self, stream: Stream, event: u64) {
        if let Some(clock) = self.events.get(&event) {
            join(&mut self.streams[stream.index()], *clock);
        }
    }

    /// Notes that the caller knows that the requests before a clock are done.
    pub fn is_done(&mut self, clock: Clock) {
        join(&mut self.caller, clock);
        let caller = self.caller;
        self.events.retain(|_, clock| clock.iter().zip(caller).any(|(number, done)| *number > done));
        self.accesses.values_mut().for_each(|all| all.retain(|access| !access.comes_before(caller)));
        self.accesses.retain(|_, all| !all.is_empty());
    }

    /// Notes that the caller knows that all requests are done.
    pub fn all_is_done(&mut self) {
        let mut clock = self.caller;
        self.streams.iter().for_each(|stream| join(&mut clock, *stream));
        self.is_done(clock);
    }

    /// Checks that nothing can use a memory any more.
    pub fn release(&self, memory: u64) -> Result<(), DriverError> {
        let Some(access) = self.accesses.get(&memory).and_then(|all| all.first()) else { return Ok(()) };
        Err(DriverError::Refused(format!(
            "memory {memory} is released, but {} may still use it; synchronise before",
            access.name
        )))
    }
}

impl Access {
    /// Returns whether the access is to bytes that `new` touches in the same way or writes.
    fn is_covered_by(&self, new: &Touch) -> bool {
        self.touch.as_ref().is_some_and(|old| {
            (new.written || !old.written)
                && new.bytes.start <= old.bytes.start
                && old.bytes.end <= new.bytes.end
        })
    }
}
