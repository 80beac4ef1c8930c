//! What a backup says about itself: its manifest, and what was counted in it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Name of the manifest in the folder of a backup.
pub const MANIFEST_FILE: &str = "manifest.json";

/// Format of the manifests that this version writes and reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// Ending of the name of a folder in which a backup is being made.
pub const PARTIAL_SUFFIX: &str = ".partial";

/// Sentence of the manifest about the master key.
const MASTER_KEY_SENTENCE: &str = "The master key is NOT in this backup. The secrets of endpoints, their URLs, headers \
     and other settings are sealed under it and cannot be read without it. Keep a copy of the master key file in \
     another place: the one that was in use at taken_at, since `posthaste keys rotate` replaces it.";

/// Sentence of the manifest about the whole.
const CONTENT_SENTENCE: &str = "A copy of the embedded store of Posthaste, complete up to taken_at: everything that was \
     acknowledged before that is in it. `posthaste restore` puts it in place, `posthaste check-store` checks it.";

/// The manifest of a backup: a file beside the copy, written when the copy is
/// complete and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupManifest {
    /// Format of this manifest.
    pub format: u32,
    /// What the folder holds, in words.
    pub content: String,
    /// Where the master key is not, in words.
    pub master_key: String,
    /// Version of the program that made the backup.
    pub version: String,
    /// Version of the store's schema.
    pub schema: u32,
    /// When the copying began, wall time.
    pub began_at: Timestamp,
    /// The moment that the copy shows, wall time.
    pub taken_at: Timestamp,
    /// When the copy was checked and complete, wall time.
    pub finished_at: Timestamp,
    /// Name of the copy's file in the folder.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// How many of what are in it.
    pub counts: StoreCounts,
    /// What was checked after the copying.
    pub checked: Vec<String>,
    /// What the checks found, if the store itself was not in order.
    pub problems: Vec<String>,
}

impl BackupManifest {
    /// Returns the sentence about what the folder holds.
    pub fn content_sentence() -> String {
        CONTENT_SENTENCE.to_owned()
    }

    /// Returns the sentence about the master key.
    pub fn master_key_sentence() -> String {
        MASTER_KEY_SENTENCE.to_owned()
    }
}

/// How many of what a store has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreCounts {
    /// Tenants that are not deleted.
    pub tenants: u64,
    /// Endpoints that are not deleted.
    pub endpoints: u64,
    /// Events that are kept.
    pub events: u64,
    /// Deliveries that are kept, in every state.
    pub deliveries: u64,
    /// Deliveries that wait.
    pub waiting: u64,
    /// Deliveries that are dead.
    pub dead_letters: u64,
    /// Attempts that are kept.
    pub attempts: u64,
}

/// Whether a text can be the name of a backup: that of a folder, on any system.
pub fn is_backup_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=100).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
        && !name.ends_with(PARTIAL_SUFFIX)
}

/// Returns the name of a backup that was begun at this time and given none.
pub fn backup_name(at: Timestamp) -> String {
    format!("posthaste-{}", at.strftime("%Y%m%dT%H%M%SZ"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_folder_and_nothing_else() {
        for name in ["monday", "2026-11-18", "a.b_c-D"] {
            assert!(is_backup_name(name), "{name}");
        }
        for name in ["", "..", ".hidden", "-o", "a/b", "a b", "ä", "monday.partial", &"x".repeat(101)] {
            assert!(!is_backup_name(name), "{name}");
        }
        let name = backup_name("2026-11-18T01:55:00.7Z".parse().unwrap());
        assert_eq!(name, "posthaste-20261118T015500Z");
        assert!(is_backup_name(&name));
    }
}
