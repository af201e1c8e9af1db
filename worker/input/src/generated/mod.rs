//! Data sets that are made on the spot, one module each. A module must not depend on files.

pub(crate) mod babble;
pub(crate) mod color_images;
mod digits;
pub(crate) mod linear;
pub(crate) mod vocabulary;

pub use digits::Digits;
