//! The limits on the memory of a shard, and the check of a new shard against them.

use pushpull_messages::message::{CreateShard, Refusal};

use super::answer::misfit;

/// Upper bounds on the memory that a shard takes.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// The largest total size of the values, in bytes. All values must fit into one frame.
    pub values_bytes_max: u64,
    /// The largest total size, in bytes, of the gradients that all shards of the task hold. Held gradients
    /// count against the bytes that the whole task may have in flight.
    pub gradients_bytes_max: u64,
}

impl ShardLimits {
    /// Returns whether the shard that `create` describes may hold two gradients while another one arrives,
    /// even if all come on one connection. Otherwise it must add up the first two at once, which frees the
    /// bytes in flight that they take.
    pub(super) fn keeps_last(&self, create: &CreateShard) -> bool {
        create.task_bytes().saturating_mul(3) <= self.gradients_bytes_max
    }

    /// Checks whether the shard that `create` describes stays within these limits.
    ///
    /// # Errors
    /// If the shard would have too many bytes of values, or would have to hold too many bytes of gradients
    /// for an update.
    pub(super) fn check(&self, create: &CreateShard) -> Result<(), Refusal> {
        let (id, bytes) = (create.shard, create.bytes());
        let Self { values_bytes_max, gradients_bytes_max } = *self;
        if bytes > values_bytes_max {
            return Err(misfit(format!(
                "{id} would hold {bytes} bytes of values, but may hold at most {values_bytes_max}; use more ps tasks"
            )));
        }
        // A held gradient keeps its credit for bytes in flight. If held gradients took all credit, the
        // missing gradients could not arrive.
        let per_update = create.sync.gradients_per_update(create.workers);
        let kept = if create.deterministic { per_update } else { 1 };
        let bytes = create.task_bytes();
        let held = bytes.saturating_mul(u64::from(kept));
        if per_update > 1 && held > gradients_bytes_max {
            return Err(misfit(format!(
                "{} would hold {kept} gradient(s) of {bytes} bytes for an update, but may hold at most \
                 {gradients_bytes_max} bytes; use more ps tasks{}",
                id.task(),
                if create.deterministic { ", or turn deterministic off" } else { "" }
            )));
        }
        Ok(())
    }
}
