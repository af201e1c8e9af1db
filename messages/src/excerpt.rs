//! Makes foreign text safe to log: one line, without control characters, and of a bounded length.

/// Returns the first `chars_max` characters of `text`, on one line. Control characters are escaped, and `…`
/// follows if characters were left out.
pub fn excerpt(text: &str, chars_max: usize) -> String {
    let mut excerpt = String::new();
    let mut chars = text.chars();
    for c in chars.by_ref().take(chars_max) {
        match c {
            '"' | '\'' | '\\' => excerpt.push(c),
            _ => excerpt.extend(c.escape_debug()),
        }
    }
    if chars.next().is_some() {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_excerpt_keeps_what_can_be_read() {
        assert_eq!(excerpt("it's \"größer\" \\o/", 99), "it's \"größer\" \\o/");
        assert_eq!(excerpt("a\nb\x1b[31m\u{202e}", 99), "a\\nb\\u{1b}[31m\\u{202e}");
        assert_eq!(excerpt("abc", 3), "abc");
        assert_eq!(excerpt("abcd", 3), "abc…");
    }

    proptest! {
        #[test]
        fn an_excerpt_is_short_and_has_one_line(text in any::<String>(), chars_max in 0usize..40) {
            let excerpt = excerpt(&text, chars_max);
            prop_assert!(!excerpt.chars().any(char::is_control));
            // The longest escape is `\u{10ffff}`.
            prop_assert!(excerpt.chars().count() <= 10 * chars_max + 1);
        }
    }
}
