//! Fuzz target `session`, whose body is in `src/session.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("session", bytes));
