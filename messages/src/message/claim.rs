//! Claims a ps task for one run of the chief.

use serde::{Deserialize, Serialize};

use super::Content;

/// A request from the chief to a ps task: obey this run of the chief. The handshake has identified the run.
///
/// The task refuses a claim that was withdrawn. It also refuses the claim if it obeys another chief or has
/// granted the claim of another chief, unless that chief has been away for the lease. Otherwise, the task
/// records the claim, and obeys this chief from the first order that the chief sends. Sending the request
/// twice has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The number of the chief's attempt to claim all ps tasks, from 1.
    pub attempt: u64,
}

impl Content for Claim {}

/// The reply of a ps task to [`Claim`]: the claim is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {}

impl Content for Claimed {}
