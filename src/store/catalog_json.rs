//! Writes values of the catalog as JSON, and reads them back.

/// Writes a value of the catalog as JSON.
pub fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("the catalog's values are plain data")
}

/// Reads a value of the catalog from JSON.
pub fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("the catalog holds what was written into it")
}
