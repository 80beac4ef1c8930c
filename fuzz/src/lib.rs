//! What must hold of whatever strangers send: one function for each fuzz
//! target, which takes any bytes and panics where a promise is broken.
//!
//! Each promise is judged by plain code of its own, so that a mistake would
//! have to be made twice. `tests/fuzz.rs` runs the same functions over the
//! corpus with the ordinary toolchain.

mod cursor;
mod egress;
mod filter;
mod ingest;
mod json;
mod retry_after;
mod signing;

/// A fuzz target: its name, and what it does with the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target there is. Each has a file in `fuzz_targets` and a folder in
/// `corpus` of its name.
pub const TARGETS: &[Target] = &[
    ("cursor", cursor::cursor),
    ("egress", egress::egress),
    ("filter", filter::filter),
    ("ingest", ingest::ingest),
    ("retry_after", retry_after::retry_after),
    ("signing", signing::signing),
];

/// Runs the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(bytes);
}
