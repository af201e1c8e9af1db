//! What targets have in common.

use std::fmt::Display;

use crate::corpus::{Corpus, Form};
use crate::limits::Limits;
use crate::numbers::Numbers;

/// The largest number of bytes in an error, which is logged or shown.
const ERROR_BYTES_MAX: usize = 20_000;

/// What an input costs, and hence how many of them are checked in a night.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The input is decoded.
    Codec,
    /// The input is a file that is read.
    File,
    /// The input drives a state machine.
    State,
    /// The input arrives on a connection.
    Tls,
}

impl Class {
    /// Returns the number of inputs in a night.
    pub const fn inputs(self) -> u64 {
        match self {
            Self::Codec => 10_000_000,
            Self::File => 10_000_000,
            Self::State => 1_000_000,
            Self::Tls => 100_000,
        }
    }
}

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name, which is that of its corpus, too.
    pub name: &'static str,
    /// What an input costs.
    pub class: Class,
    /// The files and folders whose code it checks, below the root of the repository.
    pub about: &'static [&'static str],
    /// Checks an input. Returns how far it came, as a position in `stages`. Panics if the checked code has a
    /// fault.
    pub check: fn(&[u8]) -> usize,
    /// How far inputs can come, the shortest way first.
    pub stages: &'static [&'static str],
    /// Makes the valid inputs, each with the name of its file.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// How the content of an input is encoded.
    pub form: Form,
    /// Returns where the content of an input begins.
    pub content: fn(&[u8]) -> usize,
    /// Words of the format.
    pub words: &'static [&'static [u8]],
    /// Draws an input, given the valid ones.
    pub draw: fn(&Corpus, &mut Numbers, &mut Vec<u8>),
    /// What an input may cost.
    pub limits: Limits,
}

impl Target {
    /// What most targets have.
    pub(crate) const USUAL: Self = Self {
        name: "",
        class: Class::Codec,
        about: &[],
        check: |_| 0,
        stages: &[],
        seeds: Vec::new,
        form: Form::Bytes,
        content: |_| 1,
        words: &[],
        draw: Corpus::draw,
        limits: Limits::usual(),
    };

    /// Returns the valid inputs, as the tree has them.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn corpus(&self) -> std::io::Result<Corpus> {
        let mut paths: Vec<_> = std::fs::read_dir(Corpus::folder(self.name))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_, std::io::Error>>()?;
        paths.sort();
        let inputs: Vec<_> = paths.iter().map(std::fs::read).collect::<Result<_, _>>()?;
        Ok(Corpus::new(self.form, self.words, self.content, inputs))
    }
}

/// Checks an error as a log or a terminal shows it: one line, without control characters, and not endless.
///
/// # Panics
/// If it is not.
pub(crate) fn check_error(error: &dyn Display) {
    let text = error.to_string();
    assert!(text.len() <= ERROR_BYTES_MAX, "an error of {} bytes: {}", text.len(), &text[..200]);
    assert!(!text.chars().any(char::is_control), "an error with control characters: {text:?}");
}
