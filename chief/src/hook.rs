//! What may be hooked into a job: called about once a second while it trains, and at its turns. A hook sees the job and may
//! wish, and decides nothing by itself. Knows no task.

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

/// Something that goes along with a job. Every call is made on the chief's own thread, which answers the workers, too: whatever takes
/// longer than some milliseconds belongs on another one.
///
/// The calls come in this order: `begin` once, before the first of `progress`, `summaries`, `spans`, `checkpoint` and `evaluated`, each of
/// which comes any number of times; then `end` once, also for a job that never began.
pub trait Hook: Send {
    /// The chief's clock, on which spans are told, began at that snapshot. Comes before all else.
    fn clock(&mut self, began: SystemTime) {
        let _ = began;
    }

    /// The training begins, after so many updates.
    fn begin(&mut self, job: &JobSpec, step: GlobalStep) {
        let _ = (job, step);
    }

    /// About once a second while the workers train, and once more when the training has ended well.
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        let _ = (snapshot, context);
    }

    /// What workers, or hooks, want to be plotted.
    fn summaries(&mut self, summaries: &[SummarySpec]) {
        let _ = summaries;
    }

    /// What took a while in the steps that are traced, at some tasks; on the chief's clock.
    fn spans(&mut self, spans: &[SpanSpec]) {
        let _ = spans;
    }

    /// A checkpoint of that step is complete, under that name.
    fn checkpoint(&mut self, step: GlobalStep, name: &str) {
        let _ = (step, name);
    }

    /// The variables of that step have been evaluated: by an evaluator beside the training, or at its end.
    fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, context: &mut HookContext) {
        let _ = (step, evaluation, context);
    }

    /// The job is over.
    fn end(&mut self, result: Result<&JobEnd, &ChiefError>) {
        let _ = result;
    }
}

/// Makes a hook, one for each run of a job.
pub type MakeHook = std::sync::Arc<dyn Fn() -> Box<dyn Hook> + Send + Sync>;

/// What hooks ask for in one call. After the training has ended nothing is done any more, only plotted.
#[derive(Debug, Default)]
pub struct HookContext {
    save: bool,
    stop: Option<String>,
    summaries: Vec<SummarySpec>,
}

impl HookContext {
    /// A checkpoint, soon.
    pub fn save(&mut self) {
        self.save = true;
    }

    /// The end of the training, which counts as a good one: it is evaluated, saved and reported. The first reason counts.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.stop.get_or_insert_with(|| reason.into());
    }

    /// Something to be plotted; at most [`SUMMARIES_MAX`] in one call.
    pub fn plot(&mut self, summary: SummarySpec) {
        if self.summaries.len() < SUMMARIES_MAX {
            self.summaries.push(summary);
        }
    }

    /// What is to be plotted.
    pub(crate) fn take_summaries(&mut self) -> Vec<SummarySpec> {
        std::mem::take(&mut self.summaries)
    }

    /// What else is wanted.
    pub(crate) fn into_commands(self) -> impl Iterator<Item = Command> {
        let save = self.save.then_some(Command::Save);
        save.into_iter().chain(self.stop.map(|reason| Command::Stop { reason }))
    }
}
