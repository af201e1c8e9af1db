//! The messages between the stages of a replica. The leader of a replica has the other stages compute their
//! parts of each batch, and push and pull the variables that they own; stages send each other the values that
//! cross.

mod close_stage;
mod compute_stage;
mod digest_stage;
mod open_stage;
mod pull_stage;
mod push_stage;
mod serve_stage;
mod stage_value;

use super::{Content, Invalid, no_payload};

pub use close_stage::{CloseStage, StageClosed};
pub use compute_stage::{ComputeStage, StageComputed};
pub use digest_stage::{DigestStage, StageDigests};
pub use open_stage::{OpenStage, StageOpened};
pub use pull_stage::{PullStage, StagePulled};
pub use push_stage::{PushStage, StagePushed, StageReply};
pub use serve_stage::ServeStage;
pub use stage_value::{FetchStageValue, StageValue, StageValueFetched, StageValueKey, StageValueTaken};

/// The maximum number of sets of values that a leader can keep on a stage at a time: those of the current
/// step, those of the next one, and those of evaluations.
pub const VALUE_SETS_MAX: usize = 16;

fn value_sets(kept: &[u64]) -> Result<(), Invalid> {
    match kept.len() {
        count if count <= VALUE_SETS_MAX => Ok(()),
        count => Err(Invalid(format!("keeps {count} sets of values, expected at most {VALUE_SETS_MAX}"))),
    }
}

/// Checks that a payload is one value.
fn one_value(segments: &[u64]) -> Result<(), Invalid> {
    match segments.len() {
        1 => Ok(()),
        count => Err(Invalid(format!("got {count} payload segments, expected 1: the value"))),
    }
}
