//! Says why a request with an event is refused.

use super::problem::Problem;
use crate::lifecycle::accept::AcceptRefusal;

/// Why a request with an event is refused.
pub enum EventRefusal {
    /// The request is at fault.
    Request(Problem),
    /// The event is not accepted.
    Accept(AcceptRefusal),
}

impl From<Problem> for EventRefusal {
    fn from(problem: Problem) -> Self {
        Self::Request(problem)
    }
}

impl From<AcceptRefusal> for EventRefusal {
    fn from(refusal: AcceptRefusal) -> Self {
        Self::Accept(refusal)
    }
}

impl From<EventRefusal> for Problem {
    fn from(refusal: EventRefusal) -> Self {
        match refusal {
            EventRefusal::Request(problem) => problem,
            EventRefusal::Accept(refusal) => refusal.into(),
        }
    }
}
