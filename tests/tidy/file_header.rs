//! Checks that every file begins with a door sign: a header that says what the file is for and what it must
//! not depend on.

use crate::tree::{self, File, hold};

const LINES_MAX: usize = 6;

#[test]
fn every_file_opens_with_a_door_sign() {
    hold(
        "A Rust file begins with 1 to 6 lines of `//!` that say what the file is for and what it must not depend on (a \
         drawing between ``` is not counted). Add such lines, or shorten them and move the rest to the items it is about:",
        &without_sign(&tree::sources()),
    );
}

#[test]
fn a_missing_or_endless_sign_is_noticed() {
    let long = "//! Line.\n".repeat(7);
    let drawing = format!("//! What it is.\n//! ```text\n{long}//! ```\n");
    let files = [
        File::new("good.rs", "//! What it is for.\n\nuse std::fmt;\n"),
        File::new("drawing.rs", &drawing),
        File::new("none.rs", "use std::fmt;\n"),
        File::new("late.rs", "\n//! Too late.\n"),
        File::new("blank.rs", "//!\n//!\n"),
        File::new("item.rs", "/// Of an item, not of the file.\nstruct X;\n"),
        File::new("long.rs", &long),
    ];
    assert_eq!(
        without_sign(&files),
        ["none.rs: none", "late.rs: none", "blank.rs: none", "item.rs: none", "long.rs: 7 lines"]
    );
}

fn without_sign(files: &[File]) -> Vec<String> {
    let complaint = |file: &File| match sign_lines(&file.text) {
        0 => Some(format!("{}: none", file.path)),
        1..=LINES_MAX => None,
        lines => Some(format!("{}: {lines} lines", file.path)),
    };
    files.iter().filter_map(complaint).collect()
}

/// Returns the number of `//!` lines at the beginning of a file, without drawings. Returns 0 if these lines
/// contain no words.
fn sign_lines(text: &str) -> usize {
    let sign = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let mut drawing = false;
    let mut lines = 0;
    let mut words = 0;
    for line in sign {
        if line.starts_with("```") {
            drawing = !drawing;
        } else if !drawing {
            lines += 1;
            words += line.split_whitespace().count();
        }
    }
    if words == 0 { 0 } else { lines }
}
