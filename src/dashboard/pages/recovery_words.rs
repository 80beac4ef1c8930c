//! The words of dead letters and jobs: answers, kinds, what stays out.

use crate::model::delivery::WaitingFor;
use crate::model::job::{JobKind, JobState};
use crate::model::named_enum::NamedEnum;

/// Returns what a last answer often means for the one who has to mend it.
pub fn answer_hint(answer: &str) -> Option<&'static str> {
    let hint = match answer {
        "400" | "422" => "The receiver rejects the content. Was a field or version changed on one side?",
        "401" | "403" => "The receiver rejects the sender. Did a key or a signing secret change?",
        "404" | "405" => "Nothing takes events at this address. Did the path change?",
        "410" => "The receiver says that it is gone for good.",
        "413" => "The body is too large for the receiver.",
        "429" => "The receiver asks for fewer requests. A slower pace helps.",
        "500" | "502" | "503" | "504" => "The receiver was in trouble. Replay once it is well.",
        "timeout" => "The receiver did not answer in time.",
        "tls" => "No secure connection. Has its certificate ended?",
        "dns" | "no_such_name" => "The receiver's name was not found. Is the address right?",
        "connection_refused" | "unreachable" | "connection_reset" => "The receiver was not reachable.",
        "ours" => "The gateway itself failed here; the receiver did nothing wrong.",
        _ => return None,
    };
    Some(hint)
}

/// Returns what holds an endpoint.
pub fn held_words(held_by: &WaitingFor) -> &'static str {
    match held_by {
        WaitingFor::Pause => "paused",
        WaitingFor::Disabled => "disabled",
        WaitingFor::Breaker => "breaker open",
        WaitingFor::Backpressure | WaitingFor::Rate | WaitingFor::Slot | WaitingFor::Key | WaitingFor::Due => {
            held_by.as_str()
        }
    }
}

/// Reads the kind of a job that a form names; replay if nothing is said.
pub fn kind_of(text: &str) -> JobKind {
    JobKind::ALL.iter().copied().find(|kind| kind.as_str() == text).unwrap_or(JobKind::Replay)
}

/// Returns the verb of a kind, for headings and buttons.
pub fn kind_verb(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Replay => "Replay",
        JobKind::Retry => "Retry",
        JobKind::Discard => "Discard",
        JobKind::Cancel => "Cancel",
        JobKind::Backfill => "Backfill",
        JobKind::Purge => "Purge",
    }
}

/// Says what a kind does, behind its verb; nothing for one that the form does not offer.
pub fn kind_sentence(kind: JobKind) -> Option<&'static str> {
    match kind {
        JobKind::Replay => Some("dead letters: send them again, with a fresh budget of attempts"),
        JobKind::Retry => Some("waiting deliveries: make their next attempt now"),
        JobKind::Backfill => Some("an endpoint: send past events that it never got"),
        JobKind::Discard => Some("dead letters: give them up, their lanes move on"),
        JobKind::Cancel => Some("waiting deliveries: no more attempts"),
        JobKind::Purge => None,
    }
}

/// Returns the class of the mark for a job's state.
pub fn job_mark(state: JobState) -> &'static str {
    match state {
        JobState::Running => "calm",
        JobState::Finished => "good",
        JobState::Failed => "bad",
        JobState::Queued | JobState::Paused => "watch",
        JobState::Cancelled => "off",
    }
}

/// Writes a number with its noun.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", crate::dashboard::words::count(count), if count == 1 { one } else { many })
}

/// Writes a pace without needless digits: 125, 0.5.
pub fn pace(per_second: f64) -> String {
    if per_second >= 10.0 || per_second.fract() == 0.0 {
        crate::dashboard::words::count(per_second.round() as i64)
    } else {
        format!("{per_second:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_state_has_words() {
        for kind in JobKind::ALL {
            assert_eq!((kind_of(kind.as_str()), kind_verb(*kind).to_lowercase()), (*kind, kind.as_str().to_owned()));
        }
        let marks: Vec<&str> = JobState::ALL.iter().map(|state| job_mark(*state)).collect();
        assert_eq!(marks, ["calm", "watch", "good", "off", "watch", "bad"]);
        assert_eq!(
            (pace(125.0), pace(0.5), pace(2.25), pace(1_250.4)),
            ("125".into(), "0.5".into(), "2.25".into(), "1,250".into())
        );
        assert_eq!(
            (counted(1, "lane", "lanes"), counted(1_204, "lane", "lanes")),
            ("1 lane".into(), "1,204 lanes".into())
        );
    }
}
