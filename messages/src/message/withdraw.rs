//! Withdraws the claim of a chief, because another ps task has refused the chief's claim.

use serde::{Deserialize, Serialize};

use super::Content;

/// A request from the chief to a ps task: forget the chief's claims whose attempt number is at most
/// `attempt`, even claims that arrive after this request. Sending the request twice has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdraw {
    /// The number of the last attempt that is withdrawn.
    pub attempt: u64,
}

impl Content for Withdraw {}

/// The reply of a ps task to [`Withdraw`]: the claims are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawn {}

impl Content for Withdrawn {}
