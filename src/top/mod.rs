//! `pushpull top`: a job on a terminal, as its chief tells it over HTTP. Knows nothing of the cluster but that address.

mod frame;
mod line;
mod number;
mod source;
mod table;

use std::time::{Duration, Instant};

use console::Term;
use messages::observe::{ChiefSnapshot, JobPhase};

use self::frame::{Size, frame};
use self::source::Source;
use crate::exit::{Failure, Outcome};

/// A chief that has said nothing for so long is gone.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// Where no terminal says how wide it is.
const COLUMNS: usize = 132;

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
    /// Draws frames until the job has ended, or the chief is gone: the latter is an error where the job had not ended.
    pub(crate) fn run(&self) -> Outcome {
        let source = Source::new(&self.chief).map_err(Failure::usage)?;
        let screen = Screen { term: Term::buffered_stdout(), whole: self.once };
        let mut last = source.fetch().map_err(|error| Failure::Error(error.into()))?;
        let mut heard = Instant::now();
        screen.draw(&last, None)?;
        while !self.once && last.phase != JobPhase::Ended {
            std::thread::sleep(self.every);
            match source.fetch() {
                Ok(now) => {
                    (last, heard) = (now, Instant::now());
                    screen.draw(&last, None)?;
                }
                Err(error) if heard.elapsed() < GONE_AFTER && !is_over(&last) => {
                    screen.draw(&last, Some(&error.to_string()))?;
                }
                Err(_) if is_over(&last) => break,
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

fn how_it_ended(last: &ChiefSnapshot) -> String {
    let reason =
        last.reason.as_deref().map(|reason| format!(": {}", line::clean(reason))).unwrap_or_default();
    format!("the job has ended at step {} of {}{reason}", last.step, last.last_step)
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
        let (rows, columns) = self.term.size_checked().unwrap_or((u16::MAX, COLUMNS as u16));
        // The cursor stands on the last row.
        let rows = if in_place { usize::from(rows).saturating_sub(1) } else { usize::MAX };
        let lines = frame(snapshot, trouble, Size { columns: usize::from(columns), rows });
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
