//! Fuzzes `ingest` of `src/ingest.rs`, which says what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| posthaste_fuzz::run("ingest", bytes));
