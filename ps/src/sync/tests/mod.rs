//! The simulation that the tests of all policies share.

pub(super) mod simulation;
