//! The last lines of one log, bounded in number and length. This module must not depend on how lines are
//! logged.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;

/// The number of lines that are kept.
const LINES_MAX: usize = 200;
/// The maximum length of a line, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 2000;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LogLine {
    /// The time at which the line was logged, in milliseconds since 1970.
    pub at_ms: u64,
    /// The level: INFO, WARN or ERROR.
    pub level: &'static str,
    /// The task that logged the line.
    pub task: String,
    /// The message and its fields.
    pub text: String,
}

/// The last lines of a log.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<Ring>);

/// The lines that are kept, and the number of lines that were ever logged.
#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    count: u64,
}

impl Ring {
    fn push(&mut self, line: LogLine) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
        self.count += 1;
    }

    fn since(&self, known: u64) -> Vec<LogLine> {
        let new = usize::try_from(self.count.saturating_sub(known)).unwrap_or(usize::MAX);
        self.lines.iter().skip(self.lines.len().saturating_sub(new)).cloned().collect()
    }
}

impl Recent {
    pub(super) fn push(&self, line: LogLine) {
        self.0.lock().push(line);
    }

    /// Returns the last lines, the oldest first.
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        self.0.lock().since(0)
    }

    /// Returns the number of lines that were ever logged.
    pub(crate) fn newest(&self) -> u64 {
        self.0.lock().count
    }

    /// Returns the lines that were logged after the first `known` lines, as far as they are still kept. Also
    /// returns the number of lines that were ever logged.
    pub(crate) fn since(&self, known: u64) -> (Vec<LogLine>, u64) {
        let ring = self.0.lock();
        (ring.since(known), ring.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay_and_are_told_once() {
        let recent = Recent::default();
        let line = |at_ms| LogLine { at_ms, level: "INFO", task: String::new(), text: String::new() };
        let since = |known| recent.since(known).0.iter().map(|line| line.at_ms).collect::<Vec<_>>();
        (0..3).for_each(|at| recent.push(line(at)));
        assert_eq!(since(0), [0, 1, 2]);
        assert_eq!(since(2), [2]);
        assert_eq!(since(3), [0; 0]);
        (3..1000).for_each(|at| recent.push(line(at)));
        assert_eq!(since(0), (800..1000).collect::<Vec<_>>());
        assert_eq!(since(998), [998, 999]);
        assert_eq!(since(2000), [0; 0]);
        assert_eq!((recent.newest(), recent.lines().len()), (1000, LINES_MAX));
    }
}
