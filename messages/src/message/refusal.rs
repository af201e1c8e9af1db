//! The answer to anything that was not done. Nothing is dropped without one.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Content, Invalid, REASON_BYTES_MAX, no_payload, text_within};

/// What kind of refusal it is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// Another protocol version.
    Protocol,
    /// Another cluster spec, graph, or a task that does not belong here.
    Mismatch,
    /// A message that cannot be read, or that nobody expects here.
    Malformed,
    /// A push or pull that does not fit what the shard holds; nothing was changed.
    Misfit,
    /// A gradient with NaN or infinite elements; nothing was changed.
    NotFinite,
    /// Not yet, or no longer, able to do that.
    Unavailable,
    /// Too much at once.
    Overloaded,
    /// The same request came once more, and that one will be answered.
    Superseded,
}

/// The answer to anything that was not done, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people: what was expected, and what came.
    pub reason: String,
}

impl Refusal {
    /// A refusal for that reason, which is cut if it is very long.
    pub fn new(code: RefusalCode, reason: impl fmt::Display) -> Self {
        Self { code, reason: super::reason(reason) }
    }

    /// What the older of two equal requests is told. Whoever waits goes on waiting, for the answer to the newer one.
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
        text_within("reason", &self.reason, REASON_BYTES_MAX)?;
        no_payload(segments)
    }
}
