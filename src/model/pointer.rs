//! Builds JSON pointers (RFC 6901), which say where in a document something is wrong.

/// Returns the pointer to the field of this name below a parent pointer.
pub fn child(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let document = serde_json::json!({"a": {"b/c~d": 1}});
        assert_eq!(child("/a", "b/c~d"), "/a/b~1c~0d");
        assert_eq!(document.pointer(&child("/a", "b/c~d")), Some(&1.into()));
    }
}
