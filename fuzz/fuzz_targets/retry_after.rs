//! Fuzzes `retry_after` of `src/retry_after.rs`, which says what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| posthaste_fuzz::run("retry_after", bytes));
