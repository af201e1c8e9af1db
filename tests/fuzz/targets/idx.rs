//! Fuzz target `idx`, whose body is in `src/data.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("idx", bytes));
