//! The devices on which the suite runs. The variable `PUSHPULL_TEST_DEVICES` may name them, as `emulated`,
//! `cuda` or `emulated,cuda`: then each of them must be there, and no other one is used.

use std::path::{Path, PathBuf};

use pushpull_cuda::{Card, Compiler, Driver, DriverError, Emulator};

/// The variable that names the devices.
pub(crate) const DEVICES: &str = "PUSHPULL_TEST_DEVICES";

/// Returns whether tests use devices of this kind: `None` if they are left out, and `Some(true)` if they must
/// be there.
fn wanted(kind: &str) -> Option<bool> {
    match std::env::var(DEVICES) {
        Ok(kinds) => kinds.split(',').any(|own| own == kind).then_some(true),
        Err(_) => Some(false),
    }
}

/// Returns a device of a kind that tests use; `None` if this machine has none.
fn found<T>(kind: &str, find: impl FnOnce() -> Result<T, DriverError>) -> Option<Result<T, DriverError>> {
    let is_required = wanted(kind)?;
    Some(match find() {
        Err(error) if is_required => panic!("{DEVICES} names {kind}, but {error}"),
        other => other,
    })
}

/// Returns the folder for what tests make. A program that was copied to another machine lacks that of its
/// build.
pub(crate) fn folder() -> PathBuf {
    let of_build = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if of_build.is_dir() { of_build.to_owned() } else { std::env::temp_dir().join("pushpull-suite") }
}

/// Returns the compiler for the emulator; `None`, after a warning, if this machine has none.
pub(crate) fn compiler() -> Option<Compiler> {
    match found("emulated", || Compiler::find(folder().join("emulator"))) {
        Some(Ok(compiler)) => return Some(compiler),
        Some(Err(error)) => println!("SKIPPED: {error}, so CUDA kernels are NOT tested."),
        None => println!("SKIPPED: {DEVICES} leaves out the emulator."),
    }
    None
}

/// Returns the first card; `None`, after a warning, if this machine has none.
pub(crate) fn card() -> Option<Card> {
    match found("cuda", || Card::open(0)) {
        Some(Ok(card)) => return Some(card),
        Some(Err(error)) => println!("SKIPPED: {error}, so a card is NOT tested."),
        None => println!("SKIPPED: {DEVICES} leaves out cards."),
    }
    None
}

/// Returns every device that there is here, with its name. `seed` decides the order of an emulator's threads.
pub(crate) fn devices(seed: u64) -> Vec<(&'static str, Box<dyn Driver>)> {
    let mut all: Vec<(_, Box<dyn Driver>)> = Vec::new();
    if wanted("emulated").is_some()
        && let Some(compiler) = compiler()
    {
        all.push(("emulated", Box::new(Emulator::start(&compiler, seed).expect("the emulator starts"))));
    }
    if let Some(Ok(card)) = found("cuda", || Card::open(0)) {
        all.push(("cuda", Box::new(card)));
    }
    // The script that runs the suite on a card counts these lines.
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    println!("DEVICES: {}.", names.join(", "));
    all
}
