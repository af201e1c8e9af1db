//! Fuzz target `memory_files`, whose body is in `src/memory_files.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("memory_files", bytes));
