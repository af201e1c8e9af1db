//! Finds the files that the rules check: those that git tracks or would track. Without git, all files below
//! the top of the repository are used.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository.
pub(crate) struct File {
    /// The path relative to the top of the repository, with `/` between the parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// Makes a file for a bad example.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }
}

/// Returns the top of the repository.
pub(crate) fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all text files, which are those in UTF-8.
pub(crate) fn texts() -> Vec<File> {
    let mut paths = listed_by_git().unwrap_or_else(walked);
    paths.sort();
    assert!(!paths.is_empty(), "no file was found under {}", top().display());
    let read = |path: String| {
        let text = std::fs::read_to_string(top().join(&path)).ok()?;
        Some(File { path, text })
    };
    paths.into_iter().filter_map(read).collect()
}

/// Returns all Rust files.
pub(crate) fn sources() -> Vec<File> {
    texts().into_iter().filter(|file| file.path.ends_with(".rs")).collect()
}

/// Returns the files under a path such as `ps/src/sync`: those in the folder `sync/`, and `sync.rs`.
pub(crate) fn under<'a>(files: &'a [File], prefix: &'a str) -> impl Iterator<Item = &'a File> {
    files.iter().filter(move |file| {
        let rest = file.path.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest == ".rs")
    })
}

/// Panics if there are complaints. The message says what to do, and lists the complaints.
#[track_caller]
pub(crate) fn hold(what_to_do: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "{what_to_do}\n  {}\n", complaints.join("\n  "));
}

/// Returns the tracked files, and new files that are not ignored. Returns `None` if this is not a git
/// checkout, for example in an unpacked archive.
fn listed_by_git() -> Option<Vec<String>> {
    if !top().join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(top())
        .output()
        .ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| paths.split_terminator('\0').map(str::to_owned).collect())
}

fn walked() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![top().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder that can be read") {
            let path = entry.expect("an entry that can be read").path();
            let relative =
                path.strip_prefix(top()).expect("a path below the top").to_string_lossy().into_owned();
            let skipped = relative == "target" || relative == ".git";
            match path.is_dir() {
                true if skipped || path.is_symlink() => {}
                true => folders.push(path),
                false => found.push(relative),
            }
        }
    }
    found
}

#[test]
fn under_takes_a_folder_and_its_file() {
    let paths = ["chief/src/job.rs", "chief/src/job/tests.rs", "chief/src/jobs.rs", "chief/src/chief.rs"];
    let files = paths.map(|path| File::new(path, ""));
    let found: Vec<_> = under(&files, "chief/src/job").map(|file| file.path.as_str()).collect();
    assert_eq!(found, ["chief/src/job.rs", "chief/src/job/tests.rs"]);
}

#[test]
fn walking_finds_what_git_lists() {
    let walked = walked();
    for path in ["Cargo.toml", "src/lib.rs", "tests/tidy/main.rs", "kernels/src/cpu/mod.rs"] {
        assert!(walked.iter().any(|found| found == path), "walking misses {path}");
    }
    if let Some(listed) = listed_by_git() {
        let there = |path: &&String| top().join(path.as_str()).exists();
        let missed: Vec<_> = listed.iter().filter(there).filter(|path| !walked.contains(path)).collect();
        assert!(missed.is_empty(), "walking misses {missed:?}");
    }
}
