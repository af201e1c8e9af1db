//! Generated digits, so that a fresh clone of the repository can train without a download.
//! Knows no file and no job.

mod glyphs;
mod handwriting;
mod ink;

pub use handwriting::Digits;
