//! Quotes a user's text in error messages.

/// The maximum number of characters of a user's text that an error quotes.
const QUOTE_CHARS_MAX: usize = 96;

/// Shortens and escapes a user's text so that it fits an error message of one line.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars().take(QUOTE_CHARS_MAX) {
        match c {
            '"' | '\'' | '\\' => quoted.push(c),
            _ => quoted.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(QUOTE_CHARS_MAX).is_some() {
        quoted.push('…');
    }
    quoted
}
