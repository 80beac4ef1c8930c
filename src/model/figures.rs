//! Figures: how many of what happened at an endpoint in a window of five minutes.
//!
//! They are counted when it happens, and never by reading history. Sums of
//! tenants and of the gateway, and hours and days, are figures of the same kind.
//!
//! Invariant: adding figures is associative, and an encoded value decodes to
//! itself or to an error.

use super::delivery::DeadCause;
use super::failed_statuses::FailedStatuses;
use super::figure_codec::{DecodeError, decode_slots, encode_slots};
use super::named_enum::NamedEnum;
use super::result_class::ResultClass;
use super::verdict::Verdict;

/// Upper bounds of the latency of attempts, in milliseconds.
pub const LATENCY_MS: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000];
/// Upper bounds of the time from acceptance to delivery, in milliseconds. The
/// service-level goal of ten minutes is the bound 600,000.
pub const TIME_TO_DELIVER_MS: [u64; 12] =
    [50, 100, 250, 500, 1_000, 5_000, 30_000, 60_000, 300_000, 600_000, 3_600_000, 86_400_000];
/// Upper bounds of the number of attempts that a delivery took.
pub const ATTEMPTS: [u64; 9] = [1, 2, 3, 5, 8, 13, 20, 50, 120];
/// Time within which a delivery must succeed to meet the service-level goal.
pub const SLO_WITHIN_MS: u64 = 600_000;

/// Place of the first status in the encoding; the others follow it.
const STATUS_SLOTS: u32 = 1_024;

/// How often something happened in each range of values; the last place counts
/// what is above all bounds.
pub type Buckets<const N: usize> = [u64; N];

/// What happened at one endpoint in one window, or the sum of such figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowFigures {
    /// Events accepted: for an endpoint, those that it was to get.
    pub accepted: u64,
    /// Size of the data of these events.
    pub accepted_bytes: u64,
    /// Attempts by verdict, in the order of [`Verdict`].
    pub by_verdict: [u64; Verdict::ALL.len()],
    /// Attempts by what came back, in the order of [`ResultClass`].
    pub by_result: [u64; ResultClass::COUNT],
    /// First attempts of deliveries.
    pub first: EarlyAttempts,
    /// Second attempts of deliveries.
    pub second: EarlyAttempts,
    /// Deliveries that were delivered.
    pub delivered: u64,
    /// Deliveries that a person cancelled.
    pub cancelled: u64,
    /// Deliveries that died, by cause, in the order of [`DeadCause`].
    pub dead: [u64; DeadCause::ALL.len()],
    /// Attempts that deliveries took until they were delivered; see [`ATTEMPTS`].
    pub attempts_to_success: Buckets<{ ATTEMPTS.len() + 1 }>,
    /// Sum of these numbers of attempts.
    pub attempts_to_success_sum: u64,
    /// Duration of attempts; see [`LATENCY_MS`].
    pub latency: Buckets<{ LATENCY_MS.len() + 1 }>,
    /// Sum of these durations, in milliseconds.
    pub latency_sum_ms: u64,
    /// Time from acceptance to delivery, replays and backfills left out; see
    /// [`TIME_TO_DELIVER_MS`].
    pub time_to_deliver: Buckets<{ TIME_TO_DELIVER_MS.len() + 1 }>,
    /// Sum of these times, in milliseconds.
    pub time_to_deliver_sum_ms: u64,
    /// Time from acceptance to the start of the first attempt, replays and
    /// backfills left out; see [`TIME_TO_DELIVER_MS`].
    pub first_delay: Buckets<{ TIME_TO_DELIVER_MS.len() + 1 }>,
    /// Failed attempts by exact status.
    pub statuses: FailedStatuses,
    /// Deliveries that met or missed the service-level goal.
    pub slo: SloCounts,
    /// Milliseconds for which something due was held back.
    pub held_ms: HeldMs,
    /// Deliveries that waited when the window was closed.
    pub waiting: u64,
    /// For how long the oldest due delivery that could go had not gone when the
    /// window was closed, in milliseconds.
    pub oldest_due_ms: u64,
}

/// First or second attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EarlyAttempts {
    /// Number of attempts made.
    pub n: u64,
    /// Number of those that delivered.
    pub delivered: u64,
}

/// Finished deliveries that the service-level goal speaks of: replays, backfills,
/// self-tests, cancelled ones and those that the receiver refused are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SloCounts {
    /// Delivered within [`SLO_WITHIN_MS`].
    pub good: u64,
    /// Deliveries that ended and count in the goal.
    pub total: u64,
}

/// How long deliveries that were due were held back, in milliseconds, by what
/// held them. For a sum it is the sum over its endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldMs {
    /// Held by the endpoint's breaker.
    pub breaker: u64,
    /// Held because the endpoint was paused or disabled.
    pub pause: u64,
    /// Held because the receiver asked for no requests for a while.
    pub backpressure: u64,
    /// Held by the rate of the endpoint or its tenant.
    pub rate: u64,
}

/// An attempt, as far as it is counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CountedAttempt {
    /// Meaning of the answer.
    pub verdict: Verdict,
    /// What came back.
    pub result: ResultClass,
    /// Duration of the attempt, in milliseconds.
    pub latency_ms: f64,
    /// Number of attempts of the present budget, this one included.
    pub used: u32,
    /// Status that came back, if one did.
    pub status: Option<u16>,
    /// Time from acceptance to its start in milliseconds, if it is the first
    /// attempt of a delivery that the service-level goal speaks of.
    pub delay_ms: Option<u64>,
}

/// The end of a delivery, as far as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedEnd {
    /// The delivery was delivered.
    Delivered {
        /// Number of attempts of the present budget.
        used: u32,
        /// Time since the acceptance of the event, in milliseconds.
        took_ms: u64,
        /// Whether the service-level goal speaks of the delivery.
        is_in_slo: bool,
    },
    /// The delivery died.
    Dead {
        /// Cause of the death.
        cause: DeadCause,
        /// Whether the service-level goal speaks of the delivery.
        is_in_slo: bool,
    },
}

/// A settlement, as far as it is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CountedSettlement {
    /// The attempt, if one was made.
    pub attempt: Option<CountedAttempt>,
    /// The end that it led to, if it did.
    pub end: Option<CountedEnd>,
}

/// Counting what happened.
impl WindowFigures {
    /// Counts an attempt.
    pub fn count_attempt(&mut self, attempt: &CountedAttempt) {
        self.by_verdict[attempt.verdict as usize] += 1;
        self.by_result[attempt.result.index()] += 1;
        let early = match attempt.used {
            1 => Some(&mut self.first),
            2 => Some(&mut self.second),
            _ => None,
        };
        if let Some(early) = early {
            early.n += 1;
            early.delivered += u64::from(attempt.verdict == Verdict::Delivered);
        }
        if let Some(delay_ms) = attempt.delay_ms {
            self.first_delay[bucket(&TIME_TO_DELIVER_MS, delay_ms)] += 1;
        }
        if let Some(status) = attempt.status.filter(|_| attempt.verdict != Verdict::Delivered) {
            self.statuses.count(status);
        }
        // Rounded up, as a bound holds what took at most as long.
        let latency_ms = attempt.latency_ms.max(0.0).ceil() as u64;
        self.latency[bucket(&LATENCY_MS, latency_ms)] += 1;
        self.latency_sum_ms += attempt.latency_ms.max(0.0).round() as u64;
    }

    /// Counts the end of a delivery.
    pub fn count_end(&mut self, end: &CountedEnd) {
        match *end {
            CountedEnd::Delivered { used, took_ms, is_in_slo } => {
                self.delivered += 1;
                self.attempts_to_success[bucket(&ATTEMPTS, used.into())] += 1;
                self.attempts_to_success_sum += u64::from(used);
                if is_in_slo {
                    self.time_to_deliver[bucket(&TIME_TO_DELIVER_MS, took_ms)] += 1;
                    self.time_to_deliver_sum_ms += took_ms;
                    self.slo.total += 1;
                    self.slo.good += u64::from(took_ms <= SLO_WITHIN_MS);
                }
            }
            CountedEnd::Dead { cause, is_in_slo } => {
                self.dead[cause as usize] += 1;
                self.slo.total += u64::from(is_in_slo && !cause.is_refused_by_receiver());
            }
        }
    }
}

fn bucket(bounds: &[u64], value: u64) -> usize {
    bounds.partition_point(|bound| *bound < value)
}

/// Sums of figures.
impl WindowFigures {
    /// Returns how many attempts were made that did not deliver.
    pub fn failed_attempts(&self) -> u64 {
        let all: u64 = self.by_verdict.iter().sum();
        all - self.by_verdict[Verdict::Delivered as usize]
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the sum with the figures of another endpoint or another counter in
    /// the same window.
    #[must_use]
    pub fn merged_with(mut self, other: &Self) -> Self {
        let oldest_due_ms = self.oldest_due_ms.max(other.oldest_due_ms);
        self.add_slots(other);
        self.oldest_due_ms = oldest_due_ms;
        self
    }

    /// Returns the sum with the figures of a later window. What was measured at
    /// the close is that of the later one.
    #[must_use]
    pub fn followed_by(mut self, later: &Self) -> Self {
        self.add_slots(later);
        (self.waiting, self.oldest_due_ms) = (later.waiting, later.oldest_due_ms);
        self
    }

    fn add_slots(&mut self, other: &Self) {
        // The places of both are the same, as they are of one type.
        let mut other = other.clone();
        for (own, other) in self.slots_mut().zip(other.slots_mut()) {
            *own.1 = own.1.saturating_add(*other.1);
        }
        self.statuses.add(&other.statuses);
    }
}

/// Encoding of figures.
impl WindowFigures {
    /// Returns the figures as bytes: a version, and what is not zero.
    pub fn encode(&self) -> Vec<u8> {
        let mut own = self.clone();
        let statuses =
            self.statuses.iter().map(|(status, count)| (STATUS_SLOTS + u32::from(status.unwrap_or(0)), count));
        encode_slots(own.slots_mut().map(|(slot, value)| (slot, *value)).chain(statuses))
    }

    /// Reads figures from bytes.
    ///
    /// # Errors
    /// If they were written by a newer version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut figures = Self::default();
        let read = decode_slots(bytes)?;
        let (numbers, statuses): (Vec<_>, Vec<_>) = read.into_iter().partition(|(slot, _)| *slot < STATUS_SLOTS);
        let mut places = figures.slots_mut();
        for (slot, value) in numbers {
            // Both are in rising order.
            let place = places.find(|(known, _)| *known == slot);
            *place.ok_or(DecodeError::UnknownSlot(slot))?.1 = value;
        }
        drop(places);
        for (slot, count) in statuses {
            let status = u16::try_from(slot - STATUS_SLOTS).ok().filter(|status| *status < 1_000);
            figures.statuses.set(status.ok_or(DecodeError::UnknownSlot(slot))?, count);
        }
        Ok(figures)
    }

    /// Returns every number with its place in the encoding, in rising order.
    /// Places are never given to something else; each group has room to grow.
    fn slots_mut(&mut self) -> impl Iterator<Item = (u32, &mut u64)> {
        let Self { first, second, slo, held_ms, .. } = self;
        let accepted = [&mut self.accepted, &mut self.accepted_bytes];
        let early = [&mut first.n, &mut first.delivered, &mut second.n, &mut second.delivered];
        let ended = [&mut self.delivered, &mut self.cancelled];
        let sums = [&mut self.attempts_to_success_sum, &mut self.latency_sum_ms, &mut self.time_to_deliver_sum_ms];
        let slo = [&mut slo.good, &mut slo.total];
        let held = [&mut held_ms.breaker, &mut held_ms.pause, &mut held_ms.backpressure, &mut held_ms.rate];
        let at_close = [&mut self.waiting, &mut self.oldest_due_ms];
        from(0, accepted)
            .chain(from(8, &mut self.by_verdict))
            .chain(from(16, early))
            .chain(from(24, ended))
            .chain(from(32, sums))
            .chain(from(40, slo))
            .chain(from(48, held))
            .chain(from(56, at_close))
            .chain(from(64, &mut self.by_result))
            .chain(from(96, &mut self.dead))
            .chain(from(128, &mut self.attempts_to_success))
            .chain(from(160, &mut self.latency))
            .chain(from(192, &mut self.time_to_deliver))
            .chain(from(224, &mut self.first_delay))
    }
}

fn from<'a>(first: u32, values: impl IntoIterator<Item = &'a mut u64>) -> impl Iterator<Item = (u32, &'a mut u64)> {
    (first..).zip(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any figures: each number is zero, small or as large as it goes.
    fn figures() -> impl Strategy<Value = WindowFigures> {
        let number = prop_oneof![5 => Just(0), 3 => 1_u64..300, 1 => 0..u64::MAX / 4];
        prop::collection::vec(number, 160).prop_map(|numbers| {
            let mut figures = WindowFigures::default();
            for ((_, place), number) in figures.slots_mut().zip(&numbers) {
                *place = *number;
            }
            for (status, number) in (400..).zip(&numbers[..8]).filter(|(_, number)| **number > 0) {
                figures.statuses.set(status, *number);
            }
            figures
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_encoded_is_read_again(figures in figures()) {
            prop_assert_eq!(WindowFigures::decode(&figures.encode()), Ok(figures));
        }

        #[test]
        fn sums_do_not_depend_on_the_order_of_adding(a in figures(), b in figures(), c in figures()) {
            prop_assert_eq!(a.clone().merged_with(&b).merged_with(&c), a.clone().merged_with(&b.clone().merged_with(&c)));
            prop_assert_eq!(a.clone().merged_with(&b), b.clone().merged_with(&a));
            prop_assert_eq!(a.clone().followed_by(&b).followed_by(&c), a.clone().followed_by(&b.clone().followed_by(&c)));
        }

        #[test]
        fn bytes_that_nobody_wrote_are_refused_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(read) = WindowFigures::decode(&bytes) {
                prop_assert_eq!(WindowFigures::decode(&read.encode()), Ok(read));
            }
        }
    }

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut figures = WindowFigures::default();
        let places: Vec<u32> = figures.slots_mut().map(|(place, _)| place).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        assert_eq!(
            places.len() * 8 + size_of::<FailedStatuses>(),
            size_of::<WindowFigures>(),
            "a number without a place is not stored"
        );
    }

    #[test]
    fn figures_of_a_newer_version_are_refused() {
        let mut bytes = WindowFigures { delivered: 1, ..WindowFigures::default() }.encode();
        bytes[0] += 1;
        assert_eq!(WindowFigures::decode(&bytes), Err(DecodeError::UnknownVersion(2)));
        let unknown_place = encode_slots([(250, 1)].into_iter());
        assert_eq!(WindowFigures::decode(&unknown_place), Err(DecodeError::UnknownSlot(250)));
    }

    fn attempt(verdict: Verdict, used: u32, latency_ms: f64) -> CountedAttempt {
        let (status, delay_ms) = (Some(503), (used == 1).then_some(40));
        CountedAttempt { verdict, result: ResultClass::all().next().unwrap(), latency_ms, used, status, delay_ms }
    }

    #[test]
    fn first_and_second_attempts_are_counted_apart_from_later_ones() {
        let mut figures = WindowFigures::default();
        figures.count_attempt(&attempt(Verdict::Retry, 1, 5.0));
        figures.count_attempt(&attempt(Verdict::Delivered, 2, 5.1));
        figures.count_attempt(&attempt(Verdict::Delivered, 3, 40_000.0));
        assert_eq!(figures.first, EarlyAttempts { n: 1, delivered: 0 });
        assert_eq!(figures.second, EarlyAttempts { n: 1, delivered: 1 });
        assert_eq!(figures.by_verdict, [2, 1, 0, 0]);
        assert_eq!((figures.latency[0], figures.latency[1], figures.latency[12]), (1, 1, 1));
        assert_eq!((figures.first_delay[0], figures.first_delay.iter().sum::<u64>()), (1, 1));
        let statuses: Vec<_> = figures.statuses.iter().collect();
        assert_eq!(statuses, [(Some(503), 1)], "only what failed has its status counted");
    }

    #[test]
    fn the_goal_speaks_of_what_was_delivered_in_time_and_not_of_what_was_refused_or_replayed() {
        let mut figures = WindowFigures::default();
        let delivered = |took_ms, is_in_slo| CountedEnd::Delivered { used: 1, took_ms, is_in_slo };
        let dead = |cause| CountedEnd::Dead { cause, is_in_slo: true };
        for end in [delivered(600_000, true), delivered(600_001, true), delivered(1, false)] {
            figures.count_end(&end);
        }
        for cause in [DeadCause::Refused, DeadCause::Gone, DeadCause::Exhausted] {
            figures.count_end(&dead(cause));
        }
        assert_eq!(figures.slo, SloCounts { good: 1, total: 3 });
        assert_eq!((figures.delivered, figures.dead.iter().sum::<u64>()), (3, 3));
        assert_eq!(figures.time_to_deliver.iter().sum::<u64>(), 2, "a replay says nothing about our speed");
    }
}
