//! A data set that takes its examples from several sets in turn. This module must not depend on what the sets
//! contain.

use std::collections::VecDeque;
use std::sync::Arc;

use pushpull_messages::input::ColumnSpec;

use super::{Dataset, Reader, Rows, read_some};
use crate::InputError;

/// A data set that reads `cycle` sets at a time and takes one example from each in turn. When a set ends, the
/// next one takes its place.
///
/// Property: (A) it returns each example of each set exactly once. The order depends only on the sets and on
/// `cycle`.
#[derive(Clone)]
pub struct Interleave {
    sets: Vec<Arc<dyn Dataset>>,
    cycle: usize,
    /// A block without examples.
    empty: Rows,
}

impl Interleave {
    /// Makes a data set of `sets`, which all have the same columns. A `cycle` of 0 counts as 1.
    ///
    /// # Errors
    /// [`InputError::NoColumn`] if there is no set; [`InputError::Example`] if the columns of a set differ
    /// from those of the first set.
    pub fn new(sets: Vec<Arc<dyn Dataset>>, cycle: usize) -> Result<Self, InputError> {
        let Some(first) = sets.first() else { return Err(InputError::NoColumn) };
        let mut empty = first.rows()?;
        for set in &sets[1..] {
            if set.columns() != first.columns() {
                let [expected, got] = [first, set].map(|set| ColumnSpec::list(set.columns()));
                return Err(InputError::Example { expected, got });
            }
            if !set.rows()?.is_like(&empty) {
                empty = Rows::of(first.columns())?;
            }
        }
        Ok(Self::like(sets, cycle, empty))
    }

    /// Makes a data set of `sets`. There must be at least one set, and all sets must have the columns of
    /// `empty`.
    pub(crate) fn like(sets: Vec<Arc<dyn Dataset>>, cycle: usize, empty: Rows) -> Self {
        let cycle = cycle.clamp(1, sets.len().max(1));
        Self { sets, cycle, empty }
    }
}

impl Dataset for Interleave {
    fn columns(&self) -> &[ColumnSpec] {
        self.sets[0].columns()
    }

    fn examples(&self) -> Option<u64> {
        self.sets.iter().try_fold(0u64, |sum, set| sum.checked_add(set.examples()?))
    }

    fn is_endless(&self) -> bool {
        self.sets.iter().any(|set| set.is_endless())
    }

    fn reader(&self) -> Result<Box<dyn Reader>, InputError> {
        let waiting = self.sets.iter().cloned().collect();
        let mut reader = InterleaveReader { waiting, open: Vec::new(), turn: 0 };
        for _ in 0..self.cycle {
            reader.open_next(None)?;
        }
        Ok(Box::new(reader))
    }

    /// Returns the worker's part of the sets if the number of sets is a multiple of the number of workers;
    /// otherwise, returns `None`.
    fn part(&self, worker: u32, workers: u32) -> Option<Arc<dyn Dataset>> {
        if workers == 0 || !self.sets.len().is_multiple_of(workers as usize) {
            return None;
        }
        let sets = self.sets.iter().skip(worker as usize).step_by(workers as usize).cloned().collect();
        Some(Arc::new(Self::like(sets, self.cycle, self.empty.clone())))
    }

    fn rows(&self) -> Result<Rows, InputError> {
        Ok(self.empty.clone())
    }
}

/// A set that is being read, and a block for its examples.
struct Open {
    reader: Box<dyn Reader>,
    rows: Rows,
}

struct InterleaveReader {
    /// The sets that have not been opened yet.
    waiting: VecDeque<Arc<dyn Dataset>>,
    open: Vec<Open>,
    /// The position in `open` of the set whose turn it is.
    turn: usize,
}

impl InterleaveReader {
    /// Opens the next waiting set. The opened set replaces the set at `place` or, if `place` is `None`, is
    /// added after the other open sets. Returns false if no set was waiting.
    fn open_next(&mut self, place: Option<usize>) -> Result<bool, InputError> {
        let Some(set) = self.waiting.pop_front() else { return Ok(false) };
        let open = Open { reader: set.reader()?, rows: set.rows()? };
        match place {
            Some(place) => self.open[place] = open,
            None => self.open.push(open),
        }
        Ok(true)
    }

    /// Calls `some` with the set whose turn it is, and passes the turn to the next set. `some` returns the
    /// number of examples that it has read or skipped. If this is 0, the set has ended, and the call is
    /// repeated with another set. Returns the number of examples, which is 0 only if all sets have ended.
    fn turn(
        &mut self,
        mut some: impl FnMut(&mut Open) -> Result<u64, InputError>,
    ) -> Result<u64, InputError> {
        while !self.open.is_empty() {
            self.turn %= self.open.len();
            match some(&mut self.open[self.turn])? {
                0 => {
                    if !self.open_next(Some(self.turn))? {
                        self.open.remove(self.turn);
                    }
                }
                done => {
                    self.turn += 1;
                    return Ok(done);
                }
            }
        }
        Ok(0)
    }

    /// Returns how many of `examples` examples the current set may give in its turn: all if it is the only
    /// open set, otherwise one.
    fn most(&self, examples: u64) -> u64 {
        if self.open.len() == 1 { examples } else { 1 }
    }
}

impl Reader for InterleaveReader {
    fn read(&mut self, examples: usize, rows: &mut Rows) -> Result<usize, InputError> {
        let mut read = 0;
        while read < examples {
            let most = self.most((examples - read) as u64) as usize;
            let copy = |open: &mut Open| {
                open.rows.clear();
                let count = read_some(&mut *open.reader, most, &mut open.rows)?;
                for index in 0..count {
                    rows.copy(&open.rows, index)?;
                }
                Ok(count as u64)
            };
            match self.turn(copy)? {
                0 => break,
                more => read += more as usize,
            }
        }
        Ok(read)
    }

    fn skip(&mut self, examples: u64, _: &mut Rows) -> Result<u64, InputError> {
        let mut skipped = 0;
        while skipped < examples {
            let most = self.most(examples - skipped);
            match self.turn(|open| open.reader.skip(most, &mut open.rows))? {
                0 => break,
                more => skipped += more,
            }
        }
        Ok(skipped)
    }
}
