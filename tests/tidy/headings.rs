//! Checks that the headings of doc comments stand on lines of their own. Otherwise rustdoc shows the first
//! line of the text as a part of the heading.

use crate::tree::{self, File, hold};

/// The headings that rustdoc and Clippy know.
const HEADINGS: &[&str] = &["# Errors", "# Panics", "# Safety", "# Examples"];

#[test]
fn headings_stand_alone() {
    hold("Break the line after the heading:", &joined_headings(&tree::sources()));
}

#[test]
fn a_joined_heading_is_noticed() {
    let text =
        "/// # Errors\n/// If it fails.\n    /// # Panics If it must.\n// # Errors in plain comments\n";
    assert_eq!(joined_headings(&[File::new("a.rs", text)]), ["a.rs:3: # Panics If it must."]);
}

fn joined_headings(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let Some(doc) = line.trim_start().strip_prefix("/// ") else { continue };
            if HEADINGS.iter().any(|heading| doc.len() > heading.len() && doc.starts_with(heading)) {
                complaints.push(format!("{}:{}: {doc}", file.path, index + 1));
            }
        }
    }
    complaints
}
