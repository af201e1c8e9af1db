//! Text of a user, as errors repeat it. Knows nothing of what it should have been.

/// Most characters of a user's text that an error repeats.
const QUOTE_CHARS_MAX: usize = 96;

/// Returns a user's text as it fits into a message of one line: escaped and cut short.
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
