//! The files in deploy/ are valid: the tools that they are for read them where these are installed, and the
//! real programs run where that needs no cluster.

mod kubernetes;
mod metrics;
mod prometheus;
#[path = "../support/promtool.rs"]
mod promtool;
mod slurm;
#[path = "../support/venv.rs"]
mod venv;

use std::path::{Path, PathBuf};

/// A file or folder of deploy/.
fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folder of the programs.
fn programs() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pushpull")).parent().expect("a program lies in a folder")
}
