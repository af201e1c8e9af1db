//! The events of a card. An event of the caller needs one of the driver only until it is done, so a few of
//! them are enough for any number of steps.

use std::collections::VecDeque;

use super::cuda::{Asked, Mark, Queue};

/// The events that may not be done yet, and the driver's events that are not in use.
#[derive(Debug, Default)]
pub(super) struct Marks {
    spare: Vec<Mark>,
    /// The events of each stream, in the order of their numbers.
    recorded: [VecDeque<(u64, Mark)>; 3],
}

impl Marks {
    /// Returns a mark after all that was requested of a stream. [`give`](Self::give) takes it back.
    pub fn mark(&mut self, queue: &Queue) -> Asked<Mark> {
        let mark = self.spare.pop().map_or_else(Mark::create, Ok)?;
        queue.record(&mark)?;
        Ok(mark)
    }

    /// Takes back a mark that nothing waits for any more.
    pub fn give(&mut self, mark: Mark) {
        self.spare.push(mark);
    }

    /// Waits until all streams are done. The thread sleeps meanwhile.
    pub fn synchronise(&mut self, queues: &[Queue]) -> Asked<()> {
        for queue in queues {
            let mark = self.mark(queue)?;
            mark.synchronise()?;
            self.give(mark);
        }
        Ok(())
    }

    /// Records the event with this number, which is larger than all before it, after all that was requested
    /// of a stream.
    pub fn record(&mut self, stream: usize, queue: &Queue, number: u64) -> Asked<()> {
        while let Some((_, first)) = self.recorded[stream].front()
            && first.is_done()?
        {
            let first = self.recorded[stream].pop_front();
            self.spare.extend(first.map(|(_, mark)| mark));
        }
        let mark = self.mark(queue)?;
        self.recorded[stream].push_back((number, mark));
        Ok(())
    }

    /// Returns the mark of an event; `None` if it is known to be done.
    pub fn get(&self, number: u64) -> Option<&Mark> {
        let find = |stream: &'_ VecDeque<(u64, Mark)>| {
            stream.binary_search_by_key(&number, |(number, _)| *number).ok()
        };
        self.recorded.iter().find_map(|stream| find(stream).map(|at| &stream[at].1))
    }
}
