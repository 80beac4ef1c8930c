//! Values of queries and forms.

use std::collections::HashMap;

/// The values of a query or a form. Where a name comes several times, all its
/// values are kept.
#[derive(Debug, Clone, Default)]
pub struct FormValues {
    values: Vec<(String, String)>,
}

impl FormValues {
    /// Reads the text of a query, or the body of a form.
    pub fn parse(text: &[u8]) -> Self {
        Self { values: url::form_urlencoded::parse(text).into_owned().collect() }
    }

    /// Returns the first value of this name, without blanks around it; empty if
    /// there is none.
    pub fn get(&self, name: &str) -> &str {
        self.values.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value.trim())
    }

    /// Returns the first value of this name exactly as it was sent.
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of this name, unless it is empty.
    pub fn given(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// Returns all values of this name that are not empty.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let named = self.values.iter().filter(|(given, value)| given == name && !value.trim().is_empty());
        named.map(|(_, value)| value.trim()).collect()
    }

    /// Returns the values of all names but these, each name once with its first value.
    pub fn besides(&self, names: &[&str]) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, value) in &self.values {
            let is_known = names.contains(&name.as_str()) || found.iter().any(|(known, _)| known == name);
            if !is_known && !value.trim().is_empty() {
                found.push((name.clone(), value.trim().to_owned()));
            }
        }
        found
    }

    /// Whether there is a value of this name.
    pub fn has(&self, name: &str) -> bool {
        self.given(name).is_some()
    }

    /// Returns the whole query but for this name: `?a=1&b=2`, or nothing.
    pub fn without(&self, name: &str) -> String {
        let others = self.values.iter().filter(|(other, _)| other != name);
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(others).finish();
        if query.is_empty() { query } else { format!("?{query}") }
    }

    /// Returns a query of these names, with the values that are given, and with
    /// `changed` in their place: `?a=1&b=2`, or nothing.
    pub fn query_with(&self, names: &[&str], changed: &[(&str, &str)]) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let changes: HashMap<&str, &str> = changed.iter().copied().collect();
        for name in names {
            match changes.get(name) {
                Some(&"") => {}
                Some(value) => {
                    query.append_pair(name, value);
                }
                None => {
                    for value in self.all(name) {
                        query.append_pair(name, value);
                    }
                }
            }
        }
        for (name, value) in changed.iter().filter(|(name, value)| !names.contains(name) && !value.is_empty()) {
            query.append_pair(name, value);
        }
        let query = query.finish();
        if query.is_empty() { query } else { format!("?{query}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_keeps_its_filters_and_changes_one() {
        let query = FormValues::parse(b"state=dead&cause=&q=a%26b&cursor=x&q=c");
        assert_eq!((query.get("q"), query.all("q")), ("a&b", vec!["a&b", "c"]));
        assert_eq!(query.given("cause"), None);
        assert_eq!(query.query_with(&["state", "q"], &[("cursor", "y z")]), "?state=dead&q=a%26b&q=c&cursor=y+z");
        assert_eq!(query.query_with(&["state"], &[("state", "")]), "");
        assert_eq!(query.without("q"), "?state=dead&cause=&cursor=x");
        assert_eq!(FormValues::parse(b"q=1").without("q"), "");
        let besides = query.besides(&["state", "cursor"]);
        assert_eq!(besides, [("q".to_owned(), "a&b".to_owned())], "one value of each other name");
    }
}
