//! Findings of an examination: what was checked, how it stands, and the way out.

use serde::{Deserialize, Serialize};

/// How something stands that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum FindingState {
    /// It is in order.
    Ok,
    /// It works, and may not for long, or not as well as it could.
    Warning,
    /// It does not work, or something will be lost.
    Problem,
}

/// One line of an examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DoctorFinding {
    /// What was checked, such as `disk_space`.
    pub check: String,
    /// How it stands.
    pub state: FindingState,
    /// What was found, in one sentence.
    pub detail: String,
    /// What to do about it; null if nothing is to be done.
    pub way_out: Option<String>,
}

impl DoctorFinding {
    /// Returns a finding with nothing to do about it.
    pub fn ok(check: &str, detail: impl Into<String>) -> Self {
        Self { check: check.to_owned(), state: FindingState::Ok, detail: detail.into(), way_out: None }
    }

    /// Returns a finding that should be looked at.
    pub fn warning(check: &str, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self::bad(check, FindingState::Warning, detail.into(), way_out.into())
    }

    /// Returns a finding that must be mended.
    pub fn problem(check: &str, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self::bad(check, FindingState::Problem, detail.into(), way_out.into())
    }

    fn bad(check: &str, state: FindingState, detail: String, way_out: String) -> Self {
        Self { check: check.to_owned(), state, detail, way_out: Some(way_out) }
    }

    /// Returns the finding of a failure whose sentence has the way out after its first
    /// semicolon, as error messages have.
    pub fn of_failure(check: &str, sentence: &str) -> Self {
        let (detail, way_out) = sentence.split_once("; ").unwrap_or((sentence, "see docs/doctor.md"));
        Self::problem(check, detail, way_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_taken_apart_into_what_is_and_what_to_do() {
        let finding = DoctorFinding::of_failure("settings", "lease is 1s; use 2s to 5m");
        assert_eq!((finding.detail.as_str(), finding.way_out.as_deref()), ("lease is 1s", Some("use 2s to 5m")));
        assert!(FindingState::Problem > FindingState::Warning && FindingState::Warning > FindingState::Ok);
    }
}
