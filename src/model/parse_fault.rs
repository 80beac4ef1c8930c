//! Says in plain words what is wrong with a text that a parser refused: JSON,
//! a time or a URL.
//!
//! Every message of a parser that a caller or an operator gets to see goes
//! through here, because parsers speak of their own workings.

use url::ParseError;

/// An example of a time, for messages.
pub const TIME_EXAMPLE: &str = "2026-01-31T12:00:00Z";

/// Returns what is wrong with a text that is not JSON.
pub fn json_fault(text: &[u8], problem: &serde_json::Error) -> String {
    json_fault_below(text, problem, 0)
}

/// Returns what is wrong with a text that is not JSON and stands below other lines.
pub fn json_fault_below(text: &[u8], problem: &serde_json::Error, lines_before: usize) -> String {
    if text.trim_ascii().is_empty() {
        return "it is empty".to_owned();
    }
    if problem.is_eof() {
        return format!(
            "it ends too early, in line {}; a quote, a bracket or a brace is not closed",
            lines_before + problem.line().max(1)
        );
    }
    let message = problem.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    let fault = match message {
        "expected value" => "no JSON value begins here; texts and names need double quotes",
        "expected ident" => "the only bare words are true, false and null",
        "key must be a string" => "the name of a field needs double quotes",
        "trailing comma" => "a comma stands before the end of a list or an object",
        "expected `:`" => "a colon is missing after the name of a field",
        "expected `,` or `]`" => "a comma or a closing bracket is missing",
        "expected `,` or `}`" => "a comma or a closing brace is missing",
        "trailing characters" => "something follows after the end",
        "invalid number" | "number out of range" => "this is not a number as JSON writes it",
        "invalid escape" => "this is not an escape that JSON knows, such as \\n or \\u00e9",
        "recursion limit exceeded" => "it is nested too deep",
        text if text.starts_with("control character") => {
            "a text contains a line break or a control character; write \\n"
        }
        text if is_bad_escape(text) => "a \\u escape names no character",
        other => other,
    };
    format!("line {}, column {}: {fault}", lines_before + problem.line(), problem.column())
}

/// Whether the parser speaks of a `\u` escape, such as a half of a pair.
fn is_bad_escape(message: &str) -> bool {
    ["surrogate", "hex escape", "code point"].iter().any(|word| message.contains(word))
}

/// Returns what is wrong with valid JSON that does not fit, from the message
/// of the parser: without the names of Rust types.
pub fn data_fault(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or_default();
    if message == "expected value" {
        return "the value is of a wrong type or shape".to_owned();
    }
    if is_bad_escape(message) {
        return "it is a text with a \\u escape that names no character; write the character itself".to_owned();
    }
    if message == "number out of range" {
        return "it is a number larger than any that is read; use a smaller one".to_owned();
    }
    if let Some(name) = repeated_field(message) {
        return format!("{name} is given twice; keep one");
    }
    if let Some((name, accepted)) =
        message.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected "))
    {
        return format!("{name} is not known here; use {accepted}");
    }
    if message.starts_with("provided string was not `true` or `false`") {
        return "write true or false".to_owned();
    }
    let Some((actual, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "a boolean" => "true or false",
        "f64" => "a number",
        "a string" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        "map with a single key" => "an object with exactly one field",
        object if object.starts_with("struct ") => "an object",
        word if word.starts_with("enum ") || word == "string or map" => "a text",
        other => other,
    };
    match actual.split_once(": ") {
        Some(("invalid type" | "invalid value", actual)) => format!("it is {}; use {expected}", value_words(actual)),
        _ => format!("{actual}, expected {expected}"),
    }
}

/// Returns the field that is given twice, from the message of the parser.
pub fn repeated_field(message: &str) -> Option<&str> {
    let message = message.split(" at line ").next().unwrap_or_default();
    message.strip_prefix("duplicate field `")?.strip_suffix('`')
}

/// Returns a value as people call it, from the words of the parser.
fn value_words(actual: &str) -> String {
    let inner = |prefix: &str| actual.strip_prefix(prefix).map(|rest| rest.trim_matches('`'));
    if let Some(number) = inner("integer ").or_else(|| inner("floating point ")) {
        return format!("the number {number}");
    }
    match actual {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        "unit value" => "null".to_owned(),
        text if text.starts_with("string ") => format!("the text {}", &text["string ".len()..]),
        other => inner("boolean ").unwrap_or(other).to_owned(),
    }
}

/// Whether a field of this name is a time.
pub fn is_time(name: &str) -> bool {
    name.ends_with("_at") || name.ends_with("since") || name.ends_with("until") || matches!(name, "from" | "to")
}

/// Returns what is wrong with a field that should be a time.
pub fn time_fault(name: &str) -> String {
    format!("{name} is not RFC 3339 with an offset, such as {TIME_EXAMPLE}")
}

/// Returns what is wrong with a text that is not a URL.
pub fn url_fault(problem: ParseError) -> &'static str {
    match problem {
        ParseError::RelativeUrlWithoutBase | ParseError::RelativeUrlWithCannotBeABaseBase => {
            "it does not begin with a scheme such as https://"
        }
        ParseError::EmptyHost => "it names no host",
        ParseError::InvalidPort => "its port is not a number up to 65535",
        ParseError::InvalidIpv4Address | ParseError::InvalidIpv6Address => "its host is not an IP address that exists",
        ParseError::IdnaError | ParseError::InvalidDomainCharacter => "its host has a character that no name may have",
        ParseError::Overflow => "it is too long",
        _ => "its host cannot be read",
    }
}

/// Replaces what the parsers of numbers say in a message about an argument.
pub fn number_fault(message: &str) -> String {
    const WHOLE: &str = "write a whole number, such as 10";
    [
        ("invalid digit found in string", WHOLE),
        ("cannot parse integer from empty string", WHOLE),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("invalid float literal", "write a number, such as 0.5"),
        ("cannot parse float from empty string", "write a number, such as 0.5"),
    ]
    .iter()
    .fold(message.to_owned(), |message, (raw, plain)| message.replace(raw, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_json_is_told_without_the_parsers_words() {
        for (text, fault) in [
            ("", "it is empty"),
            (" \n", "it is empty"),
            ("{\"a\":", "it ends too early, in line 1"),
            ("{\n\"a", "it ends too early, in line 2"),
            ("hello", "line 1, column 1: no JSON value begins here"),
            ("{a:1}", "line 1, column 2: the name of a field needs double quotes"),
            ("{\"a\":1,}", "line 1, column 8: a comma stands before the end"),
            ("[1,]", "a comma stands before the end"),
            ("{\"a\" 1}", "a colon is missing"),
            ("[1 2]", "line 1, column 4: a comma or a closing bracket is missing"),
            ("{\"a\":1 \"b\":2}", "a comma or a closing brace is missing"),
            ("{} {}", "line 1, column 4: something follows after the end"),
            ("-", "it ends too early"),
            ("01", "this is not a number"),
            ("nul!", "the only bare words are true, false and null"),
            ("\"\\x\"", "this is not an escape"),
            ("\"a\nb\"", "a line break or a control character"),
            ("\"\\ud800\"", "a \\u escape names no character"),
        ] {
            let problem = serde_json::from_str::<serde_json::Value>(text).unwrap_err();
            let said = json_fault(text.as_bytes(), &problem);
            assert!(said.contains(fault), "{text:?}: {said} ({problem})");
            assert!(!["EOF", "expected", "parsing"].iter().any(|raw| said.contains(raw)), "{text:?}: {said}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_without_the_parsers_words() {
        for (message, fault) in [
            ("unexpected end of hex escape at line 1 column 9", "a \\u escape that names no character"),
            ("lone leading surrogate in hex escape", "a \\u escape that names no character"),
            ("number out of range at line 1 column 3", "use a smaller one"),
            ("duplicate field `type` at line 1 column 3", "type is given twice; keep one"),
            ("invalid value: map, expected map with a single key", "use an object with exactly one field"),
        ] {
            assert!(data_fault(message).contains(fault), "{message}: {}", data_fault(message));
        }
    }

    #[test]
    fn a_url_that_cannot_be_read_is_told_without_the_parsers_words() {
        for (text, fault) in [
            ("hooks.example.com", "begin with a scheme"),
            ("https://", "names no host"),
            ("https://a:99999/", "its port"),
            ("https://1.2.3.999/", "not an IP address"),
            ("https://[::g]/", "not an IP address"),
            ("https://a<b/", "a character that no name may have"),
        ] {
            let problem = url::Url::parse(text).unwrap_err();
            assert!(url_fault(problem).contains(fault), "{text}: {problem:?}");
        }
    }

    #[test]
    fn names_of_times_are_known() {
        assert!(["expires_at", "since", "finished_until"].into_iter().all(is_time));
        assert!(!["type", "format", "at"].into_iter().any(is_time));
    }
}
