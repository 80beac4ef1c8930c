//! How fast a job goes at an endpoint.

use std::time::Duration;

use jiff::Timestamp;

use crate::model::endpoint::Endpoint;
use crate::model::job::JobSpec;

/// Rest between looks while a job runs here.
pub const BUSY_REST: Duration = Duration::from_millis(100);
/// Most deliveries that one step changes, so that no commit is long.
const STEP_MAX: usize = 100;
/// Most deliveries that a part follows beside those that may be in flight: they wait
/// behind others in their lanes, and must not keep other lanes waiting.
const BEHIND_MAX: usize = 1_000;

/// The pace of a part: how many deliveries it may take, and since when.
#[derive(Debug, Clone, Copy)]
pub struct PartPace {
    allowance: f64,
    at: Timestamp,
}

/// How many deliveries a step may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRoom {
    /// Most deliveries of this step.
    pub most: usize,
    /// Whether the next step may take more at once.
    pub has_more: bool,
}

impl PartPace {
    /// Returns the pace of a part that begins now.
    pub fn new(now: Timestamp) -> Self {
        Self { allowance: 1.0, at: now }
    }

    /// Returns how many deliveries may be taken now, while so many of the part's may be
    /// in flight and so many more wait behind others of their lanes.
    pub fn room(
        &mut self,
        spec: &JobSpec,
        endpoint: Option<&Endpoint>,
        (free, behind): (usize, usize),
        now: Timestamp,
    ) -> StepRoom {
        let Some(endpoint) = endpoint.filter(|_| spec.kind.is_sending()) else {
            return StepRoom { most: STEP_MAX, has_more: true };
        };
        let per_second = per_second(spec, endpoint);
        let seconds = (now.as_millisecond() - self.at.as_millisecond()).max(0) as f64 / 1e3;
        // At most a second's worth is saved up.
        self.allowance = (self.allowance + seconds * per_second).min(per_second.max(1.0));
        self.at = now;
        let allowed = self.allowance.max(0.0) as usize;
        let room = (endpoint.max_in_flight() as usize).saturating_sub(free);
        let most = allowed.min(room).min(BEHIND_MAX.saturating_sub(behind));
        StepRoom { most: most.min(STEP_MAX), has_more: most > STEP_MAX }
    }

    /// Notes that so many deliveries were taken.
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
/// answer: at most `max_in_flight` are under way, and are followed up after a rest.
pub fn reached_per_second(spec: &JobSpec, endpoint: &Endpoint, answers_in: Duration) -> f64 {
    let most = f64::from(endpoint.max_in_flight()) / answers_in.max(BUSY_REST).as_secs_f64();
    per_second(spec, endpoint).min(most)
}

/// Returns how long so many deliveries take, of which so many are in one lane and go one
/// after the other, to a receiver that takes so long to answer.
pub fn takes(spec: &JobSpec, endpoint: &Endpoint, (count, in_one_lane): (u64, u64), answers_in: Duration) -> Duration {
    let by_pace = Duration::from_secs_f64(count as f64 / reached_per_second(spec, endpoint, answers_in));
    by_pace.max(answers_in.max(BUSY_REST).saturating_mul(u32::try_from(in_one_lane).unwrap_or(u32::MAX)))
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
            quiet_until: None,
            health: EndpointHealth::default(),
            mailed_at: None,
            secrets: Vec::new(),
            created_at: at,
            updated_at: at,
        }
    }

    #[test]
    fn a_job_takes_as_long_as_the_rate_the_cap_or_the_fullest_lane_needs() {
        let (kind, filter) = (JobKind::Replay, JobFilter::default());
        let (per_second, not_older_than, even_overtaken) = (None, None, false);
        let spec = JobSpec { kind, filter, per_second, not_older_than, even_overtaken, note: None, by: "admin".into() };
        let seconds = |counts, answers_in_ms| {
            takes(&spec, &endpoint(), counts, Duration::from_millis(answers_in_ms)).as_secs_f64()
        };
        // A quarter of the rate is 100 a second.
        assert_eq!(seconds((1_000, 1), 0), 10.0);
        assert_eq!(seconds((1_000, 1), 100), 10.0);
        // Ten at once, each for two seconds, are five a second.
        assert_eq!(seconds((1_000, 1), 2_000), 200.0);
        // One after the other.
        assert_eq!(seconds((1_000, 500), 2_000), 1_000.0);
        assert_eq!(seconds((1_000, 500), 0), 50.0);
    }
}
