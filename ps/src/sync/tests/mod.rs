//! What the policies' tests share.

pub(super) mod simulation;
