//! An invariant between the tables of a store.

/// An invariant. Each query returns one text for each thing that breaks it.
pub struct StoreRule {
    /// Name of the part that the rule is about.
    pub name: &'static str,
    /// What has to hold, in words.
    pub rule: &'static str,
    /// Queries for what breaks the rule.
    pub broken_by: &'static [&'static str],
}
