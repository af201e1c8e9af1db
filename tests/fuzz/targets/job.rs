//! Fuzz target `job`, whose body is in `src/job.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("job", bytes));
