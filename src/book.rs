//! The README and the pages of the book that hold Rust, so that their examples are compiled and run as tests.
//! Knows nothing of the crate. A page that gains a Rust example gains an item here.

#[doc = include_str!("../README.md")]
pub struct Readme;

#[doc = include_str!("../docs/src/guide/models.md")]
pub struct Models;

#[doc = include_str!("../docs/src/guide/data.md")]
pub struct Data;

#[doc = include_str!("../docs/src/guide/hooks.md")]
pub struct HooksAndSummaries;
