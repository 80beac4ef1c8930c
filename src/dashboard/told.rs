//! Shows sentences of the gateway on a page: moments as times of the page, ids as
//! links, commands as code. Everything else in them is text.

use std::fmt::Write;

use jiff::Timestamp;

use super::chart::escape;
use super::frame::Frame;
use super::words;

/// Length of a moment as sentences write it: `2026-11-15T10:41:15Z`.
const MOMENT_BYTES: usize = 20;
/// Length of the part of an id behind its prefix.
const ID_BYTES: usize = 26;

/// A sentence in its parts.
pub struct ToldSentence(Vec<SentencePart>);

enum SentencePart {
    Text(String),
    Moment(Timestamp),
    /// A moment to come; the sentence also said how long that is from now.
    Countdown(Timestamp),
    Code(String),
    Link {
        address: String,
        id: String,
    },
}

impl ToldSentence {
    /// Reads a sentence about something of a tenant. `own_id` is what the page is
    /// about, which is no link.
    pub fn of(frame: &Frame, tenant: &str, own_id: &str, sentence: &str) -> Self {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = sentence;
        while let Some(first) = rest.chars().next() {
            let is_word_start = !text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let found = special(frame, tenant, own_id, rest).filter(|_| is_word_start);
            let Some((part, bytes)) = found else {
                text.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            };
            if !text.is_empty() {
                parts.push(SentencePart::Text(std::mem::take(&mut text)));
            }
            rest = &rest[bytes..];
            parts.push(part);
        }
        if !text.is_empty() {
            parts.push(SentencePart::Text(text));
        }
        Self(with_countdowns(parts))
    }

    /// Reads several sentences.
    pub fn all(frame: &Frame, tenant: &str, own_id: &str, sentences: &[String]) -> Vec<Self> {
        sentences.iter().map(|sentence| Self::of(frame, tenant, own_id, sentence)).collect()
    }
}

/// Returns the moment, command or id at the beginning of a text, and its length.
fn special(frame: &Frame, tenant: &str, own_id: &str, text: &str) -> Option<(SentencePart, usize)> {
    if let Some(behind) = text.strip_prefix('`') {
        let end = behind.find('`')?;
        return Some((SentencePart::Code(behind[..end].to_owned()), end + 2));
    }
    if let Some(moment) = text.get(..MOMENT_BYTES).filter(|moment| moment.ends_with('Z')) {
        return Some((SentencePart::Moment(moment.parse().ok()?), MOMENT_BYTES));
    }
    for (prefix, kind) in [("dlv_", "deliveries"), ("ep_", "endpoints")] {
        let Some(id) = text.get(..prefix.len() + ID_BYTES).filter(|id| id.starts_with(prefix)) else { continue };
        let is_id = id[prefix.len()..].bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        let ends = !text[id.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if is_id && ends && id != own_id {
            return Some((SentencePart::Link { address: frame.link(kind, tenant, id), id: id.to_owned() }, id.len()));
        }
    }
    None
}

/// Leaves out how long it is to a moment, since the script counts that down: a page
/// must not differ every second.
fn with_countdowns(parts: Vec<SentencePart>) -> Vec<SentencePart> {
    let mut told: Vec<SentencePart> = Vec::new();
    for part in parts {
        match part {
            SentencePart::Text(text) => match (told.last_mut(), without_span(&text)) {
                (Some(last @ SentencePart::Moment(_)), Some(rest)) => {
                    let SentencePart::Moment(at) = *last else { continue };
                    *last = SentencePart::Countdown(at);
                    told.push(SentencePart::Text(rest));
                }
                _ => told.push(SentencePart::Text(text)),
            },
            part => told.push(part),
        }
    }
    told
}

/// Returns what follows `, in 1m 25s`, if a text begins so.
fn without_span(text: &str) -> Option<String> {
    let rest = text.strip_prefix(", in ")?;
    let end = rest.find(['.', ';', ','])?;
    let is_span = rest[..end].chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == ' ');
    (is_span && rest.starts_with(|c: char| c.is_ascii_digit())).then(|| rest[end..].to_owned())
}

impl std::fmt::Display for ToldSentence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in &self.0 {
            match part {
                SentencePart::Text(text) => f.write_str(&escape(text))?,
                SentencePart::Moment(at) => write!(f, "{}", words::moment(at))?,
                SentencePart::Countdown(at) => write!(f, "{}", words::countdown(at))?,
                SentencePart::Code(code) => write!(f, "<code>{}</code>", escape(code))?,
                SentencePart::Link { address, id } => {
                    write!(f, "<a href=\"{}\"><code>{}</code></a>", escape(address), escape(id))?;
                }
            }
        }
        Ok(())
    }
}

impl askama::FastWritable for ToldSentence {
    fn write_into(&self, dest: &mut dyn Write, _: &dyn askama::Values) -> askama::Result<()> {
        write!(dest, "{self}")?;
        Ok(())
    }
}

/// Every text in it is escaped when it is written.
impl askama::filters::HtmlSafe for ToldSentence {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::cookies::Look;
    use crate::model::sign_in::Site;

    fn told(sentence: &str) -> String {
        let frame = Frame::new(Site::Operator, "/deliveries/acme/x", Look::Auto, None, "");
        ToldSentence::of(&frame, "acme", "dlv_01m7fvxf8ce008000000000001", sentence).to_string()
    }

    #[test]
    fn a_countdown_takes_the_place_of_a_span_that_would_grow_old() {
        let told = told("Waiting: attempt 3 starts at 2026-11-15T10:41:15Z, in 1m 25s.");
        assert_eq!(
            told,
            "Waiting: attempt 3 starts at <time datetime=\"2026-11-15T10:41:15.000Z\" data-shows=\"countdown\">\
             2026-11-15 10:41:15 UTC</time>."
        );
    }

    #[test]
    fn ids_become_links_but_the_pages_own() {
        let (own, other) = ("dlv_01m7fvxf8ce008000000000001", "dlv_01m7fvxf8ce008000000000009");
        let told = told(&format!("{own} stands behind {other}; `posthaste explain {other}` explains that one."));
        assert_eq!(
            told,
            format!(
                "{own} stands behind <a href=\"../../deliveries/acme/{other}\"><code>{other}</code></a>; \
                 <code>posthaste explain {other}</code> explains that one."
            )
        );
    }

    #[test]
    fn whatever_strangers_put_into_a_sentence_stays_text() {
        let told = told("key \"<script>alert(1)</script>`<b>` 2026-99-99T00:00:00Z xdlv_, in 5 é");
        assert!(!told.contains("<script") && !told.contains("<b>") && !told.contains("<time"), "{told}");
        assert!(told.contains("&lt;script&gt;") && told.contains("<code>&lt;b&gt;</code>"), "{told}");
    }
}
