//! Fuzz target `tensors`, whose body is in `src/tensors.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("tensors", bytes));
