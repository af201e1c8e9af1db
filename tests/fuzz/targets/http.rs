//! Fuzz target `http`, whose body is in `src/http.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("http", bytes));
