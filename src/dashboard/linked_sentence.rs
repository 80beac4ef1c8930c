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
pub struct LinkedSentence(Vec<SentencePart>);

enum SentencePart {
    Text(String),
    Moment(Timestamp),
    /// A moment to come; the sentence also said how long that is from now.
    Countdown(Timestamp),
    Code(String),
    /// The name of a button or page that does what a command does.
    Button(&'static str),
    Link {
        address: String,
        id: String,
    },
}

impl LinkedSentence {
    /// Reads a sentence about something of a tenant. `own_id` is what the page is
    /// about, which is no link.
    pub fn of(frame: &Frame, tenant: &str, own_id: &str, sentence: &str) -> Self {
        let plain = if frame.is_portal() { without_settings(sentence) } else { sentence.to_owned() };
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = plain.as_str();
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
        let command = behind[..end].strip_prefix("posthaste ").filter(|_| frame.is_portal());
        let part = match command {
            Some(command) => SentencePart::Button(button_of(command)),
            None => SentencePart::Code(behind[..end].to_owned()),
        };
        return Some((part, end + 2));
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

/// Returns what a customer presses instead of a command, who has none.
fn button_of(command: &str) -> &'static str {
    let verb = |words: &str| command.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    match command {
        _ if verb("dead-letters replay") || verb("deliveries replay") => "“Replay”",
        _ if verb("dead-letters discard") => "“Discard”",
        _ if verb("deliveries retry") => "“Retry”",
        _ if verb("endpoints resume") => "“Resume”",
        _ if verb("endpoints close-breaker") => "“Close the breaker”",
        _ if verb("explain") => "Its page",
        _ => "Your provider",
    }
}

/// Returns a sentence without the names of the gateway's settings, which a customer
/// does not know.
fn without_settings(sentence: &str) -> String {
    sentence
        .replace("--hold-max allows", "is allowed")
        .replace("--hold-max is", "the longest wait is")
        .replace("max_in_flight", "number of requests at once")
        .replace("status_rules", "rules about answers")
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
    // The dot of `4.66s` ends nothing.
    let is_end = |(at, c): &(usize, char)| match c {
        ';' | ',' => true,
        '.' => rest[at + 1..].is_empty() || rest[at + 1..].starts_with(' '),
        _ => false,
    };
    let end = rest.char_indices().find(is_end).map_or(rest.len(), |(at, _)| at);
    let is_span = rest[..end].chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == ' ' || c == '.');
    (is_span && rest.starts_with(|c: char| c.is_ascii_digit())).then(|| rest[end..].to_owned())
}

impl std::fmt::Display for LinkedSentence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in &self.0 {
            match part {
                SentencePart::Text(text) => f.write_str(&escape(text))?,
                SentencePart::Moment(at) => write!(f, "{}", words::moment(at))?,
                SentencePart::Countdown(at) => write!(f, "{}", words::countdown(at))?,
                SentencePart::Button(name) => write!(f, "<b>{name}</b>")?,
                SentencePart::Code(code) => write!(f, "<code>{}</code>", escape(code))?,
                SentencePart::Link { address, id } => {
                    write!(f, "<a href=\"{}\"><code>{}</code></a>", escape(address), escape(id))?;
                }
            }
        }
        Ok(())
    }
}

impl askama::FastWritable for LinkedSentence {
    fn write_into(&self, dest: &mut dyn Write, _: &dyn askama::Values) -> askama::Result<()> {
        write!(dest, "{self}")?;
        Ok(())
    }
}

/// Every text in it is escaped when it is written.
impl askama::filters::HtmlSafe for LinkedSentence {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::cookies::ThemeChoice;
    use crate::model::sign_in::Site;

    fn told(sentence: &str) -> String {
        let frame = Frame::new(Site::Operator, "/deliveries/acme/x", ThemeChoice::Auto, None, "");
        LinkedSentence::of(&frame, "acme", "dlv_01m7fvxf8ce008000000000001", sentence).to_string()
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
    fn a_span_with_a_fraction_is_left_out_as_a_whole() {
        let time =
            "<time datetime=\"2026-11-15T10:41:15.000Z\" data-shows=\"countdown\">2026-11-15 10:41:15 UTC</time>";
        for (rest, left) in [
            (", in 4.66s.", "."),
            (", in 4.66s. Then it dies.", ". Then it dies."),
            (", in 1m 4.5s; nothing", "; nothing"),
            (", in 4.66s, at most", ", at most"),
            (", in 4.66s", ""),
        ] {
            assert_eq!(told(&format!("Next at 2026-11-15T10:41:15Z{rest}")), format!("Next at {time}{left}"), "{rest}");
        }
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
    fn a_customer_reads_of_buttons_and_not_of_commands_and_settings() {
        let frame = Frame::new(Site::Portal, "/portal/deliveries/x", ThemeChoice::Auto, None, "");
        let told = |sentence: &str| LinkedSentence::of(&frame, "acme", "dlv_1", sentence).to_string();
        assert_eq!(
            told("Once it is well, `posthaste dead-letters replay dlv_1 --tenant acme`."),
            "Once it is well, <b>“Replay”</b>."
        );
        assert_eq!(told("`posthaste endpoints resume ep_1` lets it go on."), "<b>“Resume”</b> lets it go on.");
        assert_eq!(told("`posthaste outbox retry 1`"), "<b>Your provider</b>");
        assert_eq!(told("for longer than --hold-max allows (3d), held"), "for longer than is allowed (3d), held");
        assert_eq!(told("`curl`"), "<code>curl</code>");
    }

    #[test]
    fn whatever_strangers_put_into_a_sentence_stays_text() {
        let told = told("key \"<script>alert(1)</script>`<b>` 2026-99-99T00:00:00Z xdlv_, in 5 é");
        assert!(!told.contains("<script") && !told.contains("<b>") && !told.contains("<time"), "{told}");
        assert!(told.contains("&lt;script&gt;") && told.contains("<code>&lt;b&gt;</code>"), "{told}");
    }
}
