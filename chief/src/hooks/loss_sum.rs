//! The mean training loss over several snapshots.

use crate::monitor::TrainingSnapshot;

/// The sum of the training losses of all workers' steps since the last call of [`take`](Self::take).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossSum {
    sum: f64,
    steps: u64,
}

impl LossSum {
    /// Adds the losses that workers have reported since the previous snapshot. The loss of a report is the
    /// mean over its steps.
    pub(super) fn add(&mut self, snapshot: &TrainingSnapshot) {
        for report in snapshot.reports.values() {
            if let Some(loss) = report.loss {
                self.sum += f64::from(loss) * report.steps as f64;
                self.steps += report.steps;
            }
        }
    }

    /// Returns the mean loss over all steps since the last call, and begins anew; `None` if there were no
    /// steps.
    pub(super) fn take(&mut self) -> Option<f32> {
        let Self { sum, steps } = std::mem::take(self);
        (steps > 0).then(|| (sum / steps as f64) as f32)
    }
}
