//! The devices on which the suite runs.

use pushpull_cuda::{Card, Compiler, Driver, Emulator};

/// Returns the compiler for the emulator; `None`, after a warning, if this machine has none.
pub(crate) fn compiler() -> Option<Compiler> {
    match Compiler::find(concat!(env!("CARGO_TARGET_TMPDIR"), "/emulator")) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("SKIPPED: {error}, so CUDA kernels are NOT tested.");
            None
        }
    }
}

/// Returns every device that there is here, with its name. `seed` decides the order of an emulator's threads.
pub(crate) fn devices(seed: u64) -> Vec<(&'static str, Box<dyn Driver>)> {
    let mut all: Vec<(_, Box<dyn Driver>)> = Vec::new();
    if let Some(compiler) = compiler() {
        all.push(("emulated", Box::new(Emulator::start(&compiler, seed).expect("the emulator starts"))));
    }
    if let Ok(card) = Card::open(0) {
        all.push(("cuda", Box::new(card)));
    }
    all
}
