//! Takes the links out of the sentences of the description.
//!
//! The sentences are also those of the tables in `docs/api.md`, where their links
//! lead to other pages. A reader of the description does not have these pages.

use serde_json::Value;

/// Replaces `[text](target)` by `text` in every description.
pub fn drop_links(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_links),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "description" => *text = without_links(text),
                    _ => drop_links(field),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn without_links(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, label, after)) = next_link(rest) {
        plain.push_str(before);
        plain.push_str(label);
        rest = after;
    }
    plain + rest
}

/// Splits a text at its first link: what comes before, its label, what comes after.
fn next_link(text: &str) -> Option<(&str, &str, &str)> {
    let (before, target) = text.split_once("](")?;
    let (before, label) = before.rsplit_once('[')?;
    let (_, after) = target.split_once(')')?;
    Some((before, label, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_become_their_labels_and_other_brackets_stay() {
        let text = "See [the `breaker`](gentle.md#the-breaker), [retries](retries.md); `[\"*\"]` and (this) stay.";
        assert_eq!(without_links(text), "See the `breaker`, retries; `[\"*\"]` and (this) stay.");
        let mut value = json!({"a": [{"description": "[x](y)", "title": "[x](y)"}]});
        drop_links(&mut value);
        assert_eq!(value, json!({"a": [{"description": "x", "title": "[x](y)"}]}));
    }
}
