//! Finds names that are similar to a name that was not found. This module must not depend on what the names
//! refer to.
//!
//! Wanted properties: (A) the distance of two names is the number of letters that must be inserted, removed
//! or replaced (Levenshtein 1966), up to a bound; (B) the list is short, however many names there are.

/// The maximum number of names in a list.
const NAMES_MAX: usize = 5;
/// The maximum distance of a similar name.
const DISTANCE_MAX: usize = 3;

/// Returns the text `; did you mean 'a' or 'b'?` with the names that are most similar to `wanted`, or an
/// empty text if there are none. A name is also similar if it contains `wanted`, or is contained in it.
pub(super) fn similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    let rank = |name: &str| match distance(wanted, name) {
        Some(distance) if distance * 2 < wanted.chars().count() => Some(distance),
        _ if name.contains(wanted) || wanted.contains(name) => Some(DISTANCE_MAX + 1),
        _ => None,
    };
    let mut found: Vec<(usize, &str)> = names.filter_map(|name| Some((rank(name)?, name))).collect();
    found.sort_unstable();
    found.dedup();
    let quoted: Vec<String> = found.iter().take(NAMES_MAX).map(|(_, name)| format!("'{name}'")).collect();
    match &quoted[..] {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [rest @ .., last] => format!("; did you mean {} or {last}?", rest.join(", ")),
    }
}

/// Returns the distance of two names; `None` if it is greater than [`DISTANCE_MAX`].
fn distance(a: &str, b: &str) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > DISTANCE_MAX {
        return None;
    }
    // For each prefix of `b`, its distance from the prefix of `a` that the loop has processed so far.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
        if row.iter().all(|&distance| distance > DISTANCE_MAX) {
            return None;
        }
    }
    row.last().copied().filter(|&distance| distance <= DISTANCE_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the distance of two names, computed by the recursive definition of the distance.
    fn by_definition(a: &[char], b: &[char]) -> usize {
        match (a, b) {
            ([], rest) | (rest, []) => rest.len(),
            ([x, a @ ..], [y, b @ ..]) if x == y => by_definition(a, b),
            ([_, more_a @ ..], [_, more_b @ ..]) => {
                let less = [(more_a, more_b), (a, more_b), (more_a, b)];
                1 + less.into_iter().map(|(a, b)| by_definition(a, b)).min().expect("three ways")
            }
        }
    }

    proptest! {
        /// Checks (A).
        #[test]
        fn the_distance_counts_changed_letters(a in "[abc]{0,5}", b in "[abc]{0,5}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            let exact = by_definition(&letters(&a), &letters(&b));
            prop_assert_eq!(distance(&a, &b), Some(exact).filter(|&exact| exact <= DISTANCE_MAX));
        }
    }

    /// Checks (B).
    #[test]
    fn the_nearest_names_come_first_and_are_few() {
        let names = ["dense1/kernel", "logits/kernel", "logits", "log", "x"];
        assert_eq!(similar("logit", names.into_iter()), "; did you mean 'logits', 'log' or 'logits/kernel'?");
        assert_eq!(similar("dense2/kernel", names.into_iter()), "; did you mean 'dense1/kernel'?");
        assert_eq!(similar("velocity", names.into_iter()), "");
        let many: Vec<String> = (0..60_000).map(|number| format!("layer{number}")).collect();
        assert_eq!(similar("layer", many.iter().map(String::as_str)).matches('\'').count(), 2 * NAMES_MAX);
    }
}
