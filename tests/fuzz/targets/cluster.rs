//! Fuzz target `cluster`, whose body is in `src/cluster.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("cluster", bytes));
