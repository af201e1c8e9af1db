//! Hooks of a job: called about once a second while the job trains, and at its milestones. A hook observes
//! the job and may make requests, which the chief carries out. Hooks do not communicate with other tasks.

use std::time::SystemTime;

use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::Evaluation;
use pushpull_messages::observe::SpanSpec;
use pushpull_messages::summary::{SUMMARIES_MAX, SummarySpec};

use crate::command::Command;
use crate::error::ChiefError;
use crate::monitor::TrainingSnapshot;
use crate::report::JobEnd;

/// A hook, whose methods are called as a job proceeds. Every call is made on the chief's own thread, which
/// also replies to the workers, so work that takes longer than a few milliseconds belongs on another thread.
///
/// The calls come in this order: `clock` once; `begin` once; `progress`, `summaries`, `spans`, `checkpoint`
/// and `evaluated`, each any number of times; `end` once. `begin` is called just before the first of the
/// calls that follow it. A job without any of them calls only `clock` and `end`.
pub trait Hook: Send {
    /// Called first, with the time at which the chief's clock was started. The times of spans count from
    /// this moment.
    fn clock(&mut self, began: SystemTime) {
        let _ = began;
    }

    /// Returns the number of a worker's steps between two plots of the summaries that the graph declares;
    /// `None` if the hook does not need these plots. Called once, before the training. If several hooks
    /// return a number, the smallest one is used.
    fn summary_steps(&self) -> Option<u64> {
        None
    }

    /// Called when the training begins, or when a chief that was started again continues it, with the number
    /// of updates applied so far.
    fn begin(&mut self, job: &JobSpec, step: GlobalStep) {
        let _ = (job, step);
    }

    /// Called about once a second while the workers train, and once more when the training has ended
    /// successfully.
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        let _ = (snapshot, context);
    }

    /// Called with summaries that workers or hooks plot.
    fn summaries(&mut self, summaries: &[SummarySpec]) {
        let _ = summaries;
    }

    /// Called with the spans of traced steps; their times are on the chief's clock.
    fn spans(&mut self, spans: &[SpanSpec]) {
        let _ = spans;
    }

    /// Called when a checkpoint is complete, with its step and its name.
    fn checkpoint(&mut self, step: GlobalStep, name: &str) {
        let _ = (step, name);
    }

    /// Called when the variables of this step have been evaluated: by worker 0 or an evaluator during the
    /// training, or at the end of the training.
    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, context: &mut HookContext) {
        let _ = (step, evaluation, context);
    }

    /// Called when the job has ended.
    fn end(&mut self, result: Result<&JobEnd, &ChiefError>) {
        let _ = result;
    }
}

/// A constructor of hooks, called once for each run of a job.
pub type MakeHook = std::sync::Arc<dyn Fn() -> Box<dyn Hook> + Send + Sync>;

/// The requests that hooks make during one call. After the training has ended, summaries are still plotted,
/// and all other requests are ignored.
#[derive(Debug, Default)]
pub struct HookContext {
    /// The factor by which hooks multiply the learning rate; `None` if no hook has changed it.
    current_rate: Option<f32>,
    rate: Option<f32>,
    save: bool,
    stop: Option<String>,
    summaries: Vec<SummarySpec>,
}

impl HookContext {
    /// Makes the context of a call. `rate` is the factor by which hooks multiply the learning rate; `None`
    /// if no hook has changed it.
    pub(crate) fn new(rate: Option<f32>) -> Self {
        Self { current_rate: rate, ..Self::default() }
    }

    /// Returns the factor by which hooks have multiplied the learning rate, including a request that the
    /// chief has not carried out yet; 1 if no hook has changed it.
    pub fn learning_rate_factor(&self) -> f32 {
        self.rate.or(self.current_rate).unwrap_or(1.0)
    }

    /// Requests that the learning rates of the schedule and of all groups of variables are multiplied by
    /// `factor` from now on. All shards make the change at the same version, usually within a second or two.
    /// The factor replaces the previous factor, and is saved in checkpoints. A factor that is not finite or
    /// not above 0 is ignored with a warning. If there are several requests, the last one counts.
    pub fn set_learning_rate_factor(&mut self, factor: f32) {
        if factor.is_finite() && factor > 0.0 {
            self.rate = Some(factor);
        } else {
            tracing::warn!(factor, "ignored a learning rate factor: expected a finite number above 0");
        }
    }

    /// Requests a checkpoint as soon as possible.
    pub fn save(&mut self) {
        self.save = true;
    }

    /// Requests a successful end of the training: the job is evaluated, saved and reported. If there are
    /// several requests, the first reason is used.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.stop.get_or_insert_with(|| reason.into());
    }

    /// Plots a summary. At most [`SUMMARIES_MAX`] summaries are accepted in one call; further summaries are
    /// dropped.
    pub fn plot(&mut self, summary: SummarySpec) {
        if self.summaries.len() < SUMMARIES_MAX {
            self.summaries.push(summary);
        }
    }

    /// Removes and returns the summaries to plot.
    pub(crate) fn take_summaries(&mut self) -> Vec<SummarySpec> {
        std::mem::take(&mut self.summaries)
    }

    /// Returns the requested commands.
    pub(crate) fn into_commands(self) -> impl Iterator<Item = Command> {
        let rate = self.rate.map(|factor| Command::LearningRate { factor });
        let save = self.save.then_some(Command::Save);
        rate.into_iter().chain(save).chain(self.stop.map(|reason| Command::Stop { reason }))
    }
}
