//! Replays the corpus of every fuzz target: what was once sent to find a fault
//! must never find one again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[path = "../fuzz/src/lib.rs"]
mod targets;

use targets::{TARGETS, run};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// What is in a folder, sorted.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|problem| panic!("{}: {problem}", folder.display()));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder can be read").path()).collect();
    found.sort();
    found
}

/// Runs a target over its corpus, and names every file that it fails on.
fn replay(name: &str) {
    let files = inside(&folder("corpus").join(name));
    assert!(files.len() >= 10, "{name} has a corpus: {files:?}");
    let fails = |file: &&PathBuf| {
        let bytes = std::fs::read(file).expect("a file can be read");
        std::panic::catch_unwind(|| run(name, &bytes)).is_err()
    };
    let failed: Vec<&PathBuf> = files.iter().filter(fails).collect();
    assert!(failed.is_empty(), "{name} fails on {failed:#?}");
}

#[test]
fn a_cursor_is_taken_by_the_list_that_gave_it_alone() {
    replay("cursor");
}

#[test]
fn nothing_is_called_that_may_not_be() {
    replay("egress");
}

#[test]
fn a_filter_answers_as_its_own_words_do() {
    replay("filter");
}

#[test]
fn what_is_accepted_is_an_event_and_stays_the_producers_bytes() {
    replay("ingest");
}

#[test]
fn retry_after_asks_for_what_it_says_and_no_more() {
    replay("retry_after");
}

#[test]
fn what_is_signed_verifies_and_nothing_else_does() {
    replay("signing");
}

#[test]
fn every_target_can_be_fuzzed_and_is_replayed() {
    let names = |found: Vec<PathBuf>| -> BTreeSet<String> {
        found.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
    };
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(inside(&folder("corpus"))), known, "fuzz/corpus has a folder for each target, and no other");
    assert_eq!(names(inside(&folder("fuzz_targets"))), known, "fuzz/fuzz_targets has a file for each, and no other");
    let manifest = std::fs::read_to_string(folder("Cargo.toml")).expect("fuzz has a manifest");
    let replays = include_str!("fuzz.rs");
    for name in known {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is built");
        assert!(replays.contains(&format!("replay(\"{name}\")")), "{name} is replayed");
    }
}
