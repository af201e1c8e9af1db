//! The chief.
pub mod placement;
