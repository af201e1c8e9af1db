//! The program `pushpull`: tools that run a cluster of processes on this machine, inspect and convert
//! checkpoints, and watch a job.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pushpull::local_main()
}
