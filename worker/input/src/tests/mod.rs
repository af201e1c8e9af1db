//! Fixtures for the tests of the readers.

pub(crate) mod damaged;
