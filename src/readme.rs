//! The README, so that its Rust is compiled and run as a test. Knows nothing of the crate.

#[doc = include_str!("../README.md")]
pub struct Readme;
