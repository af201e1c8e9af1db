//! Fuzz target `message`, whose body is in `src/message.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("message", bytes));
