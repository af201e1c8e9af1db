//! The worker program of a cluster. It trains any model that the chief sends.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pushpull::worker_main()
}
