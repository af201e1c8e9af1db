//! Fuzz target `parquet`, whose body is in `src/data.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("parquet", bytes));
