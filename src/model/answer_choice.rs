//! A last answer as filters name it: a status, a class of statuses, or a kind of
//! failure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::answer::FailureKind;
use super::event::InvalidText;
use super::named_enum::NamedEnum;

/// A last answer that deliveries are chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AnswerChoice {
    /// A status, such as 503.
    Status(u16),
    /// Every status that begins with this digit, such as 4 for `4xx`.
    Class(u8),
    /// A kind of failure, such as `timeout`.
    Failure(FailureKind),
}

impl AnswerChoice {
    /// Returns the pattern of SQL's `LIKE` for the statuses of a class.
    pub fn class_pattern(self) -> Option<String> {
        match self {
            Self::Class(digit) => Some(format!("{digit}__")),
            Self::Status(_) | Self::Failure(_) => None,
        }
    }
}

impl FromStr for AnswerChoice {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        match text.as_bytes() {
            [digit @ b'1'..=b'9', b'x', b'x'] => return Ok(Self::Class(digit - b'0')),
            [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => {
                return text.parse().map(Self::Status).map_err(|_| InvalidText(format!("{text:?} is no status")));
            }
            _ => {}
        }
        let known = FailureKind::ALL.iter().find(|kind| kind.as_str() == text);
        known.copied().map(Self::Failure).ok_or_else(|| {
            let kinds: Vec<&str> = FailureKind::ALL.iter().map(|kind| kind.as_str()).collect();
            InvalidText(format!(
                "{text:?} is no last answer; use a status such as 503, a class such as 4xx, or one of {}",
                kinds.join(", ")
            ))
        })
    }
}

impl TryFrom<String> for AnswerChoice {
    type Error = InvalidText;

    fn try_from(text: String) -> Result<Self, InvalidText> {
        text.parse()
    }
}

impl fmt::Display for AnswerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Class(digit) => write!(f, "{digit}xx"),
            Self::Failure(kind) => f.write_str(kind.as_str()),
        }
    }
}

impl From<AnswerChoice> for String {
    fn from(answer: AnswerChoice) -> Self {
        answer.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_is_written() {
        for text in ["503", "100", "999", "4xx", "timeout", "connection_refused"] {
            assert_eq!(text.parse::<AnswerChoice>().unwrap().to_string(), text);
        }
        assert_eq!("4xx".parse::<AnswerChoice>().unwrap().class_pattern().as_deref(), Some("4__"));
        assert_eq!("404".parse::<AnswerChoice>().unwrap().class_pattern(), None);
    }

    #[test]
    fn what_no_answer_can_be_is_refused_with_what_can() {
        for text in ["", "50x", "5XX", "0xx", "040", "+50", "1000", "timeuot", "none", "4__"] {
            let refused = text.parse::<AnswerChoice>().unwrap_err().to_string();
            assert!(refused.contains("4xx") && refused.contains("timeout"), "{refused}");
        }
    }
}
