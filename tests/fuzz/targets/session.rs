//! Fuzz target: decodes and plans bytes as the graph of a session, without a server.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pushpull_fuzz::session::check(bytes);
});
