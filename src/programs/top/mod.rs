//! `pushpull top`: a job on a terminal, as its chief tells it over HTTP. Knows nothing of the cluster but
//! that address.

mod frame;
mod line;
mod number;
mod source;
mod table;

use std::time::{Duration, Instant};

use console::Term;
use pushpull_messages::observe::{ChiefSnapshot, JobPhase};

use self::frame::{Size, frame};
use self::source::Source;

use crate::programs::exit::{Failure, Outcome};
use crate::programs::shown::clean;

/// A chief that does not answer for so long is gone,
const GONE_AFTER: Duration = Duration::from_secs(5);
/// when it has been asked so often.
const TRIES: u32 = 3;

/// What is watched, and how.
#[derive(Debug)]
pub(crate) struct Top {
    /// The chief's HTTP address, `host:port` or a URL.
    pub(crate) chief: String,
    /// Between two frames.
    pub(crate) every: Duration,
    /// One frame only.
    pub(crate) once: bool,
}

impl Top {
    /// Draws frames until the job has ended, or the chief is gone: the latter is an error where the job had
    /// not ended.
    pub(crate) fn run(&self) -> Outcome {
        match self.draw() {
            // Whoever reads has seen enough.
            Err(Failure::Error(error)) if is_closed(&error) => Ok(()),
            outcome => outcome,
        }
    }

    fn draw(&self) -> Outcome {
        let source = Source::new(&self.chief).map_err(Failure::usage)?;
        let screen = Screen { term: Term::buffered_stdout(), whole: self.once };
        let mut last = source.fetch().map_err(|error| Failure::Error(error.into()))?;
        // Since when it does not answer, and how often.
        let mut silent: Option<(Instant, u32)> = None;
        screen.draw(&last, None)?;
        while !self.once && last.phase != JobPhase::Ended {
            std::thread::sleep(self.every);
            match source.fetch() {
                Ok(now) => {
                    (last, silent) = (now, None);
                    screen.draw(&last, None)?;
                }
                Err(_) if is_over(&last) => break,
                Err(error) if !is_gone(&mut silent) => screen.draw(&last, Some(&error.to_string()))?,
                Err(error) => {
                    screen.draw(&last, Some("the chief is gone"))?;
                    let (step, last_step) = (last.step, last.last_step);
                    let reason = format!(
                        "{error}; the chief is gone, and the job had not ended: it was at step {step} of {last_step}"
                    );
                    return Err(Failure::Error(anyhow::anyhow!(reason)));
                }
            }
        }
        if !self.once {
            screen.say(&how_it_ended(&last))?;
        }
        Ok(())
    }
}

/// Whether a chief that is gone after that has done what it was there for.
fn is_over(last: &ChiefSnapshot) -> bool {
    match last.phase {
        JobPhase::Ended => true,
        JobPhase::Failing => false,
        // With a reason it was told to end early.
        JobPhase::Starting | JobPhase::Training | JobPhase::Evaluating => {
            last.reason.is_some() || (last.last_step.0 > 0 && last.step >= last.last_step)
        }
    }
}

/// Whether a chief that does not answer once more has had its time, however seldom it is asked.
fn is_gone(silent: &mut Option<(Instant, u32)>) -> bool {
    let (since, tries) = silent.get_or_insert((Instant::now(), 0));
    *tries += 1;
    *tries >= TRIES && since.elapsed() >= GONE_AFTER
}

/// Whether nobody reads any more what is drawn.
fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn how_it_ended(last: &ChiefSnapshot) -> String {
    let reason = last.reason.as_deref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
    let how = if last.failed { "failed" } else { "ended" };
    format!("the job has {how} at step {} of {}{reason}", last.step, last.last_step)
}

/// Where frames are drawn: over each other on a terminal, one after the other elsewhere.
struct Screen {
    term: Term,
    /// All rows, however many.
    whole: bool,
}

impl Screen {
    fn draw(&self, snapshot: &ChiefSnapshot, trouble: Option<&str>) -> std::io::Result<()> {
        let in_place = self.term.is_term() && !self.whole;
        // Programs and files take lines of any length.
        let (rows, columns) = self
            .term
            .size_checked()
            .map_or((usize::MAX, usize::MAX), |(rows, columns)| (rows.into(), columns.into()));
        // The cursor stands on the last row.
        let rows = if in_place { rows.saturating_sub(1) } else { usize::MAX };
        let lines = frame(snapshot, trouble, Size { columns, rows });
        if in_place {
            self.term.move_cursor_to(0, 0)?;
        }
        let colours = self.term.is_term() && console::colors_enabled();
        for line in &lines {
            if in_place {
                self.term.clear_line()?;
            }
            self.term.write_line(&line.print(colours))?;
        }
        match in_place {
            true => self.term.clear_to_end_of_screen()?,
            false if !self.whole => self.term.write_line("")?,
            false => {}
        }
        self.term.flush()
    }

    fn say(&self, text: &str) -> std::io::Result<()> {
        self.term.write_line(text)?;
        self.term.flush()
    }
}

#[cfg(test)]
mod tests;
