//! The sentences that a page shows after an action. An address names one of them;
//! it cannot bring a text of its own.

/// Returns the sentence with this name, if there is one.
pub fn sentence(name: &str) -> Option<&'static str> {
    let said = match name {
        "retried" => "The delivery is due now.",
        "cancelled" => "The delivery is cancelled. A request that was already open may still succeed.",
        "replayed" => "The delivery waits again, with a fresh budget of attempts.",
        "discarded" => "The dead letter is discarded. Its lane moves on.",
        "paused" => "The endpoint is paused. Its deliveries are held, nothing is dropped.",
        "resumed" => "The endpoint is active again.",
        "tested" => "A test event is on its way.",
        "saved" => "The change is in force.",
        "created" => "Created.",
        "deleted" => "Deleted.",
        "breaker_closed" => "The breaker is closed. Deliveries go out again, a few at first.",
        "breaker_opened" => "The breaker is open. Deliveries are held.",
        "signed_out" => "The session is over on every node.",
        "everybody_signed_out" => "All sessions are over on every node, and open links no longer work.",
        "revoked" => "Revoked. No node accepts it any more.",
        "job_started" => "The job has begun.",
        "job_paused" => "The job is paused.",
        "job_resumed" => "The job goes on.",
        "job_cancelled" => "The job is cancelled. What it has already changed stays changed.",
        "expunged" => "The event's data is expunged, and what waited is cancelled.",
        _ => return None,
    };
    Some(said)
}
