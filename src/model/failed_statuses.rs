//! Counts failed attempts by the exact status that came back.
//!
//! Invariant: one endpoint counts a bounded number of statuses in a window,
//! whatever its receiver answers; what is left out is in `OTHER`.

/// Most statuses that are counted each, of one endpoint in one window.
const COUNTED_MAX: usize = 16;
/// Stands for all statuses that are not counted each.
const OTHER: u16 = 0;

/// Failed attempts by status, in rising order of the statuses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailedStatuses(Vec<(u16, u64)>);

impl FailedStatuses {
    /// Counts a failed attempt.
    pub fn count(&mut self, status: u16) {
        let is_known = self.0.iter().any(|(known, _)| *known == status);
        let status = if is_known || self.0.len() < COUNTED_MAX { status } else { OTHER };
        self.add_to(status, 1);
    }

    /// Adds what was counted elsewhere. There are no more than 900 statuses, so
    /// that sums are bounded as well.
    pub fn add(&mut self, other: &Self) {
        for (status, count) in &other.0 {
            self.add_to(*status, *count);
        }
    }

    /// Sets the count of a status, as it was read.
    pub fn set(&mut self, status: u16, count: u64) {
        self.add_to(status, count);
    }

    /// Returns every status and its count; `None` for the others.
    pub fn iter(&self) -> impl Iterator<Item = (Option<u16>, u64)> + '_ {
        self.0.iter().map(|(status, count)| ((*status != OTHER).then_some(*status), *count))
    }

    fn add_to(&mut self, status: u16, more: u64) {
        match self.0.binary_search_by_key(&status, |(known, _)| *known) {
            Ok(place) => self.0[place].1 = self.0[place].1.saturating_add(more),
            Err(place) => self.0.insert(place, (status, more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_that_answers_anything_makes_no_more_than_a_few_counts() {
        let mut statuses = FailedStatuses::default();
        for status in 400..600 {
            statuses.count(status);
        }
        statuses.count(400);
        let counted: Vec<_> = statuses.iter().collect();
        assert_eq!(counted.len(), COUNTED_MAX + 1);
        assert_eq!((counted[0], counted[1]), ((None, 200 - COUNTED_MAX as u64), (Some(400), 2)));
        assert_eq!(counted.iter().map(|(_, count)| count).sum::<u64>(), 201, "every attempt is counted");
    }
}
