//! Writes evaluations to event files for TensorBoard.

use std::path::PathBuf;

use pushpull_chief::tensorboard::{EventWriter, evaluated};
use pushpull_storage::EvaluationRecord;

/// Returns a function that writes each evaluation to event files in `dir`. Without `dir` the function does
/// nothing. With `dir`, it logs the first error, and writes nothing after that; the evaluations continue.
pub(super) fn plotter(dir: Option<PathBuf>) -> impl FnMut(&EvaluationRecord) + Send + 'static {
    let mut writer = None;
    let mut failed = dir.is_none();
    move |record| {
        if failed {
            return;
        }
        let dir = dir.as_deref().expect("without a directory it has failed");
        let plotted = match &mut writer {
            Some(writer) => Ok(writer),
            none => EventWriter::create(dir).map(|created| none.insert(created)),
        };
        let summaries = evaluated(record.step, &record.evaluation);
        if let Err(error) = plotted.and_then(|writer: &mut EventWriter| writer.write(&summaries)) {
            tracing::warn!("stopped plotting evaluations: {error}");
            failed = true;
        }
    }
}
