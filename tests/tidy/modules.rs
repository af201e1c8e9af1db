//! Checks the convention for modules: a module with children is the file `x/mod.rs`, so that the whole
//! module is in one folder.

use std::collections::BTreeSet;

use crate::tree::{self, File, hold};

#[test]
fn a_module_with_children_is_a_folder() {
    hold(
        "Move the file into the folder of the same name, as `mod.rs`, so that the whole module is in one folder:",
        &beside_folders(&tree::sources()),
    );
}

#[test]
fn a_file_beside_its_folder_is_noticed() {
    let files =
        ["a/src/x.rs", "a/src/x/y.rs", "a/src/z/mod.rs", "a/src/z/w.rs"].map(|path| File::new(path, ""));
    assert_eq!(beside_folders(&files), ["a/src/x.rs lies beside a/src/x/"]);
}

fn beside_folders(files: &[File]) -> Vec<String> {
    let parents =
        |path: &str| path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect::<Vec<_>>();
    let folders: BTreeSet<String> = files.iter().flat_map(|file| parents(&file.path)).collect();
    let beside = files.iter().filter_map(|file| {
        let folder = file.path.strip_suffix(".rs")?;
        folders.contains(folder).then(|| format!("{} lies beside {folder}/", file.path))
    });
    beside.collect()
}
