//! Lays out JSON for people without reading its values: numbers, duplicate keys,
//! escapes and order stay exactly as the producer wrote them.

use std::fmt::Write;

/// Deepest indentation, in levels. Accepted data is at most 64 levels deep.
const LEVELS_MAX: usize = 64;

/// Returns the same tokens with line breaks and indentation between them. In a
/// text that is not JSON only white space changes.
pub fn laid_out(text: &str) -> String {
    let mut laid = String::with_capacity(text.len() * 2);
    let mut level = 0_usize;
    let mut is_after_value = false;
    let mut tokens = Tokens { rest: text }.peekable();
    while let Some(token) = tokens.next() {
        let is_value = !matches!(token, "{" | "[" | "}" | "]" | "," | ":");
        if is_value && is_after_value {
            // Two values side by side are no JSON, and stay two.
            laid.push(' ');
        }
        is_after_value = is_value;
        match token {
            "{" | "[" => {
                laid.push_str(token);
                let closes = if token == "{" { "}" } else { "]" };
                if tokens.next_if_eq(&closes).is_some() {
                    laid.push_str(closes);
                } else {
                    level += 1;
                    break_line(&mut laid, level);
                }
            }
            "}" | "]" => {
                level = level.saturating_sub(1);
                break_line(&mut laid, level);
                laid.push_str(token);
            }
            "," => {
                laid.push_str(token);
                break_line(&mut laid, level);
            }
            ":" => laid.push_str(": "),
            token => laid.push_str(token),
        }
    }
    laid
}

fn break_line(laid: &mut String, level: usize) {
    laid.push('\n');
    laid.extend(std::iter::repeat_n("  ", level.min(LEVELS_MAX)));
}

/// Splits a text into the tokens of JSON, each a part of the text.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        let first = self.rest.chars().next()?;
        let end = match first {
            '{' | '}' | '[' | ']' | ',' | ':' => 1,
            '"' => string_end(self.rest),
            _ => self.rest.find(['{', '}', '[', ']', ',', ':', '"', ' ', '\t', '\n', '\r']).unwrap_or(self.rest.len()),
        };
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(token)
    }
}

/// Returns where the string at the beginning of a text ends, behind its quote.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns a text in which characters that cannot be seen, or that change the
/// direction of others, are named: `⟦U+202E⟧`. Line breaks and tabs stay.
pub fn with_hidden_named(text: &str) -> String {
    let mut named = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            let _ = write!(named, "⟦U+{:04X}⟧", u32::from(character));
        } else {
            named.push(character);
        }
    }
    named
}

/// Whether a text has characters that cannot be seen, or that change the direction
/// of others.
pub fn has_hidden(text: &str) -> bool {
    text.chars().any(is_hidden)
}

fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}' => true,
        '\u{061C}' | '\u{180E}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}' => true,
        character => character.is_control(),
    }
}

/// Returns the beginning of a text that takes at most this many bytes on a page,
/// and whether it goes on.
pub fn fitting(text: &str, room: usize) -> (String, bool) {
    let mut taken = 0;
    for (at, character) in text.char_indices() {
        taken += escaped_bytes(character);
        if taken > room {
            return (text[..at].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

/// Returns how many bytes a text takes on a page.
pub fn escaped_len(text: &str) -> usize {
    text.chars().map(escaped_bytes).sum()
}

fn escaped_bytes(character: char) -> usize {
    if matches!(character, '<' | '>' | '&' | '"' | '\'') { 5 } else { character.len_utf8() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_duplicates_order_and_escapes_stay_as_they_were_written() {
        let data = r#"{ "b":1.00,"a":12345678901234567890123.10,"a":-0e5,
            "u":"\u0000\ud800 \" , { } é","e":{},"l":[ ], "n":[null,true,[1]]}"#;
        let expected = r#"{
  "b": 1.00,
  "a": 12345678901234567890123.10,
  "a": -0e5,
  "u": "\u0000\ud800 \" , { } é",
  "e": {},
  "l": [],
  "n": [
    null,
    true,
    [
      1
    ]
  ]
}"#;
        assert_eq!(laid_out(data), expected);
    }

    #[test]
    fn what_is_not_json_is_shown_all_the_same() {
        for (text, expected) in
            [("", ""), ("\"open", "\"open"), ("]]", "\n]\n]"), ("plain", "plain"), ("\"a\\", "\"a\\")]
        {
            assert_eq!(laid_out(text), expected, "{text}");
        }
    }

    #[test]
    fn what_hides_or_turns_text_is_named() {
        assert_eq!(with_hidden_named("a\u{202E}b\u{0}\n\tc\u{E0041}"), "a⟦U+202E⟧b⟦U+0000⟧\n\tc⟦U+E0041⟧");
        assert!(has_hidden("a\u{2066}") && !has_hidden("añ\n日本"));
    }

    #[test]
    fn a_text_is_cut_between_characters_by_what_it_takes_on_a_page() {
        assert_eq!(fitting("aé", 2), ("a".to_owned(), true));
        assert_eq!(fitting("aé", 3), ("aé".to_owned(), false));
        assert_eq!(fitting("<<", 9), ("<".to_owned(), true));
        assert_eq!(escaped_len("<é"), 7);
    }

    proptest! {
        #[test]
        fn no_token_is_lost_or_changed(text in "[\\[\\]{},:\"\\\\a1é \n]{0,60}") {
            let tokens = |text: &str| Tokens { rest: text }.map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(tokens(&laid_out(&text)), tokens(&text));
        }
    }
}
