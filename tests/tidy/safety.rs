//! Checks that unsafe code is only in a few small files.

use crate::source::{code, words};
use crate::tree::{self, File, hold};

/// The files that may contain unsafe code. The first one gives tasks rectangles of a matrix to write at the
/// same time, which slices cannot express. The second one writes past the caches, and the third one tells the
/// system how to schedule a thread. The next ones call the library and the driver of cards, and load their
/// compiler. The next one gives out parts of a buffer, which several threads write, and the next one maps
/// memory that processes share. The benchmarks call the products of another library.
const UNSAFE_FILES: &[&str] = &[
    "kernels/src/cpu/product/region.rs",
    "kernels/src/cpu/past_caches.rs",
    "kernels/src/cpu/batch.rs",
    "kernels/cuda/src/card/cublas.rs",
    "kernels/cuda/src/card/cuda.rs",
    "kernels/cuda/src/nvrtc.rs",
    "messages/transport/src/buffer/parts.rs",
    "messages/transport/src/buffer/shared_memory.rs",
    "benches/products.rs",
    "benches/step_products.rs",
];
/// The crates that contain such files, and therefore cannot forbid unsafe code as a whole.
const UNSAFE_CRATES: &[&str] =
    &["kernels/cuda/src/lib.rs", "kernels/src/lib.rs", "messages/transport/src/lib.rs"];

#[test]
fn crates_forbid_unsafe_code() {
    hold(
        "Add `#![forbid(unsafe_code)]` below the door sign of these files:",
        &not_forbidding(&tree::sources()),
    );
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
        "Use safe code. If a kernel needs unsafe code, add its file to tests/tidy/safety.rs with the reason:",
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
