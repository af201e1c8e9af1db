//! Checks that the mutations of the simulator fit the code. A patch that does not fit cannot be applied, so
//! the simulator could become blind to its fault.

use crate::tree::{self, File, hold};

#[test]
fn mutations_fit_the_code() {
    let files = tree::texts();
    assert!(files.iter().any(|file| file.path.ends_with(".patch")), "there are no mutations");
    hold("Make the mutation again, with `git diff -U1`:", &misfits(&files));
}

#[test]
fn a_mutation_that_does_not_fit_is_noticed() {
    let patch = |path: &str, hunks: &str| format!("A fault.\n\n--- a/{path}\n+++ b/{path}\n{hunks}");
    let files = [
        File::new("a.rs", "one\ntwo\n\nthree\n"),
        File::new("fits.patch", &patch("a.rs", "@@ -9,3 +9,3 @@ fn f\n two\n \n-three\n+four\n")),
        File::new(
            "changed.patch",
            &patch("a.rs", "@@ -1,1 +1,1 @@\n-one\n+1\n@@ -2,2 +2,2 @@\n two\n-tree\n+four\n"),
        ),
        File::new("gone.patch", &patch("b.rs", "@@ -1,1 +1,1 @@\n-one\n+two\n")),
        File::new("empty.patch", "A fault.\n"),
    ];
    assert_eq!(
        misfits(&files),
        [
            "changed.patch: expected once in a.rs, found 0 times:\ntwo\ntree",
            "gone.patch: expected once in b.rs, found 0 times:\none",
            "empty.patch: it changes nothing"
        ]
    );
}

fn misfits(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for patch in files.iter().filter(|file| file.path.ends_with(".patch")) {
        let before = hunks(&patch.text);
        for (path, lines) in &before {
            let text = files.iter().find(|file| file.path == *path).map_or("", |file| &file.text);
            let found: Vec<&str> = text.lines().collect();
            let places = found.windows(lines.len().max(1)).filter(|window| window == lines).count();
            if places != 1 {
                complaints.push(format!(
                    "{}: expected once in {path}, found {places} times:\n{}",
                    patch.path,
                    lines.join("\n")
                ));
            }
        }
        if before.is_empty() {
            complaints.push(format!("{}: it changes nothing", patch.path));
        }
    }
    complaints
}

/// Returns the lines that each hunk of a patch replaces, with the path of their file.
fn hunks(patch: &str) -> Vec<(&str, Vec<&str>)> {
    let (mut path, mut found) = ("", Vec::<(&str, Vec<&str>)>::new());
    for line in patch.lines() {
        if let Some(changed) = line.strip_prefix("+++ b/") {
            path = changed;
        } else if line.starts_with("--- ") {
            // A file name, not a line that is removed.
        } else if line.starts_with("@@ ") {
            found.push((path, Vec::new()));
        } else if let (Some((_, lines)), Some((" " | "-", text))) =
            (found.last_mut(), line.split_at_checked(1))
        {
            lines.push(text);
        }
    }
    found
}
