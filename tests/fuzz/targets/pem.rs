//! Fuzz target `pem`, whose body is in `src/pem.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("pem", bytes));
