//! What must hold at the end of a simulated job. The letters are those of ARCHITECTURE.md.

use pushpull_chief::JobReport;
use pushpull_messages::checkpoint::{CheckpointName, Part};
use pushpull_messages::id::VariableId;
use pushpull_messages::placement::PartitionerSpec;
use pushpull_messages::sync::SyncSpec;
use pushpull_messages::variable::VariableSpec;
use pushpull_storage::{
    Catalog, CheckpointState, EvaluationRecord, ManifestSpec, RECORD_BYTES_MAX, Store, StoreError, read_piece,
};

use crate::job::job;
use crate::scenario::Scenario;

/// Returns the number of slices of all variables.
fn slices(scenario: &Scenario) -> u64 {
    let slices = |variable: &VariableSpec| match scenario.partitioner {
        PartitionerSpec::Fixed { slices } => u64::from(slices).min(variable.rows() as u64),
        _ => 1,
    };
    job(scenario).graph.variables.iter().map(slices).sum()
}

/// Checks the report of a trained job.
///
/// # Errors
/// Returns the first property that does not hold.
pub fn check(scenario: &Scenario, report: &JobReport) -> Result<(), String> {
    let steps = scenario.steps;
    if report.steps.0 != steps {
        return Err(format!("V3: {} updates, expected {steps}", report.steps));
    }
    let (placed, reported) = (scenario.ps * scenario.shards, report.shards.len() as u32);
    // The others take over the variables of a host that does not come back.
    let rest = scenario.may_leave_out() && reported.is_multiple_of(scenario.shards);
    if reported != placed && !(reported < placed && (rest || scenario.has_few_slices())) {
        return Err(format!("{reported} shards reported, expected {placed}"));
    }
    let (expected, reported) =
        (slices(scenario), report.shards.iter().map(|(_, seen)| seen.slices).sum::<u64>());
    if reported != expected {
        return Err(format!("the shards of the report have {reported} slices, expected {expected}"));
    }
    for (shard, seen) in &report.shards {
        if !seen.pushes.add_up() {
            return Err(format!("V2 on {shard}: {:?}", seen.pushes));
        }
        if seen.version.0 != steps {
            return Err(format!("V3 on {shard}: version {}, expected {steps}", seen.version));
        }
        if let SyncSpec::Bounded { staleness } = scenario.sync
            && seen.steps_behind.max > u64::from(staleness)
        {
            return Err(format!(
                "S2 on {shard}: {} steps behind, expected at most {staleness}",
                seen.steps_behind.max
            ));
        }
        // Only the other steps in flight come between a step's beginning and its update.
        let alone = matches!(scenario.sync, SyncSpec::Async { .. }) && scenario.workers == 1;
        if alone && scenario.keeps_workers() && seen.staleness.max >= u64::from(scenario.pipeline) {
            return Err(format!(
                "staleness on {shard}: {}, pipeline {}",
                seen.staleness.max, scenario.pipeline
            ));
        }
        // A worker that leaves and comes back gives nothing to some updates.
        let gradients = u64::from(scenario.workers) * (steps - seen.began.0);
        if scenario.sync == SyncSpec::SYNC && scenario.keeps_workers() && seen.pushes.held != gradients {
            return Err(format!("S1 on {shard}: {} gradients, expected {gradients}", seen.pushes.held));
        }
        if seen.held_bytes != 0 || seen.waiting != 0 {
            return Err(format!("{shard} holds {} bytes and {} pulls", seen.held_bytes, seen.waiting));
        }
    }
    check_saved(scenario, report)
}

/// Checks that the last step of a trained job was saved, or that the report says otherwise.
fn check_saved(scenario: &Scenario, report: &JobReport) -> Result<(), String> {
    let saved = report.last_checkpoint.map(|name| name.step.0);
    if scenario.save_steps.is_none() || saved == Some(scenario.steps) {
        return Ok(());
    }
    match report.unsaved.is_some() && !scenario.saves_last() {
        true => Ok(()),
        false => Err(format!("C1: the last step was not saved, but {saved:?}")),
    }
}

/// Checks that the evaluator has found the same variables in the last checkpoint as the job had.
///
/// # Errors
/// Returns the difference.
pub async fn check_evaluated(scenario: &Scenario, files: &Store, report: &JobReport) -> Result<(), String> {
    let Some(name) = report.last_checkpoint.filter(|name| name.step.0 == scenario.steps) else {
        return Ok(());
    };
    let bytes = files.get(&EvaluationRecord::file(name), RECORD_BYTES_MAX).await;
    // An evaluator skips a checkpoint that it cannot read.
    if !scenario.saves_last() && matches!(bytes, Err(StoreError::Missing { .. })) {
        return Ok(());
    }
    let bytes = bytes.map_err(|error| format!("the last checkpoint was not evaluated: {error}"))?;
    let record = EvaluationRecord::decode(&bytes).map_err(|error| error.to_string())?;
    let (found, expected) = (record.evaluation.variables_crc32c, report.evaluation.variables_crc32c);
    match found == expected {
        true => Ok(()),
        false => Err(format!("C2: the evaluator read {found:08x} from {name}, the job had {expected:08x}")),
    }
}

/// Returns the step of the newest whole checkpoint; 0 if there is none.
///
/// # Errors
/// Returns the reason if the store cannot be listed.
pub async fn newest_step(files: &Store) -> Result<u64, String> {
    let list = Catalog::new(files.clone()).list().await.map_err(|error| error.to_string())?;
    let whole = list.iter().find(|(_, state)| matches!(state, CheckpointState::Committed(_)));
    Ok(whole.map_or(0, |(name, _)| name.step.0))
}

/// Checks that every checkpoint with a manifest is whole, byte by byte (C1). If `may_break` is true, the
/// files of a checkpoint may be missing.
///
/// # Errors
/// Returns the first fault.
pub async fn check_store(files: &Store, may_break: bool) -> Result<(), String> {
    let list = Catalog::new(files.clone()).list().await.map_err(|error| error.to_string())?;
    for (name, state) in list {
        match state {
            CheckpointState::Committed(manifest) => {
                read(files, name, &manifest).await.map_err(|error| format!("C1: {name}: {error}"))?;
            }
            CheckpointState::Unfinished => {}
            CheckpointState::Broken(_) if may_break => {}
            CheckpointState::Broken(reason) | CheckpointState::Unreadable(reason) => {
                return Err(format!("C1: {name}: {reason}"));
            }
        }
    }
    Ok(())
}

async fn read(files: &Store, name: CheckpointName, manifest: &ManifestSpec) -> Result<(), String> {
    for (variable, id) in manifest.job.graph.variables.iter().zip(0..) {
        let pieces = manifest.pieces(VariableId(id), Part::Value, 0..variable.rows() as u64);
        for piece in pieces {
            let mut bytes = vec![0; (piece.from.end - piece.from.start) as usize];
            read_piece(files, name, &piece, &mut bytes).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
