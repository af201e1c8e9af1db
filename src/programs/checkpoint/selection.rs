//! Finds a checkpoint by its step or its name, or finds the latest one.

use anyhow::bail;
use pushpull_messages::checkpoint::CheckpointName;
use pushpull_storage::{Catalog, Store};

use crate::programs::format::plain;

/// The maximum number of steps that an error lists.
const STEPS_SHOWN: usize = 8;

/// Returns the checkpoint with this step or name, or the latest one if `which` is `None`. An unfinished
/// checkpoint is returned only if it is requested by its name.
///
/// # Errors
/// Returns an error if there is no such checkpoint.
pub(crate) async fn select(store: &Store, which: Option<&str>) -> anyhow::Result<CheckpointName> {
    let catalog = Catalog::new(store.clone());
    let mut there = catalog.names().await?;
    there.reverse();
    let location = store.location();
    let wanted = match which.map(|text| (text, text.parse::<u64>(), text.parse::<CheckpointName>())) {
        None => None,
        Some((_, Ok(step), _)) => Some(step),
        Some((_, _, Ok(name))) if there.contains(&name) => return Ok(name),
        Some((_, _, Ok(name))) => bail!("there is no checkpoint {name} in {location}{}", steps(&there)),
        Some((text, ..)) => {
            let text = plain(text);
            bail!(
                "'{text}' is not a step or a checkpoint, expected a step such as 1200, or a name that `pushpull checkpoint list` shows"
            )
        }
    };
    let of_step = |name: &&CheckpointName| wanted.is_none_or(|step| name.step.0 == step);
    for &name in there.iter().rev().filter(of_step) {
        if catalog.is_committed(name).await? {
            return Ok(name);
        }
    }
    match wanted {
        Some(step) => bail!("there is no finished checkpoint of step {step} in {location}{}", steps(&there)),
        None if there.is_empty() => bail!("there is no checkpoint in {location}"),
        None => bail!("there is no finished checkpoint in {location}, only {} unfinished", there.len()),
    }
}

/// Returns the end of an error's text: a list of the last steps that have checkpoints.
fn steps(there: &[CheckpointName]) -> String {
    let mut steps: Vec<u64> = there.iter().map(|name| name.step.0).collect();
    // Several runs may have saved the same step.
    steps.sort_unstable();
    steps.dedup();
    let left_out = steps.len().saturating_sub(STEPS_SHOWN);
    let shown: Vec<String> = steps[left_out..].iter().map(u64::to_string).collect();
    match (shown.is_empty(), left_out) {
        (true, _) => "; it has no checkpoints".to_owned(),
        (false, 0) => format!("; it has steps {}", shown.join(", ")),
        (false, _) => format!("; it has steps .., {}", shown.join(", ")),
    }
}
