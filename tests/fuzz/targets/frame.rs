//! Fuzz target `frame`, whose body is in `src/frame.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("frame", bytes));
