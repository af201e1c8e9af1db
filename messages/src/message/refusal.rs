//! The reply to a request that was refused. Every refused request gets this reply; none is dropped silently.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};
use crate::excerpt::excerpt;

/// The kind of a refusal, for the program that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The peer has a different protocol version.
    Protocol,
    /// The peer has a different cluster spec. The peer may be a stranger, so the refusal does not reveal this
    /// task's cluster spec.
    Cluster,
    /// The peer has the same cluster spec, but a different graph, or it is not the task for which the
    /// connection is meant.
    Mismatch,
    /// The message cannot be decoded, or this task does not accept messages of its kind.
    Malformed,
    /// The request does not fit the shard: for example, a push has other slices than the shard. The shard is
    /// unchanged.
    Misfit,
    /// The gradients have NaN or infinite elements. The shard is unchanged.
    NotFinite,
    /// The task cannot serve the request yet, or can no longer serve it.
    Unavailable,
    /// The task cannot handle the request at the moment: its queue is full, or the checkpoint store has
    /// failed and may recover.
    Overloaded,
    /// The peer has sent the same request again. The reply to the later copy is the actual reply.
    Superseded,
    /// The shard has not kept the gradients of a push, because another change came first, or because an
    /// earlier push of the worker has not arrived. The shard is unchanged. The worker has to send the push
    /// again as soon as its earlier pushes to the shard are answered.
    Again,
    /// The task does not take the push of several workers' gradients: some of them were counted already, or
    /// cannot be counted, or the worker that should pass them on has other plans. The task is unchanged. Each
    /// of these workers has to push its own gradients to the shard.
    Alone,
    /// The ps task does not obey the chief that sent the request: it obeys another chief, or has not granted
    /// this chief's claim.
    Term,
    /// A run of a session has begun and failed. A part of its effects may remain.
    Failed,
    /// The job has rolled back to a checkpoint since the worker registered, or may have to roll back because
    /// a ps task has lost its variables. The worker has to register again, as another incarnation.
    RolledBack,
}

impl RefusalCode {
    /// Returns the name under which refusals with this code are counted.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Cluster => "cluster",
            Self::Mismatch => "mismatch",
            Self::Malformed => "malformed",
            Self::Misfit => "misfit",
            Self::NotFinite => "not_finite",
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
            Self::Superseded => "superseded",
            Self::Again => "again",
            Self::Alone => "alone",
            Self::Term => "term",
            Self::Failed => "failed",
            Self::RolledBack => "rolled_back",
        }
    }
}

/// The reply to a request that was refused, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of the refusal, for the program that sent the request.
    pub code: RefusalCode,
    /// The reason, in words: what was found and what was expected.
    pub reason: String,
}

impl Refusal {
    /// Makes a refusal. A very long reason is truncated.
    pub fn new(code: RefusalCode, reason: impl fmt::Display) -> Self {
        Self { code, reason: super::reason(reason) }
    }

    /// Makes the reply to the older of two equal requests. The peer still receives a reply to the newer one.
    pub fn superseded() -> Self {
        Self::new(RefusalCode::Superseded, "the request was sent again: the later copy gets the reply")
    }
}

impl fmt::Display for Refusal {
    /// Writes the reason on one line. The reason may come from a hostile peer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&excerpt(&self.reason, REASON_BYTES_MAX))
    }
}

impl Content for Refusal {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        text_within("the reason", &self.reason, REASON_BYTES_MAX)?;
        no_payload(segments)
    }
}
