//! Generated images of digits. With them, a fresh clone of the repository can train without a download. This
//! module must not depend on files or jobs.

mod glyphs;
mod handwriting;
mod ink;

pub use handwriting::Digits;
