//! Counts what a job is going to take, as far as that is known without a look at each
//! delivery.

use std::collections::HashMap;

use crate::lifecycle::Gateway;
use crate::model::dead_letter_group::{DeadLetterGroup, DeadLetterSpan, GroupBy, GroupField, GroupFilter};
use crate::model::delivery::{DeadCause, DeliveryState, time_after};
use crate::model::id::{EndpointId, TenantId};
use crate::model::job::{Job, JobFilter};
use crate::model::job_filter::GroupTaken;
use crate::store::Result;

/// Most dead letters that are counted one by one in the index, for groups that the
/// filter's times cut.
const COUNTED_MAX: usize = 100_000;

/// A number of deliveries that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TallyCount {
    /// How many they are.
    pub count: u64,
    /// Whether there are no more.
    pub is_whole: bool,
}

/// The deliveries that a job matches, counted by endpoint.
pub struct MatchTally {
    /// Dead letters by endpoint; nothing where only a look can tell.
    dead: Option<HashMap<EndpointId, Option<TallyCount>>>,
    /// Whether it takes all that wait for an endpoint.
    is_all_waiting: bool,
}

impl MatchTally {
    /// Counts for a job. Its filter's times are engine time.
    pub async fn read(gateway: &Gateway, job: &Job, filter: &JobFilter) -> Result<Self> {
        let is_for_all = JobFilter { endpoints: Vec::new(), ..filter.clone() }.is_empty();
        let is_all_waiting =
            job.spec.delivery_state() == DeliveryState::Waiting && job.spec.kind.changes_deliveries() && is_for_all;
        // Those that are named are looked at one by one, also the ones in another state.
        if job.spec.delivery_state() != DeliveryState::Dead || !filter.ids.is_empty() {
            return Ok(Self { dead: None, is_all_waiting });
        }
        let fields = [GroupField::Tenant, GroupField::Endpoint, GroupField::Cause, GroupField::Status, GroupField::Day];
        let ask = GroupFilter { by: Some(GroupBy::of(&fields)), cause: filter.cause, ..GroupFilter::default() };
        let groups = gateway.store.dead_letter_groups(only_tenant(job), ask, usize::MAX).await?;
        let (mut dead, mut left) = (HashMap::new(), COUNTED_MAX);
        for group in &groups.data {
            let Some(endpoint) = group.endpoint else { continue };
            // A replay leaves these out, as it finds when it looks at them.
            if job.spec.kind.sends_again() && group.cause.and_then(DeadCause::replay_refusal).is_some() {
                continue;
            }
            let known = dead.entry(endpoint).or_insert(Some(TallyCount { count: 0, is_whole: true }));
            let more = match filter.takes_group(group) {
                GroupTaken::All => Some(TallyCount { count: group.count, is_whole: true }),
                GroupTaken::Nothing => continue,
                GroupTaken::Some => Some(count_in_time(gateway, filter, group, &mut left).await?),
                GroupTaken::Unknown => None,
            };
            *known = known.zip(more).map(|(known, more)| TallyCount {
                count: known.count + more.count,
                is_whole: known.is_whole && more.is_whole,
            });
        }
        Ok(Self { dead: Some(dead), is_all_waiting })
    }

    /// Returns how many deliveries of an endpoint match, if that is known. Some of them
    /// may stay for a reason that only a look can find.
    pub fn count(&self, gateway: &Gateway, endpoint: EndpointId) -> Option<TallyCount> {
        if self.is_all_waiting {
            // It changes all the time, but for an endpoint of which nothing waits.
            return gateway.store.waiting(Some(endpoint)).map(|count| TallyCount { count, is_whole: count == 0 });
        }
        let none = Some(TallyCount { count: 0, is_whole: true });
        self.dead.as_ref().and_then(|dead| dead.get(&endpoint).copied().unwrap_or(none))
    }
}

/// Counts the dead letters of a group that died in the filter's time, as long as there
/// are `left` to count.
async fn count_in_time(
    gateway: &Gateway,
    filter: &JobFilter,
    group: &DeadLetterGroup,
    left: &mut usize,
) -> Result<TallyCount> {
    let of = (group.tenant.clone(), group.endpoint, group.cause);
    let (Some(tenant), Some(endpoint), Some(cause)) = of else {
        return Ok(TallyCount { count: 0, is_whole: false });
    };
    let end = time_after(group.newest_at, std::time::Duration::from_millis(1));
    let since = filter.finished_since.map_or(group.oldest_at, |since| since.max(group.oldest_at));
    let until = filter.finished_until.map_or(end, |until| until.min(end));
    let span = DeadLetterSpan { tenant, endpoint, cause, answer: group.answer.clone(), since, until };
    let count = gateway.store.count_dead_letters(span, *left).await?;
    let is_whole = count < *left as u64;
    *left = left.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
    Ok(TallyCount { count, is_whole })
}

/// Returns the tenant of a job, or nothing if it is over all of them.
fn only_tenant(job: &Job) -> Option<&TenantId> {
    let is_own = job.parts.iter().all(|part| part.tenant == job.tenant);
    is_own.then_some(&job.tenant)
}
