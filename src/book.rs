//! Compiles the Rust examples in the README and in the book, and runs them as tests. When a page gets its
//! first Rust example, add an item for the page to this module.

#[doc = include_str!("../README.md")]
pub struct Readme;

#[doc = include_str!("../docs/src/guide/models.md")]
pub struct Models;

#[doc = include_str!("../docs/src/guide/data.md")]
pub struct Data;

#[doc = include_str!("../docs/src/guide/strategies.md")]
pub struct Strategies;

#[doc = include_str!("../docs/src/guide/sessions.md")]
pub struct ServersAndSessions;

#[doc = include_str!("../docs/src/guide/model-parallelism.md")]
pub struct ModelParallelism;

#[doc = include_str!("../docs/src/guide/hooks.md")]
pub struct HooksAndSummaries;
