//! What a store promises about figures.
//!
//! Each run of a gateway process counts on its own, and writes what it counted
//! under a number of its own. So no two writers share a row, nothing can be
//! stale, and a write of unknown outcome is repeated without harm. Readers add
//! up the rows.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Result;
use crate::model::failing_endpoints::FailingEndpoints;
use crate::model::figure_time::{FigureGap, FigureSpan};
use crate::model::figures::WindowFigures;
use crate::model::id::{EndpointId, TenantId};
use crate::model::shard::Shard;
use crate::model::type_figures::TypeFigures;

/// The number of one run of a gateway process that counts figures: the
/// millisecond of its beginning, and in the last 20 bits something that no other
/// run of that millisecond has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FigureWriter(pub i64);

impl FigureWriter {
    /// Bits of a writer's number that tell runs of one millisecond apart.
    pub const APART: i64 = (1 << 20) - 1;

    /// Returns the number of a run that begins at this time.
    pub fn of_run(now: Timestamp, apart: i64) -> Self {
        Self((now.as_millisecond() << 20) | (apart & Self::APART))
    }
}

/// Owner of figures: the gateway, a tenant or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureScope {
    /// All tenants together.
    Gateway,
    /// A tenant's endpoints together, with events that no endpoint wanted.
    Tenant(TenantId),
    /// One endpoint of a tenant.
    Endpoint(TenantId, EndpointId),
}

impl FigureScope {
    /// Returns the part that the figures are stored in: all rows of one part
    /// are written, rolled up and deleted together, and the parts take turns.
    pub fn part(&self) -> Shard {
        match self {
            Self::Gateway => Shard(0),
            Self::Tenant(tenant) => Shard::of(tenant, EndpointId(uuid::Uuid::nil())),
            Self::Endpoint(tenant, endpoint) => Shard::of(tenant, *endpoint),
        }
    }
}

/// The figures of one scope in one window, to be written.
#[derive(Debug, Clone)]
pub struct FigureRow {
    /// Scope of the figures.
    pub scope: FigureScope,
    /// Counts of the window or hour.
    pub figures: WindowFigures,
    /// Counts by event type; empty for an endpoint.
    pub types: TypeFigures,
    /// Endpoints at which the most attempts failed; empty for an endpoint.
    pub failing: FailingEndpoints,
}

/// Figures that were read: of one window or hour, and of one writer.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFigures {
    /// Length of time that the figures span.
    pub span: FigureSpan,
    /// Beginning of the window or the hour.
    pub at: Timestamp,
    /// Counts of the window or hour.
    pub figures: WindowFigures,
    /// Counts by event type.
    pub types: TypeFigures,
    /// Endpoints at which the most attempts failed.
    pub failing: FailingEndpoints,
}

/// Up to when figures are rolled up into hours and deleted.
#[derive(Debug, Clone, Copy)]
pub struct FigureHorizon {
    /// Hours that end at this time or before it are rolled up.
    pub roll_up_until: Timestamp,
    /// Windows that begin before this time are deleted, once they are rolled up.
    pub windows_before: Timestamp,
    /// Hours that begin before this time are deleted.
    pub hours_before: Timestamp,
}

/// Coverage of the figures: up to when they are complete, and their gaps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FigureCoverage {
    /// Time up to which every writer that is at work has written; nothing if
    /// there is none.
    pub written_until: Option<Timestamp>,
    /// Times of which figures may be missing, oldest first.
    pub gaps: Vec<FigureGap>,
}

/// Usage of a tenant on one day, for its bill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayUsage {
    /// The tenant, also one that was deleted since.
    pub tenant: TenantId,
    /// Events accepted, duplicates left out.
    pub events: u64,
    /// Deliveries of these events.
    pub deliveries: u64,
    /// Size of the data of these events.
    pub bytes: u64,
}

/// Keeps figures and usage.
#[async_trait]
pub trait FigureStore: Send + Sync {
    /// Returns the number of a run that begins at this time. Where there are other
    /// nodes, it tells them which node the run is of, so that whoever frees the
    /// shards of a lost node can note what it has not written as a gap.
    fn new_figure_writer(&self, now: Timestamp) -> FigureWriter {
        FigureWriter::of_run(now, rand::random::<u32>().into())
    }

    /// Registers a writer that begins to count at this time. Writers that have
    /// ended without a word are noted as gaps: at once where there can be no
    /// other process, else when their node is removed or they have written
    /// nothing for 25 minutes.
    async fn begin_figures(&self, writer: FigureWriter, now: Timestamp) -> Result<()>;

    /// Writes the figures of some scopes of one part in one window. What was
    /// written before is not changed. A scope that was deleted is left out.
    async fn write_figures(
        &self,
        writer: FigureWriter,
        part: Shard,
        window_at: Timestamp,
        rows: Vec<FigureRow>,
    ) -> Result<()>;

    /// Notes that a writer has written everything before this time, but for
    /// what it had to drop. With nothing, the writer ends.
    async fn figures_written(
        &self,
        writer: FigureWriter,
        until: Option<Timestamp>,
        dropped: Option<FigureGap>,
    ) -> Result<()>;

    /// Rolls up the next hour of a part, and deletes some of what was kept long
    /// enough. Returns whether there may be more to do.
    async fn maintain_figures(&self, part: Shard, horizon: FigureHorizon) -> Result<bool>;

    /// Reads the figures of a scope that begin in this time, oldest first:
    /// hours as far as they are rolled up, if hours are asked for, else windows.
    async fn figures(
        &self,
        scope: &FigureScope,
        span: FigureSpan,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StoredFigures>>;

    /// Returns how complete the figures are, with the gaps that end after this
    /// time.
    async fn figure_coverage(&self, from: Timestamp, now: Timestamp) -> Result<FigureCoverage>;

    /// Returns what each tenant's producers handed over on a day, in days since
    /// 1970. It is counted in the commits that accept the events.
    async fn usage_of_day(&self, day: i32) -> Result<Vec<DayUsage>>;

    /// Forgets the usage of days before this one.
    async fn forget_usage(&self, before_day: i32) -> Result<()>;
}
