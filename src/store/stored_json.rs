//! Writes values as JSON into a column, and reads them back.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A stored value that this version cannot read, because a newer version wrote
/// it. The row that holds it is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{column} has something{at} that this version does not know; a newer version wrote it, so ask a node of that version"
)]
pub struct UnreadableRecord {
    /// Table and column of the value.
    pub column: &'static str,
    /// Where in the value it is, such as ` at format`. What is there is not shown:
    /// it may be secret.
    at: String,
}

/// Writes a value as JSON.
pub fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("what is stored is plain data")
}

/// Reads the value of a column from JSON.
pub fn from_json<T: DeserializeOwned>(column: &'static str, text: &str) -> Result<T, UnreadableRecord> {
    serde_json::from_str(text).map_err(|_| {
        let again = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(text));
        let path = again.err().map(|problem| problem.path().to_string()).filter(|path| path != ".");
        UnreadableRecord { column, at: path.map_or_else(String::new, |path| format!(" at {path}")) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::endpoint::EndpointSettings;

    #[test]
    fn what_a_newer_version_wrote_is_named_by_its_place_and_not_shown() {
        let text = r#"{"url":"https://example.com/token","format":"carrier_pigeon"}"#;
        let problem = from_json::<EndpointSettings>("endpoints.settings", text).unwrap_err().to_string();
        assert!(problem.starts_with("endpoints.settings has something at format that this version"), "{problem}");
        let problem = from_json::<Vec<u8>>("a.b", r#""secret""#).unwrap_err().to_string();
        assert!(problem.starts_with("a.b has something that"), "{problem}");
    }
}
