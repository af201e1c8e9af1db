//! Fuzz target `shard`, whose body is in `src/shard.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("shard", bytes));
