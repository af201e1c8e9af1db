//! Generated images of digits. With them, a fresh clone of the repository can train without a download.
//! Independent of files and jobs.

mod glyphs;
mod handwriting;
mod ink;

pub use handwriting::Digits;
