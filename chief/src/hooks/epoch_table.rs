//! Logs a table with one line for each epoch: loss, evaluation, learning rate and speed. Reads no clock.
//!
//! Wanted properties: (A) each epoch is in exactly one line, in order; epochs that end between two reports
//! of the workers share a line; (B) a line has the latest evaluation of its epochs, if that evaluation is
//! known before the next line is due; (C) all lines have the columns of the header, at the same places.

use std::time::Duration;

use pushpull_messages::cadence::{Epochs, EvalEverySpec};
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, MetricValue};
use pushpull_messages::optimizer::UpdateSpec;

use super::loss_sum::LossSum;
use crate::error::ChiefError;
use crate::hook::{Hook, HookContext};
use crate::monitor::TrainingSnapshot;
use crate::report::JobEnd;

/// The maximum number of metrics that have a column.
const METRICS_SHOWN_MAX: usize = 6;
/// The maximum number of characters in the title of a column.
const TITLE_CHARACTERS_MAX: usize = 20;
/// The minimum number of characters of a column, which suffices for most numbers.
const WIDTH_MIN: usize = 9;

/// A hook that logs the table.
pub(crate) struct EpochTable {
    lines: Lines,
    /// The names of the metrics that have a column.
    metrics: Vec<String>,
    evaluates: bool,
    /// Whether the metrics are computed on the training batches.
    measures: bool,
    update: UpdateSpec,
    /// The last known factor by which hooks have multiplied the learning rate.
    rate_factor: f32,
    last_step: GlobalStep,
    /// The number of examples in one step of a worker.
    step_examples: u64,
    /// Whether the header was logged.
    titled: bool,
    /// The last line's number, its step, and the time from the start of the training to this step.
    shown: (u64, GlobalStep, Duration),
    /// The losses since the last line.
    losses: LossSum,
    /// A line that waits for its evaluation.
    pending: Option<Line>,
    /// The latest evaluation, and the number of the line that shows it.
    evaluation: Option<(u64, Evaluation)>,
}

/// What a line of the table stands for.
#[derive(Clone, Copy, Debug)]
enum Lines {
    /// An epoch. If `by_steps` is true, evaluations are due at intervals of steps, so they may fall within
    /// an epoch.
    Epoch { epochs: Epochs, by_steps: bool },
    /// This number of updates. Such lines are used if the job does not say where an epoch ends.
    Steps(u64),
}

impl Lines {
    /// Returns the number of lines that are complete after `step` updates.
    fn complete(self, step: GlobalStep) -> u64 {
        match self {
            Self::Epoch { epochs, .. } => epochs.ended(step),
            Self::Steps(steps) => step.0 / steps.max(1),
        }
    }

    /// Returns the number of the line in which an evaluation of `step` is shown.
    fn of_evaluation(self, step: GlobalStep) -> u64 {
        match self {
            Self::Epoch { epochs, by_steps: true } => epochs.ended(GlobalStep(step.0.saturating_sub(1))) + 1,
            other => other.complete(step),
        }
    }
}

/// The figures of a line.
struct Line {
    /// The numbers of the first and the last epoch.
    epochs: [u64; 2],
    step: GlobalStep,
    loss: Option<f32>,
    /// The metrics of the training batches, as they were last reported.
    metrics: Vec<MetricValue>,
    took: Duration,
    examples_per_s: f64,
    learning_rate: f32,
}

impl EpochTable {
    /// Returns the table of a job on `workers` workers. Returns `None` if the job does not say where its
    /// epochs end, and is not evaluated at intervals of steps either.
    pub(crate) fn of(job: &JobSpec, workers: u32) -> Option<Self> {
        let lines = match (job.epochs(workers), job.eval_every) {
            (Some(epochs), every) => {
                Lines::Epoch { epochs, by_steps: matches!(every, Some(EvalEverySpec::Steps(_))) }
            }
            (None, Some(EvalEverySpec::Steps(steps))) => Lines::Steps(steps),
            (None, _) => return None,
        };
        let metrics = job.graph.metrics.iter().map(|metric| metric.name.clone()).take(METRICS_SHOWN_MAX);
        Some(Self {
            lines,
            metrics: metrics.collect(),
            evaluates: job.eval_every.is_some(),
            measures: job.metrics_every != Some(0),
            update: job.update(),
            rate_factor: 1.0,
            last_step: job.last_step,
            step_examples: job.step_examples(),
            titled: false,
            shown: (0, GlobalStep(0), Duration::ZERO),
            losses: LossSum::default(),
            pending: None,
            evaluation: None,
        })
    }

    /// Takes in a snapshot, and returns the lines that are complete.
    fn advance(&mut self, snapshot: &TrainingSnapshot) -> Vec<String> {
        self.losses.add(snapshot);
        let step = snapshot.step();
        let complete = self.lines.complete(step);
        let (number, from, since) = self.shown;
        if complete <= number {
            return Vec::new();
        }
        let mut lines = self.flush();
        let took = snapshot.at.saturating_sub(since);
        let gradients =
            step.0.saturating_sub(from.0) as f64 * f64::from(snapshot.progress.gradients_per_update);
        self.rate_factor = snapshot.learning_rate_factor().unwrap_or(self.rate_factor);
        let rate = self.update.learning_rate(step.0.saturating_sub(1), self.last_step.0);
        self.pending = Some(Line {
            epochs: [number + 1, complete],
            step,
            loss: self.losses.take(),
            took,
            // The minimum of 1 ms avoids a division by zero.
            examples_per_s: gradients * self.step_examples as f64 / took.as_secs_f64().max(1e-3),
            metrics: snapshot.progress.metrics.clone(),
            learning_rate: rate * self.rate_factor,
        });
        self.shown = (complete, step, snapshot.at);
        if !self.evaluates || self.evaluation.as_ref().is_some_and(|(number, _)| *number >= complete) {
            lines.extend(self.flush());
        }
        lines
    }

    /// Takes in an evaluation, and returns the lines that are complete.
    fn add(&mut self, step: GlobalStep, evaluation: &Evaluation) -> Vec<String> {
        let number = self.lines.of_evaluation(step);
        self.evaluation = Some((number, evaluation.clone()));
        match &self.pending {
            Some(line) if line.epochs[1] <= number => self.flush(),
            _ => Vec::new(),
        }
    }

    /// Returns the line that waits for its evaluation, if there is one. The first call that returns a line
    /// also returns the header, before the line.
    fn flush(&mut self) -> Vec<String> {
        let Some(line) = self.pending.take() else { return Vec::new() };
        let [first, last] = line.epochs;
        let evaluation = self.evaluation.take_if(|(number, _)| (first..=last).contains(number));
        let cells = self.cells(&line, evaluation.as_ref().map(|(_, evaluation)| evaluation));
        let row = |text: fn(&Cell) -> &str| {
            let cells = cells.iter().map(|cell| format!("{:>1$}", text(cell), cell.width));
            cells.collect::<Vec<_>>().join("  ")
        };
        let header = (!std::mem::replace(&mut self.titled, true)).then(|| row(|cell| &cell.title));
        header.into_iter().chain([row(|cell| &cell.value)]).collect()
    }

    /// Returns the cells of a line.
    fn cells(&self, line: &Line, evaluation: Option<&Evaluation>) -> Vec<Cell> {
        let cell = |title: &str, value| Cell::new(title, value, WIDTH_MIN);
        let mut cells = Vec::new();
        if let Lines::Epoch { epochs, .. } = self.lines {
            let all = epochs.ended(self.last_step);
            let value = match line.epochs {
                [first, last] if first == last => format!("{last}/{all}"),
                [first, last] => format!("{first}-{last}/{all}"),
            };
            cells.push(Cell::new("epoch", value, format!("{all}-{all}/{all}").len()));
        }
        cells.push(Cell::new("step", line.step.to_string(), self.last_step.to_string().len()));
        cells.push(cell("loss", number(line.loss)));
        let value_of = |metrics: &[MetricValue], name: &str| {
            metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
        };
        for name in self.metrics.iter().filter(|_| self.measures) {
            cells.push(cell(name, number(value_of(&line.metrics, name))));
        }
        if self.evaluates {
            cells.push(cell("val loss", number(evaluation.map(|evaluation| evaluation.loss))));
            for name in &self.metrics {
                let value = evaluation.and_then(|evaluation| value_of(&evaluation.metrics, name));
                cells.push(cell(&format!("val {name}"), number(value)));
            }
        }
        cells.push(cell("rate", number(Some(line.learning_rate))));
        cells.push(cell("seconds", format!("{:.1}", line.took.as_secs_f64())));
        cells.push(cell("examples/s", format!("{:.0}", line.examples_per_s)));
        cells
    }
}

/// A cell of the table, with the title and the width of its column.
struct Cell {
    title: String,
    value: String,
    width: usize,
}

impl Cell {
    /// Makes a cell. `longest` is the length of the longest text that its column may have.
    fn new(title: &str, value: String, longest: usize) -> Self {
        let title: String = title.chars().take(TITLE_CHARACTERS_MAX).collect();
        let width = title.chars().count().max(WIDTH_MIN).max(longest);
        Self { title, value, width }
    }
}

/// Returns a number as text of at most [`WIDTH_MIN`] characters.
fn number(value: Option<f32>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value != 0.0 && value.is_finite() && !(1e-3..1e3).contains(&value.abs()) => {
            format!("{value:.2e}")
        }
        Some(value) => format!("{value:.4}"),
    }
}

fn log(lines: Vec<String>) {
    lines.into_iter().for_each(|line| tracing::info!("{line}"));
}

impl Hook for EpochTable {
    fn begin(&mut self, _: &JobSpec, step: GlobalStep) {
        self.shown = (self.lines.complete(step), step, Duration::ZERO);
    }

    fn progress(&mut self, snapshot: &TrainingSnapshot, _: &mut HookContext) {
        log(self.advance(snapshot));
    }

    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, _: &mut HookContext) {
        log(self.add(step, evaluation));
    }

    fn end(&mut self, _: Result<&JobEnd, &ChiefError>) {
        log(self.flush());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::tests::job;
    use crate::monitor::WorkerReport;
    use crate::report::JobProgress;

    fn table(eval_every: Option<EvalEverySpec>, epoch_examples: Option<u64>) -> EpochTable {
        let job = JobSpec { eval_every, epoch_examples, last_step: GlobalStep(40), ..job() };
        EpochTable::of(&job, 1).expect("it has lines")
    }

    fn snapshot(step: u64, seconds: u64, steps: u64, loss: f32) -> TrainingSnapshot {
        let (global_step, at) = (GlobalStep(step), Duration::from_secs(seconds));
        let progress = JobProgress { global_step, gradients_per_update: 1, ..Default::default() };
        let report = WorkerReport { steps, loss: (steps > 0).then_some(loss), ..Default::default() };
        TrainingSnapshot { at, progress, reports: [(0, report)].into(), ..Default::default() }
    }

    fn evaluation(loss: f32) -> Evaluation {
        let metrics = vec![MetricValue { name: "accuracy".into(), value: 0.5 }];
        Evaluation { loss, metrics, examples: 1, variables_crc32c: 0 }
    }

    /// Splits a line at white space.
    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn a_line_waits_for_the_evaluation_of_its_epoch() {
        let mut table = table(Some(EvalEverySpec::Epoch), Some(10));
        table.metrics = vec!["accuracy".into()];
        assert!(table.advance(&snapshot(9, 1, 9, 2.0)).is_empty());
        let mut seen = snapshot(12, 2, 3, 1.0);
        seen.progress.metrics = vec![MetricValue { name: "accuracy".into(), value: 0.75 }];
        assert!(table.advance(&seen).is_empty());
        let lines = table.add(GlobalStep(10), &evaluation(0.25));
        let [header, line] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            header.split("  ").map(str::trim).filter(|title| !title.is_empty()).collect::<Vec<_>>(),
            [
                "epoch",
                "step",
                "loss",
                "accuracy",
                "val loss",
                "val accuracy",
                "rate",
                "seconds",
                "examples/s"
            ]
        );
        assert_eq!(words(line), ["1/4", "12", "1.7500", "0.7500", "0.2500", "0.5000", "0.1000", "2.0", "6"]);
        // The evaluation may be known before the end of its epoch is reported.
        assert!(table.add(GlobalStep(20), &evaluation(0.125)).is_empty());
        let lines = table.advance(&snapshot(20, 4, 8, 1.0));
        assert_eq!(words(&lines[0])[..5], ["2/4", "20", "1.0000", "-", "0.1250"]);
        // The next epoch has no evaluation, and does not keep the table waiting.
        assert!(table.advance(&snapshot(30, 5, 0, 0.0)).is_empty());
        let lines = table.advance(&snapshot(40, 6, 9, 1e-5));
        assert_eq!(words(&lines[0])[..6], ["3/4", "30", "-", "-", "-", "-"]);
        assert_eq!(words(&table.flush()[0])[..4], ["4/4", "40", "1.00e-5", "-"]);
    }

    #[test]
    fn evaluations_within_an_epoch_are_shown_at_its_end() {
        let mut table = table(Some(EvalEverySpec::Steps(4)), Some(10));
        assert!(table.add(GlobalStep(4), &evaluation(1.0)).is_empty());
        assert!(table.add(GlobalStep(8), &evaluation(2.0)).is_empty());
        assert_eq!(words(&table.advance(&snapshot(11, 1, 11, 1.0))[1])[3], "2.0000");
        // An evaluation of a later epoch is not shown in an earlier line.
        assert!(table.advance(&snapshot(20, 2, 9, 1.0)).is_empty());
        assert_eq!(words(&table.add(GlobalStep(24), &evaluation(3.0))[0])[3], "-");
        assert_eq!(words(&table.advance(&snapshot(30, 3, 9, 1.0))[0])[3], "3.0000");
    }

    #[test]
    fn a_job_without_epochs_has_a_line_an_evaluation() {
        let mut table = table(Some(EvalEverySpec::Steps(10)), None);
        table.advance(&snapshot(10, 1, 9, 1.0));
        let lines = table.add(GlobalStep(10), &evaluation(0.25));
        assert_eq!(words(&lines[1])[..3], ["10", "1.0000", "0.2500"]);
        assert!(EpochTable::of(&job(), 1).is_none(), "nothing is known about such a job");
    }

    #[test]
    fn a_resumed_job_continues_its_epochs() {
        let mut table = table(None, Some(10));
        table.begin(&job(), GlobalStep(25));
        assert!(table.advance(&snapshot(29, 1, 4, 1.0)).is_empty());
        let lines = table.advance(&snapshot(31, 3, 2, 1.0));
        assert_eq!(words(&lines[1]), ["3/4", "31", "1.0000", "0.1000", "3.0", "2"]);
    }

    proptest! {
        /// Checks that each epoch is in one line (A), that an evaluation is in the line of its epoch (B),
        /// and that all lines are as long as the header (C). Draws the steps between snapshots, and after
        /// which snapshots an evaluation arrives.
        #[test]
        fn each_epoch_is_in_one_line(
            events in prop::collection::vec((0u64..9, any::<bool>()), 1..40),
            every in prop::option::of(prop_oneof![Just(EvalEverySpec::Epoch), (1u64..7).prop_map(EvalEverySpec::Steps)]),
        ) {
            let mut table = table(every, Some(4));
            let (mut step, mut lines) = (0, Vec::new());
            for (more, evaluated) in events {
                step += more;
                lines.extend(table.advance(&snapshot(step, step, more, 0.5)));
                if evaluated && every.is_some() {
                    lines.extend(table.add(GlobalStep(step), &evaluation(step as f32)));
                }
            }
            lines.extend(table.flush());
            let mut next = 1;
            for line in lines.iter().skip(1) {
                prop_assert_eq!(line.len(), lines[0].len(), "(C)");
                let words = words(line);
                let epochs = words[0].split_once('/').unwrap().0;
                let (first, last) = epochs.split_once('-').unwrap_or((epochs, epochs));
                prop_assert_eq!(first.parse(), Ok(next), "(A)");
                next = last.parse::<u64>().unwrap() + 1;
                if every.is_some() && words[3] != "-" {
                    let shown = words[3].parse::<f32>().unwrap() as u64;
                    let line = table.lines.of_evaluation(GlobalStep(shown));
                    prop_assert!((first.parse().unwrap()..next).contains(&line), "(B)");
                }
            }
            prop_assert_eq!(next, step / 4 + 1, "(A)");
        }
    }
}
