//! Checks that the book's reference lists all families of metrics, and no family that does not exist. This
//! module must not know what the metrics stand for.

use std::collections::BTreeSet;

use crate::source::is_word;
use crate::tree::{self, File, hold};

/// The end of the path of the file that defines the families, and the path of the reference.
const TABLE: &str = "http/metrics/families.rs";
const REFERENCE: &str = "docs/src/reference/metrics.md";
/// The beginning of a line with a name, in the table and in the reference.
const IN_TABLE: &str = "(\"pushpull_";
const IN_REFERENCE: &str = "| `pushpull_";

#[test]
fn the_reference_lists_every_metric() {
    hold(
        "Each family of metrics has a line in docs/src/reference/metrics.md. Add the missing lines, and delete those of metrics that no longer exist:",
        &differing(&tree::texts()),
    );
}

#[test]
fn an_unlisted_metric_is_noticed() {
    let mut files =
        vec![File::new("src/http/metrics/families.rs", "(\"pushpull_a_b\", x),\n(\"pushpull_c\", x),")];
    assert_eq!(differing(&files), ["docs/src/reference/metrics.md: missing"]);
    files.push(File::new(REFERENCE, "| `pushpull_c` | counter |\n| `pushpull_d` | `pushpull_e` |\n"));
    assert_eq!(differing(&files), ["pushpull_a_b is not listed", "pushpull_d does not exist"]);
    files.remove(0);
    assert_eq!(differing(&files), ["http/metrics/families.rs: missing"]);
}

fn differing(files: &[File]) -> Vec<String> {
    let find = |path: &str, front| {
        let file = files.iter().find(|file| file.path.ends_with(path));
        file.map(|file| names(&file.text, front)).ok_or_else(|| vec![format!("{path}: missing")])
    };
    let (table, reference) = match (find(TABLE, IN_TABLE), find(REFERENCE, IN_REFERENCE)) {
        (Ok(table), Ok(reference)) => (table, reference),
        (Err(missing), _) | (_, Err(missing)) => return missing,
    };
    let unlisted = table.difference(&reference).map(|name| format!("pushpull_{name} is not listed"));
    let gone = reference.difference(&table).map(|name| format!("pushpull_{name} does not exist"));
    unlisted.chain(gone).collect()
}

/// Returns the names in the lines that begin with `front`, without `front`.
fn names<'a>(text: &'a str, front: &str) -> BTreeSet<&'a str> {
    let rest = text.lines().filter_map(|line| line.trim_start().strip_prefix(front));
    rest.map(|rest| &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]).collect()
}
