//! Fuzz target `join`, whose body is in `src/join.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("join", bytes));
