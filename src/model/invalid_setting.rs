//! A refused setting of an endpoint.

/// A refused setting and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSetting {
    /// JSON pointer to the setting.
    pub pointer: String,
    /// The reason, with what would be accepted.
    pub message: String,
}
