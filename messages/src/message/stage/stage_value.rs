//! Values that cross between the stages of a replica. A leader does not listen, so it fetches the values that
//! are for it; every other stage is sent its values.

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, no_payload, one_value};
use crate::id::Incarnation;

/// The identity of a value that crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StageValueKey {
    /// The incarnation of the replica's leader.
    pub leader: Incarnation,
    /// The number of the leader's run.
    pub run: u64,
    /// The number of the micro-batch in the batch, from 0.
    pub micro_batch: u32,
    /// The number of the edge in the cut graph.
    pub edge: u64,
}

/// A value for the stage that gets the message. The value is the only segment of the payload, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageValue {
    /// The identity of the value.
    pub key: StageValueKey,
}

impl Content for StageValue {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_value(segments)
    }
}

/// The reply to [`StageValue`]: the value has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageValueTaken {}

impl Content for StageValueTaken {}

/// A request from the leader to a stage: reply with this value as soon as it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchStageValue {
    /// The identity of the value.
    pub key: StageValueKey,
}

impl Content for FetchStageValue {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

/// The reply to [`FetchStageValue`]. The value is the only segment of the payload, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageValueFetched {}

impl Content for StageValueFetched {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        one_value(segments)
    }
}
