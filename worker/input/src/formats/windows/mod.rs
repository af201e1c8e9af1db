//! Texts for language models, cut into windows of tokens. A token is a byte. This module must not depend on
//! models.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use pushpull_messages::input::{ColumnSpec, WindowsSpec};
use pushpull_messages::tensor::TensorSpec;

use crate::dataset::{FEATURES, LABELS};
use crate::description::Description;
use crate::unpacked::Unpacked;
use crate::{InMemory, InputError, Storage, UNPACKED_BYTES_MAX};

/// The number of bytes read at a time if only the length of a file is needed.
const COUNT_BYTES: usize = 1 << 16;

/// Returns the specs of the columns `features` and `labels`; each example is as long as the window.
fn columns(windows: &WindowsSpec) -> [ColumnSpec; 2] {
    [FEATURES, LABELS]
        .map(|name| ColumnSpec { name: name.to_owned(), example: TensorSpec::i32([windows.length as usize]) })
}

/// Returns the part of a text that `windows` selects, as a range of bytes, and the number of windows in this
/// part. The text has `bytes` bytes.
///
/// Properties: (A) If the `end` of one spec equals the `begin` of another, the two parts share no byte, and
/// no byte lies between them. (B) A window and the token that follows it lie within one part.
fn cut(name: &str, bytes: u64, windows: &WindowsSpec) -> Result<(Range<u64>, u64), InputError> {
    // There are at most 2³² bytes, a number that an f64 represents exactly.
    let at = |fraction: f64| ((bytes as f64 * fraction).floor() as u64).min(bytes);
    let part = at(windows.begin)..at(windows.end);
    let (length, stride) = (u64::from(windows.length), u64::from(windows.stride));
    let got = part.end.saturating_sub(part.start);
    if got < length + 1 || stride == 0 {
        let (text, expected) = (name.to_owned(), length + 1);
        return Err(InputError::ShortText { text, expected, got });
    }
    Ok((part, (got - length - 1) / stride + 1))
}

/// Cuts a text into a data set of windows. Errors refer to the text by `name`.
pub(crate) fn dataset(name: &str, mut text: Vec<u8>, windows: &WindowsSpec) -> Result<InMemory, InputError> {
    let (part, examples) = cut(name, text.len() as u64, windows)?;
    text.truncate(part.end as usize);
    text.drain(..part.start as usize);
    let tokens: Arc<[u8]> = text.into();
    let stride = windows.stride as usize;
    let storage = [0, 1].map(|begin| Storage::Windows { tokens: Arc::clone(&tokens), begin, stride });
    InMemory::new(examples as usize, columns(windows).into_iter().zip(storage).collect())
}

/// Describes the windows of a text of `bytes` bytes.
pub(crate) fn description(name: &str, bytes: u64, windows: &WindowsSpec) -> Result<Description, InputError> {
    let (_, examples) = cut(name, bytes, windows)?;
    Ok(Description { examples, columns: columns(windows).into() })
}

/// Loads the windows of a file.
pub(crate) fn load(file: &Path, windows: &WindowsSpec) -> Result<InMemory, InputError> {
    let mut input = Unpacked::open(file)?;
    input.limit(UNPACKED_BYTES_MAX, "one file");
    let mut text = Vec::new();
    input.append(usize::try_from(UNPACKED_BYTES_MAX).unwrap_or(usize::MAX), &mut text)?;
    // This read fails if the file is longer than the limit.
    input.fill(&mut [0])?;
    dataset(&input.path().display().to_string(), text, windows)
}

/// Describes the windows of a file. Reads the file only if its length is unknown.
pub(crate) fn describe(file: &Path, windows: &WindowsSpec) -> Result<Description, InputError> {
    let mut input = Unpacked::open(file)?;
    input.limit(UNPACKED_BYTES_MAX, "one file");
    let bytes = match input.size() {
        Some(size) => size,
        None => {
            let mut buffer = vec![0; COUNT_BYTES];
            while input.fill(&mut buffer)? == COUNT_BYTES {}
            input.offset()
        }
    };
    description(&input.path().display().to_string(), bytes, windows)
}

#[cfg(test)]
mod tests;
