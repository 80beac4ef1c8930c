//! What a check of a store found, part by part.

use serde::Serialize;

/// Most findings that a part lists; the rest is only counted.
pub const FINDINGS_SHOWN: usize = 10;

/// The result of a check of a whole store.
#[derive(Debug, Clone, Serialize)]
pub struct StoreCheck {
    /// Location of the store, for people.
    pub store: String,
    /// Whether nothing that was checked is broken.
    pub is_sound: bool,
    /// The parts, in the order in which they were checked.
    pub parts: Vec<CheckedPart>,
}

impl StoreCheck {
    /// Puts the parts together.
    pub fn new(store: String, parts: Vec<CheckedPart>) -> Self {
        let is_sound = parts.iter().all(|part| part.result != CheckResult::Broken);
        Self { store, is_sound, parts }
    }
}

/// Whether a part of a store is in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckResult {
    /// Everything is as it should be.
    Ok,
    /// Something is not as it should be.
    Broken,
    /// The part could not be checked here; its note says why.
    NotChecked,
}

/// One part of a store, and what was found in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedPart {
    /// Name of the part, such as `lanes`.
    pub name: &'static str,
    /// What has to hold, in words.
    pub rule: &'static str,
    /// Whether it holds.
    pub result: CheckResult,
    /// How many findings there are.
    pub findings_count: u64,
    /// The first findings, in words.
    pub findings: Vec<String>,
    /// Why it was not checked, if it was not.
    pub note: Option<String>,
}

impl CheckedPart {
    /// Returns a part in which nothing was found so far.
    pub fn new(name: &'static str, rule: &'static str) -> Self {
        Self { name, rule, result: CheckResult::Ok, findings_count: 0, findings: Vec::new(), note: None }
    }

    /// Adds a finding.
    pub fn add_finding(&mut self, finding: String) {
        self.result = CheckResult::Broken;
        self.findings_count += 1;
        if self.findings.len() < FINDINGS_SHOWN {
            self.findings.push(finding);
        }
    }

    /// Returns the part as one that could not be checked.
    pub fn not_checked(self, why: impl Into<String>) -> Self {
        Self { result: CheckResult::NotChecked, note: Some(why.into()), ..self }
    }
}
