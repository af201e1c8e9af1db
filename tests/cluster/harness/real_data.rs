//! The real data sets that are on this machine.

use std::path::{Path, PathBuf};

/// Returns the directory of MNIST, if it exists.
pub(crate) fn mnist_dir() -> Option<PathBuf> {
    data_dir("mnist", "train-images-idx3-ubyte.gz")
}

/// Returns the directory of a data set that has this file, if it exists.
pub(crate) fn data_dir(name: &str, file: &str) -> Option<PathBuf> {
    let data = match std::env::var_os("PUSHPULL_DATA_DIR") {
        Some(named) => named.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"),
    };
    let found = [data.join(name), data.clone()].into_iter().find(|directory| directory.join(file).exists());
    if found.is_none() {
        // This is written directly to stderr, because the test harness captures only printed output: the
        // user must see that this was not tested.
        let line = format!("SKIPPED: no {file} of {name} in {}: set PUSHPULL_DATA_DIR\n", data.display());
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
    found
}
