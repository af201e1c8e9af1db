//! Fuzz target `manifest`, whose body is in `src/manifest.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("manifest", bytes));
