//! Tests of the files in deploy/. The tools for which they are written check them, if these tools are
//! installed. The programs are also run with these files if that does not need a real cluster.

mod kubernetes;
mod metrics;
mod prometheus;
#[path = "../support/promtool.rs"]
mod promtool;
mod slurm;
#[path = "../support/venv.rs"]
mod venv;

use std::path::{Path, PathBuf};

/// Returns the path of a file or folder in deploy/.
fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the folder of the programs.
fn programs() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pushpull")).parent().expect("a program lies in a folder")
}
