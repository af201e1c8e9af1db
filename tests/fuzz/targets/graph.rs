//! Fuzz target `graph`, whose body is in `src/graph.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("graph", bytes));
