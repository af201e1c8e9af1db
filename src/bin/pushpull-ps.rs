//! The ps program of a cluster. It serves any model that the chief sends.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pushpull::ps_main()
}
