//! `pushpull top`: shows a job on a terminal, from the snapshots that the chief serves over HTTP. It needs
//! only the chief's HTTP address, and the job's join string or token if the chief is on another host.

mod frame;
mod https;
mod line;
mod number;
mod source;
mod table;

use std::time::{Duration, Instant};

use console::Term;
use pushpull_messages::observe::{ChiefSnapshot, JobPhase};

use self::frame::{Size, frame};
pub(crate) use self::source::Pass;
use self::source::Source;

use crate::programs::exit::{Failure, Outcome};
use crate::programs::format::clean;

/// The chief counts as gone after this time without an answer, if at least [`TRIES`] requests have failed in
/// that time.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// The chief counts as gone after this number of failed requests, if at least [`GONE_AFTER`] has passed
/// since the first of them.
const TRIES: u32 = 3;

/// A job to watch, and how to show it.
#[derive(Debug)]
pub(crate) struct Top {
    /// The chief's HTTP address, `host:port` or a URL.
    pub(crate) chief: String,
    /// What to show to the chief.
    pub(crate) pass: Pass,
    /// The time between two frames.
    pub(crate) every: Duration,
    /// If true, one frame is printed, and the program ends.
    pub(crate) once: bool,
}

impl Top {
    /// Draws frames until the job has ended or the chief is gone. Returns an error if the first request
    /// fails, or if the chief is gone while the job is neither over nor about to end.
    pub(crate) fn run(&self) -> Outcome {
        match self.draw() {
            // This is not a failure: the reader has closed the pipe because it needs no more output.
            Err(Failure::Error(error)) if is_closed(&error) => Ok(()),
            outcome => outcome,
        }
    }

    fn draw(&self) -> Outcome {
        let source = Source::new(&self.chief, &self.pass).map_err(Failure::usage)?;
        let screen = Screen { term: Term::buffered_stdout(), whole: self.once };
        let mut last = source.fetch().map_err(|error| Failure::Error(error.into()))?;
        // The time of the first failed request since the last answer, and the number of requests that have
        // failed since then.
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
                        "lost the chief at step {step} of {last_step}, before the job ended: {error}"
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

/// Returns true when the job had ended, or was about to end, in the chief's last snapshot. In that case it
/// is not an error that the chief is gone.
fn is_over(last: &ChiefSnapshot) -> bool {
    match last.phase {
        JobPhase::Ended => true,
        JobPhase::Failing => false,
        // The snapshot contains a reason if the job was told to end early.
        JobPhase::Starting | JobPhase::Training | JobPhase::Evaluating => {
            last.reason.is_some() || (last.last_step.0 > 0 && last.step >= last.last_step)
        }
    }
}

/// Counts one more failed request. Returns true when the chief counts as gone: when both [`TRIES`] and
/// [`GONE_AFTER`] are reached. With the time limit alone, two failures would be enough if the interval
/// between requests is long.
fn is_gone(silent: &mut Option<(Instant, u32)>) -> bool {
    let (since, tries) = silent.get_or_insert((Instant::now(), 0));
    *tries += 1;
    *tries >= TRIES && since.elapsed() >= GONE_AFTER
}

/// Returns true if the error means that the reader of the output has closed the pipe.
fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn how_it_ended(last: &ChiefSnapshot) -> String {
    let reason = last.reason.as_deref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
    let how = if last.failed { "failed" } else { "ended" };
    format!("the job has {how} at step {} of {}{reason}", last.step, last.last_step)
}

/// The output. On a terminal, each frame replaces the previous one. Elsewhere, frames are printed one after
/// the other.
struct Screen {
    term: Term,
    /// If true, all rows are drawn, even if they do not fit on the terminal.
    whole: bool,
}

impl Screen {
    fn draw(&self, snapshot: &ChiefSnapshot, trouble: Option<&str>) -> std::io::Result<()> {
        let in_place = self.term.is_term() && !self.whole;
        // If the output is not a terminal, lines may have any length.
        let (rows, columns) = self
            .term
            .size_checked()
            .map_or((usize::MAX, usize::MAX), |(rows, columns)| (rows.into(), columns.into()));
        // The last row is left free for the cursor.
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
