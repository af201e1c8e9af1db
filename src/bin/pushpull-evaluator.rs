//! The evaluator program, which watches a job's checkpoint directory and evaluates new checkpoints.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pushpull::evaluator_main()
}
