//! Fuzzes `egress` of `src/egress.rs`, which says what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| posthaste_fuzz::run("egress", bytes));
