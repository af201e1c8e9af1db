//! Fuzz target `authority`, whose body is in `src/authority.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("authority", bytes));
