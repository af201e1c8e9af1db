//! Fixtures for the readers' tests.

pub(crate) mod damaged;
