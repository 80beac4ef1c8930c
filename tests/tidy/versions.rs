//! Every place that names the version names this one, so that raising it is one commit.
//!
//! CONTRIBUTING.md has the same list, under "Releases".

use crate::source::{expect_none, read};

/// Places that name the version: the file, and what stands before and behind it.
const PLACES: &[(&str, &str, &str)] = &[
    ("Cargo.toml", "\nversion = \"", "\""),
    ("client/Cargo.toml", "\nversion = \"", "\""),
    ("receiver/Cargo.toml", "\nversion = \"", "\""),
    ("Cargo.lock", "name = \"posthaste\"\nversion = \"", "\""),
    ("Cargo.lock", "name = \"posthaste-client\"\nversion = \"", "\""),
    ("Cargo.lock", "name = \"posthaste-receiver\"\nversion = \"", "\""),
    ("fuzz/Cargo.lock", "name = \"posthaste\"\nversion = \"", "\""),
    ("fuzz/Cargo.lock", "name = \"posthaste-client\"\nversion = \"", "\""),
    ("fuzz/Cargo.lock", "name = \"posthaste-receiver\"\nversion = \"", "\""),
    ("deploy/kubernetes/embedded/kustomization.yaml", "newTag: ", "\n"),
    ("deploy/kubernetes/postgres/kustomization.yaml", "newTag: ", "\n"),
    ("README.md", "\nPosthaste ", " serves "),
    ("docs/tour.md", "\nPosthaste ", " serves "),
    ("docs/install.md", "target/deb/posthaste_", "-1_amd64.deb"),
    ("docs/openapi.json", "\"version\": \"", "\""),
    ("CHANGELOG.md", "\n## ", "\n"),
];

/// The versions that a text names between these two.
fn named<'a>(text: &'a str, before: &str, behind: &str) -> Vec<&'a str> {
    let named = text.match_indices(before).filter_map(|(at, _)| {
        let rest = &text[at + before.len()..];
        Some(&rest[..rest.find(behind)?])
    });
    named.filter(|version| version.starts_with(|c: char| c.is_ascii_digit())).collect()
}

#[test]
fn every_place_that_names_the_version_names_this_one() {
    let wrong = PLACES.iter().flat_map(|(file, before, behind)| {
        let text = read(file);
        let all = named(&text, before, behind);
        // The changelog has older versions below.
        let looked_at = if *file == "CHANGELOG.md" { all.len().min(1) } else { all.len() };
        let mut wrong: Vec<String> = all[..looked_at]
            .iter()
            .map(|version| version.split(',').next().unwrap_or_default())
            .filter(|version| *version != env!("CARGO_PKG_VERSION"))
            .map(|version| format!("{file} names {version} behind {before:?}"))
            .collect();
        if all.is_empty() {
            wrong.push(format!("{file} names no version behind {before:?}"));
        }
        wrong
    });
    expect_none(&format!("versions other than {}", env!("CARGO_PKG_VERSION")), wrong.collect());
}

#[test]
fn the_list_of_places_is_in_the_instructions_for_a_release() {
    let text = read("CONTRIBUTING.md");
    let releases = text.split("\n## Releases\n").nth(1).expect("there is a part about releases");
    let missing = PLACES.iter().map(|(file, ..)| *file).filter(|file| !releases.contains(file));
    expect_none("files that the instructions do not name", missing.map(str::to_owned).collect());
}
