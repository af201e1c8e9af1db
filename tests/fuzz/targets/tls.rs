//! Fuzz target `tls`, whose body is in `src/tls.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("tls", bytes));
