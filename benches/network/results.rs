//! The figures of all rounds: the raw line, and each variant compared with the plain one of the same round.

use std::fmt;

use serde::Serialize;

use crate::line::Line;
use crate::support::spread::Spread;
use crate::support::tasks::Trained;
use crate::variant::PLAIN;

/// The results of all rounds.
#[derive(Default)]
pub(crate) struct Results {
    lines: Vec<Line>,
    rows: Vec<Row>,
}

/// One variant with one number of workers; each list has one entry for each round.
struct Row {
    variant: &'static str,
    workers: u32,
    examples_per_second: Vec<f64>,
    /// The examples per second divided by those of the plain variant in the same round.
    ratio: Vec<f64>,
    bytes_up: Vec<f64>,
    bytes_down: Vec<f64>,
}

/// The content of the JSON file.
#[derive(Serialize)]
pub(crate) struct Json {
    line: JsonLine,
    rows: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonLine {
    round_trip_ms: Spread,
    up_gbit_s: Spread,
    both_up_gbit_s: Spread,
    both_down_gbit_s: Spread,
}

#[derive(Serialize)]
struct JsonRow {
    variant: &'static str,
    workers: u32,
    examples_per_second: Spread,
    ratio_to_plain: Spread,
    bytes_up_per_step: Spread,
    bytes_down_per_step: Spread,
}

impl Results {
    /// Adds the raw line of this round.
    pub(crate) fn add_line(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Adds a training of this round. The plain variant with the same number of workers must have been added
    /// before.
    pub(crate) fn add(&mut self, variant: &'static str, workers: u32, trained: &Trained) {
        let find =
            |rows: &[Row], name| rows.iter().position(|row| row.variant == name && row.workers == workers);
        let plain = find(&self.rows, PLAIN).and_then(|at| self.rows[at].examples_per_second.last().copied());
        let ratio =
            if variant == PLAIN { Some(1.0) } else { plain.map(|it| trained.examples_per_second / it) };
        let at = find(&self.rows, variant).unwrap_or_else(|| {
            let figures = Vec::new;
            self.rows.push(Row {
                variant,
                workers,
                examples_per_second: figures(),
                ratio: figures(),
                bytes_up: figures(),
                bytes_down: figures(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.examples_per_second.push(trained.examples_per_second);
        row.ratio.extend(ratio);
        row.bytes_up.push(trained.bytes_up_per_push);
        row.bytes_down.push(trained.bytes_down_per_push);
    }

    /// Returns all results for the JSON file.
    pub(crate) fn to_json(&self) -> Json {
        let line = |figure: fn(&Line) -> f64| Spread::of(self.lines.iter().map(figure));
        Json {
            line: JsonLine {
                round_trip_ms: line(|line| line.round_trip_ms),
                up_gbit_s: line(|line| line.up_gbit_s),
                both_up_gbit_s: line(|line| line.both_up_gbit_s),
                both_down_gbit_s: line(|line| line.both_down_gbit_s),
            },
            rows: self.rows.iter().map(Row::to_json).collect(),
        }
    }
}

impl Row {
    fn to_json(&self) -> JsonRow {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        JsonRow {
            variant: self.variant,
            workers: self.workers,
            examples_per_second: spread(&self.examples_per_second),
            ratio_to_plain: spread(&self.ratio),
            bytes_up_per_step: spread(&self.bytes_up),
            bytes_down_per_step: spread(&self.bytes_down),
        }
    }
}

/// Shows the results as a Markdown table. A cell has the median and, in brackets, minimum and maximum.
impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Json { line, rows } = self.to_json();
        writeln!(f, "raw line, to and fro: {} ms", line.round_trip_ms.shown(1))?;
        writeln!(f, "raw line, one way: {} Gbit/s", line.up_gbit_s.shown(3))?;
        let (up, down) = (line.both_up_gbit_s.shown(3), line.both_down_gbit_s.shown(3));
        writeln!(f, "raw line, two ways at once: {up} Gbit/s to the ps, {down} Gbit/s from the ps")?;
        writeln!(f, "\n| variant | workers | examples/s | ratio to plain | MB per step: push, reply |")?;
        writeln!(f, "|---|---|---|---|---|")?;
        for row in rows {
            let [up, down] = [row.bytes_up_per_step, row.bytes_down_per_step].map(|it| it.median / 1e6);
            writeln!(
                f,
                "| {} | {} | {} | {} | {up:.2}, {down:.2} |",
                row.variant,
                row.workers,
                row.examples_per_second.shown(0),
                row.ratio_to_plain.shown(2)
            )?;
        }
        Ok(())
    }
}
