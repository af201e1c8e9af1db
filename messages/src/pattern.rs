//! Patterns on names, such as `dense*/bias`. This module must not know what the names stand for.

/// Returns true when the pattern matches the whole name. `*` matches any number of characters, including
/// slashes, and `?` matches one character. After a mismatch, only the last `*` is made to match one more
/// character. The time is therefore at most proportional to the product of the two lengths.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n, mut again) = (0, 0, None);
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            again = Some((p, n));
            p += 1;
        } else if pattern.get(p).is_some_and(|&letter| letter == b'?' || letter == name[n]) {
            (p, n) = (p + 1, n + 1);
        } else if let Some((star, from)) = again {
            again = Some((star, from + 1));
            (p, n) = (star + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&letter| letter == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::matches;

    /// Does what `matches` does, but slowly: a reference implementation that follows the definitions of `*`
    /// and `?`.
    fn slowly(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) if slowly(rest, name) => true,
            (Some((b'*', _)), Some((_, tail))) => slowly(pattern, tail),
            (Some((&letter, rest)), Some((&own, tail))) => {
                (letter == b'?' || letter == own) && slowly(rest, tail)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_by_their_definition(pattern in "[ab/?*]{0,8}", name in "[ab/]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), slowly(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
