//! How fast a job goes at an endpoint.

use std::time::Duration;

use jiff::Timestamp;

use super::candidates::LOOK;
use crate::model::delivery::{time_after, time_between};
use crate::model::endpoint::Endpoint;
use crate::model::job::{JobSpec, MeasuredPace};

/// Rest between looks at a part, unless its cap keeps it from going on.
pub const BUSY_REST: Duration = Duration::from_millis(100);
/// Rest after a step that waits for nothing: it only looked, or it calls nobody.
pub const STEP_REST: Duration = Duration::from_millis(5);
/// Shortest rest of a part whose cap keeps it from going on while deliveries end.
const AT_CAP_REST_MIN: Duration = Duration::from_millis(10);
/// Longest rest after a step that failed: the store may be full, or away, for long.
const ERROR_REST: Duration = Duration::from_secs(1);
/// Time in which a delivery that has ended makes room for the next: the shortest rest,
/// and as much for the step, which reads and commits. Steps of many endpoints follow one
/// another, so that each of those gets its turn later.
const FOLLOWED_IN: Duration = Duration::from_millis(20);
/// Fewest deliveries that a step reads.
const LOOK_MIN: usize = 32;
/// Most deliveries that one step changes, so that no commit is long.
pub const STEP_MAX: usize = 100;
/// Most deliveries that a part follows beside those that may be in flight: they wait
/// behind others in their lanes or have failed again and wait for their next attempt, and
/// must not keep others waiting.
pub const LATER_MAX: usize = 1_000;

/// Shortest time over which the pace is measured.
const MEASURED_MIN_MS: u64 = 10_000;

/// The pace of a part: how many deliveries it may take, and since when; and how many
/// have ended.
#[derive(Debug, Clone, Copy)]
pub struct PartPace {
    allowance: f64,
    at: Timestamp,
    /// Time since when those are counted that have ended.
    measured_since: Timestamp,
    ended: u64,
    /// Deliveries that the next step reads.
    look: usize,
    /// Rest before the next step.
    rest: Duration,
    /// Time of the next step, or of one soon after it.
    step_at: Timestamp,
    /// Whether the last step failed.
    is_interrupted: bool,
}

/// What all sending jobs of this node together may release, while its processors are
/// overloaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodePace {
    /// What is left and at which time, while there is a limit.
    allowance: Option<(f64, Timestamp)>,
}

impl NodePace {
    /// Takes the limit of deliveries per second that is in force now.
    pub fn limit(&mut self, per_second: Option<f64>, now: Timestamp) {
        self.allowance = per_second.map(|per_second| {
            let (left, at) = self.allowance.unwrap_or((0.0, now));
            let seconds = (now.as_millisecond() - at.as_millisecond()).max(0) as f64 / 1e3;
            // At most a tenth of a second's worth is saved up.
            ((left + seconds * per_second).min(per_second / 10.0), now)
        });
    }

    /// Whether there is a limit now.
    pub fn is_limited(&self) -> bool {
        self.allowance.is_some()
    }

    /// Returns how many deliveries may be released now.
    pub fn room(&self) -> usize {
        self.allowance.map_or(usize::MAX, |(left, _)| left.max(0.0) as usize)
    }

    /// Notes that this number of deliveries was released.
    pub fn take(&mut self, count: usize) {
        if let Some((left, _)) = &mut self.allowance {
            *left -= count as f64;
        }
    }
}

/// How many deliveries a step may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRoom {
    /// Most deliveries of this step.
    pub most: usize,
    /// Whether the next step may take more at once.
    pub has_more: bool,
    /// Whether the rate would allow more than the cap does.
    pub is_at_cap: bool,
}

impl PartPace {
    /// Returns the pace of a part that begins now.
    pub fn new(now: Timestamp) -> Self {
        let (look, rest, step_at) = (LOOK_MIN, BUSY_REST, now);
        Self { allowance: 1.0, at: now, measured_since: now, ended: 0, look, rest, step_at, is_interrupted: false }
    }

    /// Returns how many deliveries may be taken now, by how many of the part's may be in
    /// flight and how many more wait for longer.
    pub fn room(
        &mut self,
        spec: &JobSpec,
        endpoint: Option<&Endpoint>,
        (may_go, later): (usize, usize),
        now: Timestamp,
    ) -> StepRoom {
        let Some(endpoint) = endpoint.filter(|_| spec.kind.is_sending()) else {
            return StepRoom { most: STEP_MAX, has_more: true, is_at_cap: false };
        };
        let per_second = per_second(spec, endpoint);
        let seconds = (now.as_millisecond() - self.at.as_millisecond()).max(0) as f64 / 1e3;
        // At most a second's worth is saved up.
        self.allowance = (self.allowance + seconds * per_second).min(per_second.max(1.0));
        self.at = now;
        let allowed = self.allowance.max(0.0) as usize;
        let room = (endpoint.max_in_flight() as usize).saturating_sub(may_go);
        let most = allowed.min(room).min(LATER_MAX.saturating_sub(later));
        StepRoom { most: most.min(STEP_MAX), has_more: most > STEP_MAX, is_at_cap: allowed > room }
    }

    /// Returns what is left of the rest before the next step, if it is not over.
    pub fn resting(&self, now: Timestamp) -> Option<Duration> {
        (now < self.step_at).then(|| time_between(now, self.step_at).max(STEP_REST))
    }

    /// Lets the next step be made almost at once; returns the rest before it.
    pub fn go_on(&mut self, now: Timestamp) -> Duration {
        self.step_at = now;
        STEP_REST
    }

    /// Adapts the rest before the next step, and returns it. It becomes shorter while only
    /// the cap keeps the next delivery from being released, and over a fifth of those that
    /// were followed have ended since the last look; and longer otherwise, since each look
    /// reads them all.
    pub fn rest(&mut self, is_at_cap: bool, (ended, still): (usize, usize), now: Timestamp) -> Duration {
        self.rest = if is_at_cap && 4 * ended > still {
            (self.rest / 2).max(AT_CAP_REST_MIN)
        } else {
            (self.rest * 2).min(BUSY_REST)
        };
        // Whoever rests that long may come a tenth early.
        self.step_at = time_after(now, self.rest.mul_f64(0.9));
        self.rest
    }

    /// Notes that a step failed, after which the next waits for longer. Returns whether
    /// somebody should be told: not again before a step was written.
    pub fn interrupt(&mut self, now: Timestamp) -> bool {
        self.step_at = time_after(now, ERROR_REST);
        !std::mem::replace(&mut self.is_interrupted, true)
    }

    /// Notes that a step was written.
    pub fn succeed(&mut self) {
        self.is_interrupted = false;
    }

    /// Returns how many deliveries a step reads.
    pub fn look(&self) -> usize {
        self.look
    }

    /// Adapts how many deliveries the next step reads: those of a step that takes ten are
    /// not worth five hundred rows, and a filter that few pass is not worth many steps.
    pub fn adapt_look(&mut self, has_used_all: bool, most: usize) {
        self.look = if has_used_all { self.look * 2 } else { 2 * most }.clamp(LOOK_MIN, LOOK);
    }

    /// Counts deliveries that have ended. Returns the pace when it was measured for long
    /// enough, and measures anew.
    pub fn measure(&mut self, ended: usize, now: Timestamp) -> Option<MeasuredPace> {
        self.ended += ended as u64;
        let in_ms = (now.as_millisecond() - self.measured_since.as_millisecond()).max(0).unsigned_abs();
        // What is measured is stored with a step, and one in which nothing ended may be none.
        if ended == 0 || in_ms < MEASURED_MIN_MS {
            // While nothing ends, as at a paused endpoint, no pace is measured.
            if self.ended == 0 && in_ms >= MEASURED_MIN_MS {
                self.measured_since = now;
            }
            return None;
        }
        let measured = MeasuredPace { ended: self.ended, in_ms };
        (self.measured_since, self.ended) = (now, 0);
        Some(measured)
    }

    /// Notes that this number of deliveries was taken.
    pub fn take(&mut self, count: usize) {
        self.allowance -= count as f64;
    }
}

/// Returns how many deliveries a job releases per second at an endpoint: a quarter of
/// its rate, unless the job says otherwise.
pub fn per_second(spec: &JobSpec, endpoint: &Endpoint) -> f64 {
    spec.per_second.unwrap_or(endpoint.rate().per_second / 4.0).min(endpoint.rate().per_second)
}

/// Returns the pace that a job reaches at an endpoint whose receiver takes so long to
/// answer: at most `max_in_flight` are under way, and each is seen to end a moment later.
pub fn reached_per_second(spec: &JobSpec, endpoint: &Endpoint, answers_in: Duration) -> f64 {
    let most = f64::from(endpoint.max_in_flight()) / answers_in.max(FOLLOWED_IN).as_secs_f64();
    per_second(spec, endpoint).min(most)
}

/// Returns how long `count` deliveries take to a receiver that answers in `answers_in`.
/// Those `in_one_lane` go one after the other.
pub fn expected_time(
    spec: &JobSpec,
    endpoint: &Endpoint,
    (count, in_one_lane): (u64, u64),
    answers_in: Duration,
) -> Duration {
    let by_pace = Duration::from_secs_f64(count as f64 / reached_per_second(spec, endpoint, answers_in));
    by_pace.max(answers_in.max(FOLLOWED_IN).saturating_mul(u32::try_from(in_one_lane).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::endpoint::{EndpointSettings, EndpointStatus};
    use crate::model::health::EndpointHealth;
    use crate::model::id::EndpointId;
    use crate::model::job::{JobFilter, JobKind};
    use crate::model::url_versions::UrlVersions;

    fn endpoint() -> Endpoint {
        let at = Timestamp::UNIX_EPOCH;
        let settings: EndpointSettings = serde_json::from_str(
            r#"{"url":"https://a.example/","max_in_flight":10,"rate":{"per_second":400,"burst":1}}"#,
        )
        .unwrap();
        Endpoint {
            id: EndpointId::mint(at, 1),
            tenant: "acme".parse().unwrap(),
            urls: UrlVersions::first(&settings.url),
            ceiling: Default::default(),
            policy: settings.check().unwrap(),
            settings,
            status: EndpointStatus::active(at),
            backpressure_until: None,
            health: EndpointHealth::default(),
            mailed_at: None,
            secrets: Vec::new(),
            created_at: at,
            updated_at: at,
        }
    }

    #[test]
    fn an_overloaded_node_releases_no_more_than_its_limit_over_all_jobs() {
        let at = |ms: i64| Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap();
        let mut pace = NodePace::default();
        pace.limit(None, at(0));
        assert_eq!(pace.room(), usize::MAX);
        pace.limit(Some(500.0), at(0));
        assert_eq!(pace.room(), 0);
        pace.limit(Some(500.0), at(60));
        assert_eq!(pace.room(), 30);
        pace.take(25);
        assert_eq!(pace.room(), 5);
        pace.limit(Some(500.0), at(10_000));
        assert_eq!(pace.room(), 50, "what was not used is not saved up");
        pace.limit(None, at(10_000));
        assert_eq!(pace.room(), usize::MAX);
    }

    #[test]
    fn a_step_reads_about_as_many_as_it_has_use_for() {
        let mut pace = PartPace::new(Timestamp::UNIX_EPOCH);
        let after = |pace: &mut PartPace, has_used_all, most| {
            pace.adapt_look(has_used_all, most);
            pace.look()
        };
        assert_eq!([true, true, true].map(|all| after(&mut pace, all, 10)), [64, 128, 256]);
        assert_eq!([true, true].map(|all| after(&mut pace, all, 10)), [500, 500], "a filter that few pass");
        assert_eq!(after(&mut pace, false, 100), 200);
        assert_eq!(after(&mut pace, false, 3), 32);
    }

    #[test]
    fn a_part_is_looked_at_more_often_only_while_its_cap_holds_it_back_and_deliveries_end() {
        let at = |ms: i64| Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap();
        let mut pace = PartPace::new(at(0));
        assert_eq!(pace.resting(at(0)), None, "it begins at once");
        let rests = |pace: &mut PartPace, looks: &[(bool, (usize, usize))]| {
            let mut rest = |(is_at_cap, followed): &(bool, (usize, usize))| pace.rest(*is_at_cap, *followed, at(0));
            looks.iter().map(|look| rest(look).as_millis()).collect::<Vec<_>>()
        };
        let fast = [(true, (10, 0)); 5];
        assert_eq!(rests(&mut pace, &fast), [50, 25, 12, 10, 10]);
        assert_eq!((pace.resting(at(8)), pace.resting(at(9))), (Some(STEP_REST), None));
        assert_eq!(rests(&mut pace, &[(true, (2, 8)); 4]), [20, 40, 80, 100], "few end");
        rests(&mut pace, &fast);
        assert_eq!(rests(&mut pace, &[(false, (10, 0)); 4]), [20, 40, 80, 100], "the rate holds it back");
        assert_eq!((pace.resting(at(89)), pace.resting(at(90))), (Some(STEP_REST), None));
        pace.go_on(at(50));
        assert_eq!(pace.resting(at(50)), None);
    }

    #[test]
    fn a_receiver_that_answers_at_once_gets_fifty_times_the_cap_while_a_step_takes_ten_milliseconds() {
        let at = |ms: u64| Timestamp::from_millisecond(1_700_000_000_000 + ms.cast_signed()).unwrap();
        let (kind, filter, per_second) = (JobKind::Replay, JobFilter::default(), Some(5_000.0));
        let (not_older_than, even_overtaken) = (None, false);
        let spec = JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note: None, by: "admin".into() };
        let mut fast = endpoint();
        fast.settings.rate.per_second = 5_000.0;
        let (mut pace, mut ms, mut open, mut sent) = (PartPace::new(at(0)), 0, 0, 0);
        while ms < 10_000 {
            let room = pace.room(&spec, Some(&fast), (0, 0), at(ms));
            let rest = pace.rest(room.is_at_cap, (open, 0), at(ms));
            pace.take(room.most);
            (open, sent) = (room.most, sent + room.most);
            ms += 10 + rest.as_millis() as u64;
        }
        assert!((4_800..=5_010).contains(&sent), "{sent} in ten seconds");
    }

    #[test]
    fn a_failure_is_told_once_until_a_step_is_written_and_the_next_comes_a_second_later() {
        let at = |ms: i64| Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap();
        let mut pace = PartPace::new(at(0));
        assert!(pace.interrupt(at(0)));
        assert_eq!((pace.resting(at(900)), pace.resting(at(1_000))), (Some(Duration::from_millis(100)), None));
        assert!(!pace.interrupt(at(1_000)), "it is known");
        pace.succeed();
        assert!(pace.interrupt(at(3_000)), "this is another one");
    }

    #[test]
    fn the_pace_is_measured_over_ten_seconds_and_then_anew() {
        let at = |seconds: i64| Timestamp::from_second(1_700_000_000 + seconds).unwrap();
        let mut pace = PartPace::new(at(0));
        assert_eq!(pace.measure(0, at(60)), None, "nothing has ended, so nothing is known");
        let mut pace = PartPace::new(at(0));
        assert_eq!((pace.measure(30, at(1)), pace.measure(30, at(9))), (None, None));
        let measured = pace.measure(20, at(20)).unwrap();
        assert_eq!((measured.ended, measured.in_ms), (80, 20_000));
        assert_eq!(measured.time_for(400), Duration::from_secs(100));
        assert_eq!(pace.measure(5, at(25)), None, "measured anew");
        let mut held = PartPace::new(at(0));
        assert_eq!(held.measure(0, at(3_600)), None, "an hour in which the endpoint was paused");
        let measured = held.measure(100, at(3_610)).unwrap();
        assert_eq!(measured.time_for(100), Duration::from_secs(10));
    }

    #[test]
    fn a_job_takes_as_long_as_the_rate_the_cap_or_the_fullest_lane_needs() {
        let (kind, filter) = (JobKind::Replay, JobFilter::default());
        let (per_second, not_older_than, even_overtaken) = (None, None, false);
        let spec = JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note: None, by: "admin".into() };
        let seconds = |counts, answers_in_ms| {
            expected_time(&spec, &endpoint(), counts, Duration::from_millis(answers_in_ms)).as_secs_f64()
        };
        // A quarter of the rate is 100 a second.
        assert_eq!(seconds((1_000, 1), 0), 10.0);
        assert_eq!(seconds((1_000, 1), 100), 10.0);
        // Ten at once, each for two seconds, are five a second.
        assert_eq!(seconds((1_000, 1), 2_000), 200.0);
        // One after the other.
        assert_eq!(seconds((1_000, 500), 2_000), 1_000.0);
        assert_eq!(seconds((1_000, 600), 0), 12.0);
        // A person may ask for more than a quarter of the rate; the cap then allows 500 a second.
        let mut fast = endpoint();
        fast.settings.rate.per_second = 5_000.0;
        let asked = JobSpec { per_second: Some(5_000.0), ..spec.clone() };
        assert_eq!(reached_per_second(&asked, &fast, Duration::from_millis(1)), 500.0);
    }
}
