//! Calls the crates that decode files, and turns their panics into errors, because these crates may panic if
//! a file is damaged. This module must not depend on formats.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::TableError;

/// An error message that quotes the error of a decoder shows at most this many of its characters.
const SHOWN_MAX: usize = 300;

/// Calls `decode`, which decodes a part of a file. `part` is the name of this part, for errors. After an
/// error, nothing that `decode` has changed may be used.
///
/// # Errors
/// Those of `decode`; [`TableError::Decode`] if it panics.
pub(super) fn decoding<T, E: Display>(
    part: &'static str,
    decode: impl FnOnce() -> Result<T, E>,
) -> Result<T, TableError> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(Ok(decoded)) => Ok(decoded),
        Ok(Err(error)) => Err(bad(part, error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            Err(bad(part, format!("the decoder panicked: {text}")))
        }
    }
}

/// Returns the error for a part of a file that cannot be decoded, as a single line.
pub(super) fn bad(part: &'static str, reason: impl Display) -> TableError {
    TableError::Decode { part, reason: one_line(reason) }
}

/// Returns the error for a part of a file that cannot be read, as a single line.
pub(super) fn unreadable(part: &'static str, reason: impl Display) -> TableError {
    TableError::Read { part, reason: one_line(reason) }
}

fn one_line(reason: impl Display) -> String {
    // Only control characters are escaped: a quote needs no backslash.
    let escaped = |character: char| {
        let control = character.is_control();
        let escape = control.then(|| character.escape_debug());
        escape.into_iter().flatten().chain((!control).then_some(character))
    };
    reason.to_string().chars().take(SHOWN_MAX).flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_decoder_is_an_error() {
        let error = decoding("a page", || -> Result<(), String> { panic!("at\nbyte {}", 7) }).unwrap_err();
        assert!(error.to_string().contains("a page: the decoder panicked: at\\nbyte 7"), "{error}");
        assert_eq!(decoding("a page", || Ok::<_, String>(7)), Ok(7));
    }
}
