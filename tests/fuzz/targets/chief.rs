//! Fuzz target `chief`, whose body is in `src/chief.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pushpull_fuzz::check("chief", bytes));
