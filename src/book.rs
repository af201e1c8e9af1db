//! The README and the pages of the book that contain Rust, so that their examples are compiled and run as
//! tests. A page that gains its first Rust example needs an item here.

#[doc = include_str!("../README.md")]
pub struct Readme;

#[doc = include_str!("../docs/src/guide/models.md")]
pub struct Models;

#[doc = include_str!("../docs/src/guide/data.md")]
pub struct Data;

#[doc = include_str!("../docs/src/guide/hooks.md")]
pub struct HooksAndSummaries;
