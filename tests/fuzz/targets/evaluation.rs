//! Fuzz target `evaluation`, whose body is in `src/evaluation.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("evaluation", bytes));
