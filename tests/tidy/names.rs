//! Checks that no file, folder or module has one of the names that say nothing.

use crate::source::{code, words};
use crate::tree::{self, File, hold};

const EMPTY: &[&str] = &["util", "utils", "common", "base", "helper", "helpers", "misc"];

#[test]
fn no_name_says_nothing() {
    hold(
        "A file, folder or module is named after the noun that it is about. Find that noun and use it as the name, or move \
         the code to the module to which it belongs:",
        &empty_names(&tree::sources()),
    );
}

#[test]
fn a_name_that_says_nothing_is_noticed() {
    let files = [
        File::new("ps/src/utils.rs", ""),
        File::new("tests/common/mod.rs", ""),
        File::new("ps/src/based.rs", "mod commons {}\n// mod misc;"),
        File::new("ps/src/a.rs", "mod b;\nmod helpers {}\n"),
    ];
    assert_eq!(empty_names(&files), ["ps/src/utils.rs", "tests/common/mod.rs", "ps/src/a.rs:2: mod helpers"]);
}

fn empty_names(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let stem = file.path.trim_end_matches(".rs");
        if stem.split('/').any(|part| EMPTY.contains(&part)) {
            complaints.push(file.path.clone());
        }
        let code = code(&file.text);
        let named = words(&code).filter(|(_, word, _)| *word == "mod").filter_map(|(line, _, after)| {
            let (_, name, _) = words(after).next()?;
            EMPTY.contains(&name).then(|| format!("{}:{line}: mod {name}", file.path))
        });
        complaints.extend(named);
    }
    complaints
}
