//! Makes up figures of a day, as the tables hold them, so that charts have something to
//! draw: a steady load with an hour of trouble in every four.

use jiff::Timestamp;

use crate::model::delivery::DeadCause;
use crate::model::failing_endpoints::FailingEndpoints;
use crate::model::figure_time::{WINDOW_MS, millis_later, span_beginning};
use crate::model::figures::{EarlyAttempts, SloCounts, WindowFigures};
use crate::model::id::{EndpointId, TenantId};
use crate::model::result_class::ResultClass;
use crate::model::type_figures::{TypeCounts, TypeFigures};
use crate::model::verdict::Verdict;
use crate::store::figures::{FigureRow, FigureScope};
use crate::store::plan::figures::{encode, numbers};

/// Endpoints that have figures of their own.
pub const FIGURE_ENDPOINTS: u32 = 100;
/// Windows that have figures: those of a day.
const WINDOWS: i64 = 288;
/// Event types that sums have figures of.
const TYPES: u64 = 50;

/// Whose figures are made up.
pub struct FigureSeed<'a> {
    /// Id of the tenant.
    pub tenant: &'a str,
    /// Number of the tenant in the store.
    pub tenant_no: i64,
    /// Numbers and ids of its endpoints.
    pub endpoints: &'a [(i64, uuid::Uuid)],
    /// Time before which they are, in milliseconds.
    pub until: i64,
}

/// A row of the table of figures, of one window.
pub struct SeededRow {
    /// Part that it is stored in.
    pub part: u8,
    /// Beginning of the window, in milliseconds.
    pub at: i64,
    /// Number of the tenant; 0 for the whole gateway.
    pub tenant: i64,
    /// Number of the endpoint; 0 for a sum.
    pub endpoint: i64,
    /// What was counted.
    pub counts: Vec<u8>,
    /// Event types and failing endpoints, for sums.
    pub types: Option<Vec<u8>>,
}

/// Returns a day of figures of the gateway, the tenant and the endpoints.
pub fn seeded_rows(seed: &FigureSeed) -> anyhow::Result<Vec<SeededRow>> {
    let tenant: TenantId = seed.tenant.parse()?;
    let endpoints = || seed.endpoints.iter().map(|(_, id)| FigureScope::Endpoint(tenant.clone(), EndpointId(*id)));
    let scopes: Vec<FigureScope> =
        [FigureScope::Gateway, FigureScope::Tenant(tenant.clone())].into_iter().chain(endpoints()).collect();
    let last = span_beginning(Timestamp::from_millisecond(seed.until)?, WINDOW_MS);
    let endpoint_no = |id: EndpointId| seed.endpoints.iter().find(|(_, known)| *known == id.0).map(|(no, _)| *no);
    let mut rows = Vec::new();
    for back in 1..=WINDOWS {
        let at = millis_later(last, -back * WINDOW_MS);
        for scope in &scopes {
            let Some(numbers) = numbers(scope, |_| Some(seed.tenant_no), endpoint_no) else { continue };
            let row = figure_row(scope.clone(), back.unsigned_abs(), seed.endpoints)?;
            let encoded = encode(&row, numbers);
            rows.push(SeededRow {
                part: scope.part().0,
                at: at.as_millisecond(),
                tenant: encoded.tenant,
                endpoint: encoded.endpoint,
                counts: encoded.counts,
                types: encoded.types,
            });
        }
    }
    Ok(rows)
}

/// Returns the figures of a scope in one window; `back` is its number, counted from the end.
fn figure_row(scope: FigureScope, back: u64, endpoints: &[(i64, uuid::Uuid)]) -> anyhow::Result<FigureRow> {
    let (mut types, mut failing) = (TypeFigures::default(), FailingEndpoints::default());
    let is_sum = !matches!(scope, FigureScope::Endpoint(..));
    let share = if is_sum { endpoints.len().max(1) as u64 } else { 1 };
    let figures = window(back, share);
    if is_sum {
        for number in 0..TYPES {
            let counts = TypeCounts { attempts: 10 + number, delivered: 10 + number, dead: 0 };
            types.count(&format!("bench.e{number}").parse()?, counts);
        }
        for (_, id) in endpoints.iter().take(50) {
            failing.count(EndpointId(*id), figures.failed_attempts() / share);
        }
    }
    Ok(FigureRow { scope, figures, types, failing })
}

fn window(back: u64, share: u64) -> WindowFigures {
    let made = (200 + back * 7 % 50) * share;
    let failed = if back % 48 < 12 { made / 3 } else { 0 };
    let delivered = made - failed;
    let mut figures = WindowFigures {
        accepted: made,
        accepted_bytes: made * 500,
        first: EarlyAttempts { n: made, delivered },
        delivered,
        slo: SloCounts { good: delivered, total: made },
        latency_sum_ms: made * 20,
        waiting: failed,
        oldest_due_ms: failed * 100,
        ..WindowFigures::default()
    };
    figures.by_verdict[Verdict::Delivered as usize] = delivered;
    figures.by_verdict[Verdict::Retry as usize] = failed;
    for class in ResultClass::all() {
        match class.name() {
            "2xx" => figures.by_result[class.index()] = delivered,
            "5xx" => figures.by_result[class.index()] = failed,
            _ => {}
        }
    }
    figures.latency[2] = delivered;
    figures.latency[5] = failed;
    figures.time_to_deliver[1] = delivered;
    figures.attempts_to_success[0] = delivered;
    figures.dead[DeadCause::Exhausted as usize] = failed / 10;
    figures.held_ms.breaker = failed * 50;
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_figures_of_every_scope_in_every_window() {
        let endpoints = [(7, uuid::Uuid::from_u128(7)), (8, uuid::Uuid::from_u128(8))];
        let seed = FigureSeed { tenant: "bench-1", tenant_no: 3, endpoints: &endpoints, until: 1_700_000_000_000 };
        let rows = seeded_rows(&seed).unwrap();
        assert_eq!(rows.len(), 4 * 288);
        assert!(rows.iter().all(|row| row.at < seed.until && row.at % WINDOW_MS == 0));
        let numbers: Vec<(i64, i64, bool)> =
            rows[..4].iter().map(|row| (row.tenant, row.endpoint, row.types.is_some())).collect();
        assert_eq!(numbers, [(0, 0, true), (3, 0, true), (3, 7, false), (3, 8, false)]);
        let total: u64 = rows.iter().map(|row| WindowFigures::decode(&row.counts).unwrap().failed_attempts()).sum();
        assert!(total > 0, "some attempts fail");
    }
}
