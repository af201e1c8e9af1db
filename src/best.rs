//! The best evaluation of a job, with the values that were evaluated. Both are kept in the process of worker
//! 0, which makes the evaluations while the job trains.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pushpull_messages::message::Evaluation;
use pushpull_worker::{BestSpec, EvaluationInfo, Hook, HookError, MakeHook, Values};

use crate::model::Model;

/// The best evaluation of a job, and the model with the values that were evaluated.
#[derive(Debug)]
#[non_exhaustive]
pub struct Best {
    /// The number of updates that were applied to the values. In an asynchronous job the number may differ
    /// between the shards; this field then holds the greatest number.
    pub step: u64,
    /// The evaluation.
    pub evaluation: Evaluation,
    /// The model with the values that were evaluated, which are the moving averages if the job keeps them.
    pub model: Model,
}

/// The best evaluation so far, and the values that were evaluated.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub step: u64,
    pub evaluation: Evaluation,
    pub values: Arc<Values>,
}

/// Keeps the best evaluation while a job trains. All clones share it.
#[derive(Clone, Debug)]
pub(crate) struct BestKeeper {
    by: BestSpec,
    kept: Arc<Mutex<Option<Kept>>>,
}

impl BestKeeper {
    pub(crate) fn new(by: BestSpec) -> Self {
        Self { by, kept: Arc::default() }
    }

    /// Returns the constructor of the hook that passes a worker's evaluations to this keeper.
    pub(crate) fn hook(&self) -> MakeHook {
        let keeper = self.clone();
        Arc::new(move || Box::new(keeper.clone()))
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an evaluation if it is better than the best so far.
    fn offer(&self, new: EvaluationInfo<'_>) {
        let mut kept = self.kept();
        if self.by.is_better(new.evaluation, kept.as_ref().map(|kept| &kept.evaluation)) {
            let (evaluation, values) = (new.evaluation.clone(), Arc::clone(new.values));
            *kept = Some(Kept { step: new.step.0, evaluation, values });
        }
    }

    /// Returns the best of all evaluations, including `end`, which was made at the end of the job.
    pub(crate) fn take(&self, end: Kept) -> Kept {
        match self.kept().take() {
            Some(kept) if !self.by.is_better(&end.evaluation, Some(&kept.evaluation)) => kept,
            _ => end,
        }
    }
}

impl Hook for BestKeeper {
    fn evaluated(&mut self, info: &EvaluationInfo<'_>) -> Result<(), HookError> {
        self.offer(*info);
        Ok(())
    }
}
