//! The tools: run a cluster of processes on this machine, work on checkpoints, watch a job.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pushpull::local_main()
}
