//! Reads figures as a series of points.
//!
//! What is written is read from the store, and `complete_until` says up to when
//! nothing is missing. What was counted and is not written yet is in the memory of
//! the node that counted it: each node is asked, and the last minutes are shown as
//! far as nodes answer.

use jiff::Timestamp;

use super::Gateway;
use super::figures::LOOK;
use super::node_questions::figures_of_others;
use super::shared_answers::RecentFigures;
use crate::model::figure_time::{FigureGap, FigureSpan, FigureStep, WINDOW_MS, millis_later, span_beginning};
use crate::model::figures::WindowFigures;
use crate::model::id::{EndpointId, TenantId};
use crate::model::type_figures::TypeFigures;
use crate::store::Result;
use crate::store::figures::{FigureScope, StoredFigures};
use crate::store::plan::figures::sum;

/// Most points of a series.
pub const POINTS_MAX: i64 = 2_016;
/// Most endpoints whose counters are summed under the lock of the queues. Of more
/// only what is written is shown.
const SUMMED_MAX: u64 = 2_000;
/// Milliseconds before the open window in which something may not be written yet:
/// windows that wait longer are dropped. None of these windows is rolled up before they
/// are older.
const RECENT_MS: i64 = 5 * WINDOW_MS;

/// A time in steps: from the beginning of the first step to the end of the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FigureRange {
    /// Beginning of the first step.
    pub from: Timestamp,
    /// End of the last step.
    pub to: Timestamp,
    /// Distance of the points.
    pub step: FigureStep,
}

impl FigureRange {
    /// Returns the whole steps that a time touches.
    pub fn covering(from: Timestamp, to: Timestamp, step: FigureStep) -> Self {
        let from = span_beginning(from, step.millis());
        let end = span_beginning(millis_later(to, step.millis() - 1), step.millis());
        Self { from, to: end.max(millis_later(from, step.millis())), step }
    }

    /// Returns the number of points.
    pub fn points(&self) -> i64 {
        (self.to.as_millisecond() - self.from.as_millisecond()) / self.step.millis()
    }
}

/// The figures of a scope over a time.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureSeries {
    /// Time up to which nothing is missing but for the gaps.
    pub complete_until: Option<Timestamp>,
    /// Times of which figures may be missing.
    pub gaps: Vec<FigureGap>,
    /// Points at which something was counted, oldest first.
    pub points: Vec<(Timestamp, WindowFigures)>,
    /// What happened in the whole time, by event type.
    pub types: TypeFigures,
}

impl FigureSeries {
    /// Returns the sum of all points.
    pub fn sum(&self) -> WindowFigures {
        self.points.iter().fold(WindowFigures::default(), |sum, (_, point)| sum.followed_by(point))
    }
}

/// Reads the figures of a scope.
pub async fn read(gateway: &Gateway, scope: &FigureScope, range: FigureRange) -> Result<FigureSeries> {
    let span = match range.step {
        FigureStep::Window => FigureSpan::Window,
        FigureStep::Hour | FigureStep::Day => FigureSpan::Hour,
    };
    // Before the figures: what is complete by then is among them.
    let coverage = gateway.store.figure_coverage(range.from, gateway.clock.now()).await?;
    let rows = rows_of_all_nodes(gateway, scope, span, (range.from, range.to), coverage.written_until).await?;
    let (points, types) = points(&rows, range.step);
    let gaps = coverage.gaps.into_iter().filter(|gap| gap.from < range.to).collect();
    Ok(FigureSeries { complete_until: coverage.written_until, gaps, points, types })
}

/// Reads the figures of a scope that begin in a time, with those that only their nodes
/// know. All were written up to this time, as far as the reader knows.
pub async fn rows_of_all_nodes(
    gateway: &Gateway,
    scope: &FigureScope,
    span: FigureSpan,
    (from, to): (Timestamp, Timestamp),
    written_until: Option<Timestamp>,
) -> Result<Vec<StoredFigures>> {
    let recent_from = millis_later(span_beginning(gateway.clock.now(), WINDOW_MS), -RECENT_MS);
    if to <= recent_from || gateway.store.nodes() <= 1 {
        return read_rows(gateway, scope, span, from, to).await;
    }
    let shared = gateway.answers.figures(scope);
    // The reader must find all that it takes for complete.
    let is_true = |recent: &RecentFigures| recent.from == recent_from && recent.written_until >= written_until;
    let recent = shared.get(is_true, recent_of_all_nodes(gateway, scope, recent_from, written_until)).await?;
    let mut rows =
        if from < recent_from { gateway.store.figures(scope, span, from, recent_from).await? } else { Vec::new() };
    rows.extend(recent.rows.iter().filter(|row| (from..to).contains(&row.at)).cloned());
    Ok(rows)
}

/// Reads the figures of a scope that begin at this time or later, of all nodes.
async fn recent_of_all_nodes(
    gateway: &Gateway,
    scope: &FigureScope,
    from: Timestamp,
    written_until: Option<Timestamp>,
) -> Result<RecentFigures> {
    // The store first, so that nothing is counted twice.
    let mut rows =
        read_rows(gateway, scope, FigureSpan::Window, from, millis_later(from, RECENT_MS + 2 * WINDOW_MS)).await?;
    rows.extend(figures_of_others(gateway, scope).await.into_iter().filter(|row| row.at >= from));
    rows.sort_by_key(|row| row.at);
    Ok(RecentFigures { from, written_until, rows })
}

/// Reads the figures of a scope that begin in a time, with those that only this
/// node knows.
pub async fn read_rows(
    gateway: &Gateway,
    scope: &FigureScope,
    span: FigureSpan,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<StoredFigures>> {
    let mut rows = gateway.store.figures(scope, span, from, to).await?;
    // After the store was read, so that nothing is counted twice. What is written
    // in between is missing for this once.
    rows.extend(not_written(gateway, scope).into_iter().filter(|row| (from..to).contains(&row.at)));
    Ok(rows)
}

/// Returns what this node has counted of a scope and not written, oldest window first.
pub fn not_written(gateway: &Gateway, scope: &FigureScope) -> Vec<StoredFigures> {
    let Some(endpoints) = endpoints_counted_here(gateway, scope) else { return Vec::new() };
    let mut windows = gateway.dispatcher.windows_not_taken(scope);
    if let Some(open) = windows.last_mut() {
        let waiting = |endpoint: &EndpointId| gateway.store.waiting(Some(*endpoint)).unwrap_or(0);
        open.figures.waiting = endpoints.iter().map(waiting).sum();
        let oldest_due_ms = endpoints.chunks(LOOK).flat_map(|endpoints| gateway.dispatcher.oldest_due_ms(endpoints));
        open.figures.oldest_due_ms = oldest_due_ms.max().unwrap_or(0);
    }
    windows.retain(|window| !window.figures.is_empty() || !window.types.is_empty());
    windows
}

/// Returns the endpoints of a scope, if they are not too many. What waits for those of
/// other nodes counts there.
fn endpoints_counted_here(gateway: &Gateway, scope: &FigureScope) -> Option<Vec<EndpointId>> {
    let store = &gateway.store;
    let tenants = match scope {
        FigureScope::Endpoint(_, endpoint) => return Some(vec![*endpoint]),
        FigureScope::Tenant(tenant) => vec![tenant.clone()],
        FigureScope::Gateway => {
            store.tenants().iter().map(|tenant| tenant.id.clone()).filter(|tenant| !tenant.is_system()).collect()
        }
    };
    let count = |tenant: &TenantId| store.usage_here(tenant).map_or(0, |usage| usage.endpoints);
    if tenants.iter().map(count).sum::<u64>() > SUMMED_MAX {
        return None;
    }
    Some(tenants.iter().flat_map(|tenant| store.endpoint_ids(Some(tenant))).collect())
}

fn points(rows: &[StoredFigures], step: FigureStep) -> (Vec<(Timestamp, WindowFigures)>, TypeFigures) {
    let mut types = TypeFigures::default();
    let begins = |row: &StoredFigures| span_beginning(row.at, step.millis());
    let points = rows.chunk_by(|a, b| begins(a) == begins(b)).map(|rows| {
        let (figures, of_step) = sum(rows);
        types.add(&of_step);
        (begins(&rows[0]), figures)
    });
    let points = points.collect();
    (points, types)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_700_006_400 + 60 * minutes).unwrap()
    }

    fn row(span: FigureSpan, minutes: i64, delivered: u64) -> StoredFigures {
        let figures = WindowFigures { delivered, waiting: delivered, ..WindowFigures::default() };
        StoredFigures { span, at: at(minutes), figures, types: TypeFigures::default(), failing: Default::default() }
    }

    #[test]
    fn a_range_has_the_whole_steps_that_it_touches() {
        let range = FigureRange::covering(at(7), at(12), FigureStep::Window);
        assert_eq!((range.from, range.to, range.points()), (at(5), at(15), 2));
        let range = FigureRange::covering(at(5), at(10), FigureStep::Window);
        assert_eq!((range.from, range.to), (at(5), at(10)));
        assert_eq!(FigureRange::covering(at(5), at(5), FigureStep::Hour).points(), 1);
    }

    #[test]
    fn windows_of_an_hour_that_is_not_folded_are_one_point() {
        let rows = [
            row(FigureSpan::Hour, 0, 5),
            row(FigureSpan::Window, 60, 1),
            row(FigureSpan::Window, 60, 2),
            row(FigureSpan::Window, 115, 4),
        ];
        let (points, _) = points(&rows, FigureStep::Hour);
        let found: Vec<_> = points.iter().map(|(at, point)| (*at, point.delivered, point.waiting)).collect();
        assert_eq!(found, [(at(0), 5, 5), (at(60), 7, 4)], "what waits is what waited at the end");
    }
}
