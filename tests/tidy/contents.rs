//! Checks that every `lib.rs` is a table of contents: it lists the modules in reading order, and the items
//! that are public.

use crate::source::{code, words};
use crate::tree::{self, File, hold};

const LOGIC: &[&str] = &["fn", "struct", "enum", "union", "trait", "impl", "macro_rules"];

#[test]
fn lib_rs_is_a_table_of_contents() {
    hold(
        "A lib.rs holds `mod` and `pub use` only. Move the item into a module of its own, and re-export it:",
        &logic(&tree::sources()),
    );
}

#[test]
fn logic_in_lib_rs_is_noticed() {
    let files = [
        File::new("ps/src/lib.rs", "//! fn in words.\nmod x;\npub use x::implode;\n"),
        File::new("src/lib.rs", "//! A.\npub fn f() {}\n\nimpl X {}\n"),
        File::new("ps/src/shard/mod.rs", "//! A.\npub fn f() {}\n"),
    ];
    assert_eq!(logic(&files), ["src/lib.rs:2: fn", "src/lib.rs:4: impl"]);
}

fn logic(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with("src/lib.rs")) {
        let code = code(&file.text);
        let found = words(&code).filter(|(_, word, _)| LOGIC.contains(word));
        complaints.extend(found.map(|(line, word, _)| format!("{}:{line}: {word}", file.path)));
    }
    complaints
}
