//! A set of values of which the stages of a replica hold one part each. This module must not depend on
//! connections.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use pushpull_messages::id::VariableId;

use crate::stages::StageError;

/// The stages of a replica other than its leader.
pub(crate) trait OtherStages: Debug + Send + Sync {
    /// Returns the checksum of each variable of the other stages, in the set with this number.
    ///
    /// # Errors
    /// If a stage fails, or cannot be reached.
    fn digests(&self, set: u64) -> BoxFuture<'_, Result<BTreeMap<VariableId, u32>, StageError>>;
}

/// A set of values. The leader's part of the set carries it, and the parts of the other stages are kept under
/// its number.
#[derive(Debug)]
pub(crate) struct ValueSet {
    number: u64,
    others: Arc<dyn OtherStages>,
}

impl ValueSet {
    pub fn new(number: u64, others: Arc<dyn OtherStages>) -> Self {
        Self { number, others }
    }

    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the checksums of the variables of all other stages.
    ///
    /// # Errors
    /// If a stage fails, or cannot be reached.
    pub async fn digests(&self) -> Result<BTreeMap<VariableId, u32>, StageError> {
        self.others.digests(self.number).await
    }
}
