//! Digits drawn on the spot, so that a fresh clone has something to train on without a download.
//! Knows no file and no job.

mod glyphs;
mod handwriting;
mod ink;

pub use handwriting::Digits;
