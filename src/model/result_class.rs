//! Classes of what came back of an attempt, as metrics and figures count them.

use super::answer::FailureKind;
use super::attempt::Attempt;
use super::named_enum::NamedEnum;

/// Classes of statuses; the kinds of failure follow them.
const STATUSES: [&str; 6] = ["2xx", "3xx", "4xx", "429", "5xx", "other"];

/// What came back of an attempt: a class of statuses, or a kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultClass(u8);

impl ResultClass {
    /// Number of classes.
    pub const COUNT: usize = STATUSES.len() + FailureKind::ALL.len();

    /// Returns the class of an attempt.
    pub fn of(attempt: &Attempt) -> Self {
        let index = match (attempt.status, &attempt.error) {
            (Some(200..=299), _) => 0,
            (Some(300..=399), _) => 1,
            (Some(429), _) => 3,
            (Some(400..=499), _) => 2,
            (Some(500..=599), _) => 4,
            (None, Some(failure)) => STATUSES.len() + failure.kind as usize,
            (Some(_), _) | (None, None) => 5,
        };
        Self(index as u8)
    }

    /// Returns all classes in their order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|index| Self(index as u8))
    }

    /// Whether no status came back, but a failure.
    pub fn is_failure_kind(self) -> bool {
        self.index() >= STATUSES.len()
    }

    /// Returns the place of the class among all.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the name of the class, as it is written everywhere.
    pub fn name(self) -> &'static str {
        let index = self.index();
        STATUSES.get(index).copied().unwrap_or_else(|| FailureKind::ALL[index - STATUSES.len()].as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_counted_under_its_own_name() {
        let names: Vec<&str> = ResultClass::all().map(ResultClass::name).collect();
        assert_eq!(names[..7], ["2xx", "3xx", "4xx", "429", "5xx", "other", "no_such_name"]);
        assert_eq!(names.last(), Some(&"ours"));
        for kind in FailureKind::ALL {
            assert_eq!(names[STATUSES.len() + *kind as usize], kind.as_str(), "the place of a kind is its number");
        }
    }
}
