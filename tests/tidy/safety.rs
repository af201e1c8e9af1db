//! Where unsafe code may be: in one place that is small enough to be read.

use crate::source::{code, words};
use crate::tree::{self, File, hold};

/// Rectangles of a matrix that tasks write at once, which no slice can be; the products that ours are
/// compared with.
const UNSAFE_FILES: &[&str] =
    &["kernels/src/cpu/product/region.rs", "benches/products.rs", "benches/step.rs"];
/// The crates that hold those files, which therefore cannot forbid it as a whole.
const UNSAFE_CRATES: &[&str] = &["kernels/src/lib.rs"];

#[test]
fn crates_forbid_unsafe_code() {
    hold("Put `#![forbid(unsafe_code)]` under the door sign of:", &not_forbidding(&tree::sources()));
}

#[test]
fn a_crate_that_does_not_forbid_is_noticed() {
    let files = [
        File::new("ps/src/lib.rs", "//! A.\n\n#![forbid(unsafe_code)]\n"),
        File::new("kernels/src/lib.rs", "//! A.\n"),
        File::new("chief/src/lib.rs", "//! A.\n// #![forbid(unsafe_code)]\n"),
        File::new("worker/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n"),
    ];
    assert_eq!(not_forbidding(&files), ["chief/src/lib.rs", "worker/src/lib.rs"]);
}

#[test]
fn unsafe_code_is_in_one_place() {
    hold(
        "Say it in safe code, or, where a kernel truly cannot, add its file to tests/tidy/safety.rs and argue for it:",
        &unsafe_code(&tree::sources()),
    );
}

#[test]
fn unsafe_code_elsewhere_is_noticed() {
    let text = "#[allow(unsafe_code)]\nunsafe { f() }\n// unsafe\n";
    let files =
        [File::new("kernels/src/cpu/product/region.rs", text), File::new("kernels/src/cpu/relu.rs", text)];
    assert_eq!(unsafe_code(&files), ["kernels/src/cpu/relu.rs:2"]);
}

fn not_forbidding(files: &[File]) -> Vec<String> {
    let crates = files.iter().filter(|file| file.path.ends_with("src/lib.rs"));
    let crates = crates.filter(|file| !UNSAFE_CRATES.contains(&file.path.as_str()));
    let bad = crates.filter(|file| !code(&file.text).contains("#![forbid(unsafe_code)]"));
    bad.map(|file| file.path.clone()).collect()
}

fn unsafe_code(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| !UNSAFE_FILES.contains(&file.path.as_str())) {
        let code = code(&file.text);
        let found = words(&code).filter(|(_, word, _)| *word == "unsafe");
        complaints.extend(found.map(|(line, ..)| format!("{}:{line}", file.path)));
    }
    complaints
}
