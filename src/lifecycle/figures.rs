//! Writes figures: the windows that are over, and what of an open one there is
//! at a stop; and rolls them up into hours.
//!
//! The rows of a window are written a part at a time, at most a hundred a second
//! on average, so that they get in nobody's way. A window that is still not
//! written when three later ones are over is dropped, counted and noted as a
//! gap.
//!
//! Invariant: what is counted is written at most once, under the number of this
//! run of the process; the time up to which all is written is stored only after
//! it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex;
use tracing::{debug, warn};

use super::Gateway;
use super::dispatch::figure_counters::CountedWindow;
use crate::model::delivery::time_after;
use crate::model::failing_endpoints::FailingEndpoints;
use crate::model::figure_time::{FigureGap, HOUR_MS, WINDOW_MS, millis_later, span_beginning};
use crate::model::figures::WindowFigures;
use crate::model::id::{EndpointId, TenantId};
use crate::model::rate::vary_by_tenth;
use crate::model::shard::Shard;
use crate::model::span::Span;
use crate::model::type_figures::TypeFigures;
use crate::store::Result;
use crate::store::figures::{FigureHorizon, FigureRow, FigureScope, FigureWriter};

/// Most windows that wait to be written.
const PENDING_MAX: usize = 3;
/// Pause after each row that was written.
const ROW_PAUSE: Duration = Duration::from_millis(10);
/// Longest time that the parts of one window take altogether.
const SPREAD: Duration = Duration::from_secs(240);
/// Pause after an error of the store.
const ERROR_PAUSE: Duration = Duration::from_secs(5);
/// Pause between the parts that are rolled up.
const ROLLUP_PAUSE: Duration = Duration::from_millis(50);
/// Milliseconds after its end at which an hour is rolled up: later than any of its
/// windows is written.
const ROLLUP_DELAY_MS: i64 = 6 * WINDOW_MS;
/// Milliseconds for which windows are kept.
const WINDOWS_KEPT_MS: i64 = 48 * HOUR_MS;
/// Endpoints whose oldest due delivery is looked up at a time, under the lock.
pub const LOOK: usize = 256;

/// Writes what is counted, until it is told to finish.
pub struct FigureRecorder {
    gateway: Arc<Gateway>,
    retention: Span,
    state: Mutex<RecorderState>,
}

struct RecorderState {
    writer: FigureWriter,
    has_begun: bool,
    has_ended: bool,
    pending: VecDeque<PendingWindow>,
    dropped: Option<FigureGap>,
    /// Time up to which all that was counted is taken to be written.
    taken_until: Timestamp,
    /// Time up to which all is written, as it is stored.
    written_until: Timestamp,
    /// The hour up to which parts were rolled up, and the next part.
    rolled_up: (Timestamp, Option<Shard>),
}

/// A window that waits to be written.
struct PendingWindow {
    at: Timestamp,
    parts: BTreeMap<Shard, Vec<FigureRow>>,
    /// What the row of the gateway is made of, which is written last: the names in it
    /// are then in rows of tenants, too, by which a purge knows them.
    sums: HashMap<TenantId, TenantSums>,
    row_pause: Duration,
}

impl PendingWindow {
    fn is_written(&self) -> bool {
        self.parts.is_empty() && self.sums.is_empty()
    }

    /// Drops what was counted of tenants that are gone.
    fn forget(&mut self, tenants: &[TenantId]) {
        let is_kept = |row: &FigureRow| match &row.scope {
            FigureScope::Gateway => true,
            FigureScope::Tenant(tenant) | FigureScope::Endpoint(tenant, _) => !tenants.contains(tenant),
        };
        self.parts.values_mut().for_each(|rows| rows.retain(is_kept));
        self.parts.retain(|_, rows| !rows.is_empty());
        self.sums.retain(|tenant, _| !tenants.contains(tenant));
    }
}

/// Writes figures for as long as the process runs.
pub async fn run(recorder: Arc<FigureRecorder>) {
    let clock = recorder.gateway.clock.clone();
    loop {
        let pause = match recorder.write_next_part().await {
            Ok(pause) => pause,
            Err(problem) => {
                debug!("figures could not be written yet; they are written again soon: {problem}");
                vary_by_tenth(ERROR_PAUSE, rand::random())
            }
        };
        clock.sleep_until(time_after(clock.now(), pause)).await;
    }
}

impl FigureRecorder {
    /// Creates the recorder of this run. Hours are kept for `retention`.
    pub fn new(gateway: Arc<Gateway>, retention: Span) -> Self {
        let now = gateway.clock.now();
        let writer = gateway.store.new_figure_writer(now);
        let state = RecorderState {
            writer,
            has_begun: false,
            has_ended: false,
            pending: VecDeque::new(),
            dropped: None,
            taken_until: now,
            written_until: now,
            rolled_up: (Timestamp::MIN, None),
        };
        Self { gateway, retention, state: Mutex::new(state) }
    }

    /// Makes one call to the store, if there is something to do. Returns when to
    /// make the next.
    pub async fn write_next_part(&self) -> Result<Duration> {
        let mut state = self.state.lock().await;
        if state.has_ended {
            return Ok(SPREAD);
        }
        self.begin(&mut state).await?;
        self.take_closed(&mut state).await;
        if let Some(pause) = self.write_next(&mut state).await? {
            return Ok(pause);
        }
        self.note_written(&mut state).await?;
        let now = self.gateway.clock.now();
        if self.roll_up_next(&mut state, now).await? {
            return Ok(ROLLUP_PAUSE);
        }
        let next = millis_later(span_beginning(now, WINDOW_MS), WINDOW_MS);
        Ok(Duration::try_from(next.duration_since(now)).unwrap_or_default()
            + vary_by_tenth(ROLLUP_PAUSE, rand::random()))
    }

    /// Writes everything that was counted, also of the open window, and ends
    /// this writer.
    pub async fn finish(&self) {
        let mut state = self.state.lock().await;
        if let Err(problem) = self.write_all(&mut state).await {
            warn!("figures of the last minutes could not be written, and are missing: {problem}");
        }
        state.has_ended = true;
    }

    async fn write_all(&self, state: &mut RecorderState) -> Result<()> {
        self.begin(state).await?;
        self.take_closed(state).await;
        let open = self.gateway.dispatcher.take_open_window();
        state.pending.push_back(self.rows_of(open, false).await);
        while self.write_next(state).await?.is_some() {}
        self.gateway.store.figures_written(state.writer, None, state.dropped.take()).await
    }

    async fn begin(&self, state: &mut RecorderState) -> Result<()> {
        if !state.has_begun {
            self.gateway.store.begin_figures(state.writer, state.written_until).await?;
            state.has_begun = true;
        }
        Ok(())
    }

    async fn take_closed(&self, state: &mut RecorderState) {
        // Read before the windows are taken: what is over by then is among them.
        state.taken_until = span_beginning(self.gateway.clock.now(), WINDOW_MS);
        let (closed, dropped) = self.gateway.dispatcher.take_closed_windows();
        if let Some(gap) = dropped {
            self.drop_windows(state, gap);
        }
        for window in closed {
            let rows = self.rows_of(window, true).await;
            state.pending.push_back(rows);
        }
        while state.pending.len() > PENDING_MAX
            && let Some(lost) = state.pending.pop_front()
        {
            self.drop_windows(state, FigureGap { from: lost.at, to: millis_later(lost.at, WINDOW_MS) });
        }
    }

    fn drop_windows(&self, state: &mut RecorderState, gap: FigureGap) {
        let windows = (gap.to.as_millisecond() - gap.from.as_millisecond()) / WINDOW_MS;
        self.gateway.metrics.count_dropped_figures(windows.unsigned_abs());
        warn!("figures from {} to {} are dropped: the store could not take them in time", gap.from, gap.to);
        let joined = |before: FigureGap| FigureGap { from: before.from.min(gap.from), to: before.to.max(gap.to) };
        state.dropped = Some(state.dropped.map_or(gap, joined));
    }

    /// Writes the next part of the first window. Returns the pause after it, or
    /// nothing if all is written.
    async fn write_next(&self, state: &mut RecorderState) -> Result<Option<Duration>> {
        let forgotten = self.gateway.dispatcher.take_forgotten_figures();
        if !forgotten.is_empty() {
            state.pending.iter_mut().for_each(|window| window.forget(&forgotten));
        }
        while state.pending.front().is_some_and(PendingWindow::is_written) {
            state.pending.pop_front();
        }
        let Some(window) = state.pending.front_mut() else { return Ok(None) };
        let store = &self.gateway.store;
        let Some((part, rows)) = window.parts.first_key_value() else {
            let row = gateway_row(&window.sums, |tenant| store.tenant(tenant).is_some());
            let rows = if row.figures.is_empty() { Vec::new() } else { vec![row] };
            store.write_figures(state.writer, FigureScope::Gateway.part(), window.at, rows).await?;
            window.sums.clear();
            return Ok(Some(window.row_pause));
        };
        let (part, pause) = (*part, window.row_pause * u32::try_from(rows.len()).unwrap_or(u32::MAX));
        store.write_figures(state.writer, part, window.at, rows.clone()).await?;
        window.parts.remove(&part);
        Ok(Some(pause))
    }

    async fn note_written(&self, state: &mut RecorderState) -> Result<()> {
        let until = state.taken_until;
        if until > state.written_until {
            self.gateway.store.figures_written(state.writer, Some(until), state.dropped).await?;
            state.written_until = until;
            state.dropped = None;
        }
        Ok(())
    }

    /// Rolls up the next part that this node owns. Returns whether there is more to
    /// do.
    async fn roll_up_next(&self, state: &mut RecorderState, now: Timestamp) -> Result<bool> {
        let roll_up_until = span_beginning(millis_later(now, -ROLLUP_DELAY_MS), HOUR_MS);
        let hours_before = millis_later(now, -i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX));
        if state.rolled_up.0 < roll_up_until {
            state.rolled_up = (roll_up_until, Some(Shard(0)));
            let day = hours_before.as_millisecond().div_euclid(24 * HOUR_MS);
            self.gateway.store.forget_usage(i32::try_from(day).unwrap_or(i32::MIN)).await?;
        }
        let Some(part) = state.rolled_up.1 else { return Ok(false) };
        let horizon =
            FigureHorizon { roll_up_until, windows_before: millis_later(now, -WINDOWS_KEPT_MS), hours_before };
        if self.owns(part) && self.gateway.store.maintain_figures(part, horizon).await? {
            return Ok(true);
        }
        state.rolled_up.1 = part.0.checked_add(1).map(Shard);
        Ok(state.rolled_up.1.is_some())
    }

    fn owns(&self, part: Shard) -> bool {
        let store = &self.gateway.store;
        store.lease_length().is_none() || store.leases().iter().any(|lease| lease.shard == part)
    }

    /// Makes rows of what was counted, with the sums of tenants and the gateway, and
    /// if the window is closed with what waits now: of the window of a stop the run
    /// that follows says it, and both are added up.
    async fn rows_of(&self, mut window: CountedWindow, is_closed: bool) -> PendingWindow {
        let mut tenants: HashMap<TenantId, TenantSums> = HashMap::new();
        let mut rows = Vec::new();
        for (tenant, endpoints) in self.by_tenant(&mut window, is_closed) {
            let ids: Vec<EndpointId> = endpoints.iter().map(|(id, _)| *id).collect();
            let mut oldest = Vec::with_capacity(ids.len());
            for ids in ids.chunks(LOOK) {
                oldest.extend(self.gateway.dispatcher.oldest_due_ms(ids));
                tokio::task::yield_now().await;
            }
            let mut sums = TenantSums::default();
            for ((endpoint, mut figures), oldest_due_ms) in endpoints.into_iter().zip(oldest) {
                if is_closed {
                    figures.waiting = self.gateway.store.waiting(Some(endpoint)).unwrap_or(0);
                    figures.oldest_due_ms = oldest_due_ms;
                }
                sums.figures = sums.figures.merged_with(&figures);
                sums.failing.count(endpoint, figures.failed_attempts());
                let scope = FigureScope::Endpoint(tenant.clone(), endpoint);
                rows.push(FigureRow { scope, figures, types: TypeFigures::default(), failing: Default::default() });
            }
            sums.failing.truncate();
            tenants.insert(tenant, sums);
        }
        for (tenant, counters) in window.tenants {
            let sums = tenants.entry(tenant).or_default();
            // An event counts once for its tenant, however many endpoints get it.
            sums.figures.accepted = counters.accepted;
            sums.figures.accepted_bytes = counters.accepted_bytes;
            sums.types = counters.types;
        }
        tenants.iter().for_each(|(tenant, sums)| rows.push(sums.row(FigureScope::Tenant(tenant.clone()))));
        tenants.retain(|tenant, _| !tenant.is_system());
        pending(window.at, rows, tenants)
    }

    /// Returns what was counted of endpoints, by tenant, and if the window is closed of
    /// those at which something waits although nothing happened.
    fn by_tenant(
        &self,
        window: &mut CountedWindow,
        is_closed: bool,
    ) -> HashMap<TenantId, Vec<(EndpointId, WindowFigures)>> {
        let store = &self.gateway.store;
        let mut tenants: HashMap<TenantId, Vec<(EndpointId, WindowFigures)>> = HashMap::new();
        for tenant in store.tenants().into_iter().filter(|_| is_closed) {
            let is_waiting = |id: EndpointId| store.waiting(Some(id)).is_some_and(|waiting| waiting > 0);
            let idle = store.endpoints(&tenant.id).into_iter().map(|endpoint| endpoint.id);
            let idle = idle.filter(|id| !window.endpoints.contains_key(id) && is_waiting(*id));
            let idle: Vec<_> = idle.map(|id| (id, WindowFigures::default())).collect();
            if !idle.is_empty() {
                tenants.insert(tenant.id.clone(), idle);
            }
        }
        for (endpoint, counters) in window.endpoints.drain() {
            if let Some(tenant) = counters.tenant {
                tenants.entry(tenant).or_default().push((endpoint, counters.figures));
            }
        }
        tenants
    }
}

/// Returns the row of the gateway. What the gateway sends about itself is not part of its
/// sum. Of a tenant that is gone only the counts are: it has no row by which a purge
/// could take its names out.
fn gateway_row(sums: &HashMap<TenantId, TenantSums>, is_there: impl Fn(&TenantId) -> bool) -> FigureRow {
    let mut all = TenantSums::default();
    for (tenant, sums) in sums {
        all.figures = all.figures.merged_with(&sums.figures);
        if is_there(tenant) {
            all.types.add(&sums.types);
            all.failing.add(&sums.failing);
        } else {
            let mut types = sums.types.clone();
            types.forget_names();
            all.types.add(&types);
        }
    }
    all.row(FigureScope::Gateway)
}

/// What was counted of a tenant, or of all.
#[derive(Clone, Default)]
struct TenantSums {
    figures: WindowFigures,
    types: TypeFigures,
    failing: FailingEndpoints,
}

impl TenantSums {
    fn row(&self, scope: FigureScope) -> FigureRow {
        let Self { figures, types, failing } = self.clone();
        FigureRow { scope, figures, types, failing }
    }
}

fn pending(at: Timestamp, rows: Vec<FigureRow>, sums: HashMap<TenantId, TenantSums>) -> PendingWindow {
    let row_pause = ROW_PAUSE.min(SPREAD / u32::try_from(rows.len().max(1)).unwrap_or(u32::MAX));
    let mut parts: BTreeMap<Shard, Vec<FigureRow>> = BTreeMap::new();
    for row in rows {
        parts.entry(row.scope.part()).or_default().push(row);
    }
    PendingWindow { at, parts, sums, row_pause }
}
