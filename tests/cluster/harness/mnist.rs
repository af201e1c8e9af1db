//! The real MNIST data, if they are on this machine.

use std::path::{Path, PathBuf};

/// Returns the directory of MNIST, if it exists.
pub(crate) fn mnist_dir() -> Option<PathBuf> {
    let data = match std::env::var_os("PUSHPULL_DATA_DIR") {
        Some(named) => named.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"),
    };
    let found = [data.join("mnist"), data.clone()]
        .into_iter()
        .find(|directory| directory.join("train-images-idx3-ubyte.gz").exists());
    if found.is_none() {
        // This is written directly to stderr, because the test harness captures only printed output: the
        // user must see that this was not tested.
        let line = format!("SKIPPED: no MNIST in {}: set PUSHPULL_DATA_DIR\n", data.display());
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
    found
}
