//! Fuzz target `record`, whose body is in `src/record.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("record", bytes));
