//! Checks that the folders at the top of the repository are exactly the rooms of the architecture.

use std::collections::BTreeSet;

use crate::tree::{self, File, hold};

const ROOMS: &[&str] = &["kernels", "messages", "ps", "worker", "chief", "src", "examples", "tests"];
const IF_THERE: &[&str] = &["benches", "deploy", "docs"];

#[test]
fn the_top_holds_the_rooms_of_the_architecture() {
    hold(
        "The folders at the top are the rooms of ARCHITECTURE.md. Move the files into one of these rooms, or change \
         ARCHITECTURE.md and tests/tidy/top_level.rs:",
        &wrong_folders(&tree::texts()),
    );
}

#[test]
fn a_wrong_folder_is_noticed() {
    let mut files: Vec<_> = ROOMS.iter().map(|room| File::new(&format!("{room}/x"), "")).collect();
    files.extend([".ci/run", "docs/a.md", "README.md"].map(|path| File::new(path, "")));
    assert_eq!(wrong_folders(&files), Vec::<String>::new());
    files.push(File::new("tools/x.rs", ""));
    files.retain(|file| file.path != "chief/x");
    assert_eq!(wrong_folders(&files), ["tools is not a room", "chief is missing"]);
}

fn wrong_folders(files: &[File]) -> Vec<String> {
    let there: BTreeSet<_> = files.iter().filter_map(|file| Some(file.path.split_once('/')?.0)).collect();
    let expected =
        |folder: &&str| folder.starts_with('.') || ROOMS.contains(folder) || IF_THERE.contains(folder);
    let mut complaints: Vec<_> = there
        .iter()
        .filter(|folder| !expected(folder))
        .map(|folder| format!("{folder} is not a room"))
        .collect();
    complaints
        .extend(ROOMS.iter().filter(|room| !there.contains(**room)).map(|room| format!("{room} is missing")));
    complaints
}
