//! Compiles the Rust examples in the README and in the book, and runs them as tests. A page that gains its
//! first Rust example needs an item here.

#[doc = include_str!("../README.md")]
pub struct Readme;

#[doc = include_str!("../docs/src/guide/models.md")]
pub struct Models;

#[doc = include_str!("../docs/src/guide/data.md")]
pub struct Data;

#[doc = include_str!("../docs/src/guide/hooks.md")]
pub struct HooksAndSummaries;
