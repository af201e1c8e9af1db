//! The reply to a request that was refused. No request is dropped without a reply.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};

/// The kind of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The peer has another protocol version.
    Protocol,
    /// The peer has another cluster spec or graph, or is a task that does not belong here.
    Mismatch,
    /// The message cannot be decoded, or is not expected here.
    Malformed,
    /// The push or pull does not fit the shard; nothing was changed.
    Misfit,
    /// The gradient has NaN or infinite elements; nothing was changed.
    NotFinite,
    /// The task cannot serve the request yet, or no longer.
    Unavailable,
    /// The peer has sent too much at once.
    Overloaded,
    /// The request was repeated, and the repetition will be answered.
    Superseded,
}

/// The reply to a request that was refused, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind, for programs.
    pub code: RefusalCode,
    /// The reason, for people: what was found and what was expected.
    pub reason: String,
}

impl Refusal {
    /// Makes a refusal; a very long reason is cut.
    pub fn new(code: RefusalCode, reason: impl fmt::Display) -> Self {
        Self { code, reason: super::reason(reason) }
    }

    /// Makes the reply to the older of two equal requests. The caller keeps waiting for the reply to the
    /// newer one.
    pub fn superseded() -> Self {
        Self::new(RefusalCode::Superseded, "asked again, and answered there")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Content for Refusal {
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        text_within("the reason", &self.reason, REASON_BYTES_MAX)?;
        no_payload(segments)
    }
}
