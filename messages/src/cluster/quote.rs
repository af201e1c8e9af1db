//! Quotes a user's text in error messages.

use crate::excerpt::excerpt;

/// The maximum number of characters of a user's text that an error quotes.
const QUOTE_CHARS_MAX: usize = 96;

/// Shortens and escapes a user's text so that it fits an error message of one line.
pub(super) fn quote(text: &str) -> String {
    excerpt(text, QUOTE_CHARS_MAX)
}
