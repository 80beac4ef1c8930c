//! Writes figures: the windows that are over, and what of an open one there is
//! at a stop; and folds them into hours.
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
use crate::model::delivery::after;
use crate::model::failing_endpoints::FailingEndpoints;
use crate::model::figure_time::{FigureGap, HOUR_MS, WINDOW_MS, floor, later};
use crate::model::figures::WindowFigures;
use crate::model::id::{EndpointId, TenantId};
use crate::model::rate::roughly;
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
/// Pause between the parts that are folded.
const FOLD_PAUSE: Duration = Duration::from_millis(50);
/// Milliseconds after its end at which an hour is folded: later than any of its
/// windows is written.
const FOLD_DELAY_MS: i64 = 6 * WINDOW_MS;
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
    /// The hour up to which parts were folded, and the next part.
    folded: (Timestamp, Option<Shard>),
}

/// A window that waits to be written.
struct PendingWindow {
    at: Timestamp,
    parts: BTreeMap<Shard, Vec<FigureRow>>,
    row_pause: Duration,
}

/// Writes figures for as long as the process runs.
pub async fn run(recorder: Arc<FigureRecorder>) {
    let clock = recorder.gateway.clock.clone();
    loop {
        let pause = match recorder.step().await {
            Ok(pause) => pause,
            Err(problem) => {
                debug!("figures could not be written yet; they are written again soon: {problem}");
                roughly(ERROR_PAUSE, rand::random())
            }
        };
        clock.sleep_until(after(clock.now(), pause)).await;
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
            folded: (Timestamp::MIN, None),
        };
        Self { gateway, retention, state: Mutex::new(state) }
    }

    /// Makes one call to the store, if there is something to do. Returns when to
    /// make the next.
    pub async fn step(&self) -> Result<Duration> {
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
        if self.fold_next(&mut state, now).await? {
            return Ok(FOLD_PAUSE);
        }
        let next = later(floor(now, WINDOW_MS), WINDOW_MS);
        Ok(Duration::try_from(next.duration_since(now)).unwrap_or_default() + roughly(FOLD_PAUSE, rand::random()))
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
        state.pending.push_back(self.rows_of(open).await);
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
        state.taken_until = floor(self.gateway.clock.now(), WINDOW_MS);
        let (closed, dropped) = self.gateway.dispatcher.take_closed_windows();
        if let Some(gap) = dropped {
            self.drop_windows(state, gap);
        }
        for window in closed {
            let rows = self.rows_of(window).await;
            state.pending.push_back(rows);
        }
        while state.pending.len() > PENDING_MAX
            && let Some(lost) = state.pending.pop_front()
        {
            self.drop_windows(state, FigureGap { from: lost.at, to: later(lost.at, WINDOW_MS) });
        }
    }

    fn drop_windows(&self, state: &mut RecorderState, gap: FigureGap) {
        let windows = (gap.to.as_millisecond() - gap.from.as_millisecond()) / WINDOW_MS;
        self.gateway.metrics.figures_dropped(windows.unsigned_abs());
        warn!("figures from {} to {} are dropped: the store could not take them in time", gap.from, gap.to);
        let joined = |before: FigureGap| FigureGap { from: before.from.min(gap.from), to: before.to.max(gap.to) };
        state.dropped = Some(state.dropped.map_or(gap, joined));
    }

    /// Writes the next part of the first window. Returns the pause after it, or
    /// nothing if all is written.
    async fn write_next(&self, state: &mut RecorderState) -> Result<Option<Duration>> {
        while state.pending.front().is_some_and(|window| window.parts.is_empty()) {
            state.pending.pop_front();
        }
        let Some(window) = state.pending.front_mut() else { return Ok(None) };
        let Some((part, rows)) = window.parts.first_key_value() else { return Ok(None) };
        let (part, pause) = (*part, window.row_pause * u32::try_from(rows.len()).unwrap_or(u32::MAX));
        self.gateway.store.write_figures(state.writer, part, window.at, rows.clone()).await?;
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

    /// Folds the next part that this node owns. Returns whether there is more to
    /// do.
    async fn fold_next(&self, state: &mut RecorderState, now: Timestamp) -> Result<bool> {
        let fold_until = floor(later(now, -FOLD_DELAY_MS), HOUR_MS);
        let hours_before = later(now, -i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX));
        if state.folded.0 < fold_until {
            state.folded = (fold_until, Some(Shard(0)));
            let day = hours_before.as_millisecond().div_euclid(24 * HOUR_MS);
            self.gateway.store.forget_usage(i32::try_from(day).unwrap_or(i32::MIN)).await?;
        }
        let Some(part) = state.folded.1 else { return Ok(false) };
        let horizon = FigureHorizon { fold_until, windows_before: later(now, -WINDOWS_KEPT_MS), hours_before };
        if self.owns(part) && self.gateway.store.maintain_figures(part, horizon).await? {
            return Ok(true);
        }
        state.folded.1 = part.0.checked_add(1).map(Shard);
        Ok(state.folded.1.is_some())
    }

    fn owns(&self, part: Shard) -> bool {
        let store = &self.gateway.store;
        store.lease_length().is_none() || store.leases().iter().any(|lease| lease.shard == part)
    }

    /// Makes rows of what was counted, with the sums of tenants and the gateway,
    /// and with what waits now.
    async fn rows_of(&self, mut window: CountedWindow) -> PendingWindow {
        let mut tenants: HashMap<TenantId, TenantSums> = HashMap::new();
        let mut rows = Vec::new();
        for (tenant, endpoints) in self.by_tenant(&mut window) {
            let ids: Vec<EndpointId> = endpoints.iter().map(|(id, _)| *id).collect();
            let mut oldest = Vec::with_capacity(ids.len());
            for ids in ids.chunks(LOOK) {
                oldest.extend(self.gateway.dispatcher.oldest_due_ms(ids));
                tokio::task::yield_now().await;
            }
            let mut sums = TenantSums::default();
            for ((endpoint, mut figures), oldest_due_ms) in endpoints.into_iter().zip(oldest) {
                figures.waiting = self.gateway.store.waiting(Some(endpoint)).unwrap_or(0);
                figures.oldest_due_ms = oldest_due_ms;
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
        rows.extend(rows_of_sums(tenants));
        pending(window.at, rows)
    }

    /// Returns what was counted of endpoints, by tenant, and of those at which
    /// something waits although nothing happened.
    fn by_tenant(&self, window: &mut CountedWindow) -> HashMap<TenantId, Vec<(EndpointId, WindowFigures)>> {
        let store = &self.gateway.store;
        let mut tenants: HashMap<TenantId, Vec<(EndpointId, WindowFigures)>> = HashMap::new();
        for tenant in store.tenants() {
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

/// Returns the rows of tenants, and that of the gateway. What the gateway sends
/// about itself is not part of its sum.
fn rows_of_sums(tenants: HashMap<TenantId, TenantSums>) -> Vec<FigureRow> {
    let mut all = TenantSums::default();
    let mut rows = Vec::with_capacity(tenants.len() + 1);
    for (tenant, sums) in tenants {
        if !tenant.is_system() {
            all.figures = all.figures.merged_with(&sums.figures);
            all.types.add(&sums.types);
            all.failing.add(&sums.failing);
        }
        rows.push(sums.row(FigureScope::Tenant(tenant)));
    }
    if !all.figures.is_empty() {
        rows.push(all.row(FigureScope::Gateway));
    }
    rows
}

/// What was counted of a tenant, or of all.
#[derive(Default)]
struct TenantSums {
    figures: WindowFigures,
    types: TypeFigures,
    failing: FailingEndpoints,
}

impl TenantSums {
    fn row(self, scope: FigureScope) -> FigureRow {
        FigureRow { scope, figures: self.figures, types: self.types, failing: self.failing }
    }
}

fn pending(at: Timestamp, rows: Vec<FigureRow>) -> PendingWindow {
    let row_pause = ROW_PAUSE.min(SPREAD / u32::try_from(rows.len().max(1)).unwrap_or(u32::MAX));
    let mut parts: BTreeMap<Shard, Vec<FigureRow>> = BTreeMap::new();
    for row in rows {
        parts.entry(row.scope.part()).or_default().push(row);
    }
    PendingWindow { at, parts, row_pause }
}
