//! Fuzz target `cifar10`, whose body is in `src/data.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("cifar10", bytes));
