//! Keeps figures, and what tenants used on a day.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedStore;
use super::deleted_tenant::is_purging;
use super::rows::{at, millis};
use super::writer::WriteTransaction;
use crate::model::figure_time::{FigureGap, FigureSpan, HOUR_MS, WINDOW_MS};
use crate::model::shard::Shard;
use crate::store::Result;
use crate::store::figure_columns::FigureColumns;
use crate::store::figures::{
    DayUsage, FigureCoverage, FigureHorizon, FigureRow, FigureScope, FigureStore, FigureWriter, StoredFigures,
};
use crate::store::plan::figures::{
    DELETE_STEP, EncodedFigures, ROLLED_UP, decode, encode, next_hour, numbers, roll_up,
};
use crate::store::row::{SqliteColumns, insert, joined};

#[async_trait]
impl FigureStore for EmbeddedStore {
    async fn begin_figures(&self, writer: FigureWriter, now: Timestamp) -> Result<()> {
        self.writer
            .write_later(move |transaction| {
                // There is no other process, so whoever else is here has ended.
                let db = transaction.db;
                let sql = "DELETE FROM figure_writers WHERE writer <> ? RETURNING written_until";
                let mut statement = db.prepare(sql)?;
                let ended: Vec<i64> =
                    statement.query_map([writer.0], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
                for until in ended {
                    add_gap(db, FigureGap::of_crash(at(until), now))?;
                }
                let sql = "INSERT INTO figure_writers (writer, written_until) VALUES (?, ?) ON CONFLICT DO NOTHING";
                db.execute(sql, params![writer.0, millis(now)]).map(drop)
            })
            .await
    }

    async fn write_figures(
        &self,
        writer: FigureWriter,
        part: Shard,
        window_at: Timestamp,
        rows: Vec<FigureRow>,
    ) -> Result<()> {
        let rows: Vec<EncodedFigures> =
            rows.iter().filter_map(|row| Some(encode(row, self.figure_numbers(&row.scope)?))).collect();
        self.writer
            .write_later(move |transaction| {
                insert(transaction.db, FigureSpan::Window, part, millis(window_at), writer.0, rows)
            })
            .await
    }

    async fn figures_written(
        &self,
        writer: FigureWriter,
        until: Option<Timestamp>,
        dropped: Option<FigureGap>,
    ) -> Result<()> {
        self.writer
            .write_later(move |transaction| {
                let db = transaction.db;
                if let Some(gap) = dropped {
                    add_gap(db, gap)?;
                }
                match until {
                    None => db.execute("DELETE FROM figure_writers WHERE writer = ?", [writer.0]),
                    Some(until) => {
                        let sql =
                            "UPDATE figure_writers SET written_until = ?2 WHERE writer = ?1 AND written_until < ?2";
                        db.execute(sql, params![writer.0, millis(until)])
                    }
                }
                .map(drop)
            })
            .await
    }

    async fn maintain_figures(&self, part: Shard, horizon: FigureHorizon) -> Result<bool> {
        let work = self.read(move |db| find_work(db, part, horizon)).await?;
        if work.is_empty() {
            return Ok(false);
        }
        let rolled_up = match work.hour {
            None => None,
            Some((hour, rows)) => Some((hour, roll_up(rows)?)),
        };
        let is_rolling_up = rolled_up.is_some();
        let deleted = self
            .writer
            .write_later(move |transaction| {
                if let Some((hour, rows)) = rolled_up {
                    insert(transaction.db, FigureSpan::Hour, part, hour, ROLLED_UP, rows)?;
                    let sql = "INSERT INTO figure_rollups (part, rolled_up_until) VALUES (?, ?)
                               ON CONFLICT (part) DO UPDATE SET rolled_up_until = max(rolled_up_until, excluded.rolled_up_until)";
                    transaction.db.prepare_cached(sql)?.execute(params![part.0, hour + HOUR_MS])?;
                }
                delete_old(transaction, part, horizon)
            })
            .await?;
        Ok(is_rolling_up || deleted >= DELETE_STEP as usize)
    }

    async fn figures(
        &self,
        scope: &FigureScope,
        span: FigureSpan,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StoredFigures>> {
        let Some(numbers) = self.figure_numbers(scope) else { return Ok(Vec::new()) };
        let (part, from, to) = (scope.part(), millis(from), millis(to));
        let rows = self
            .read(move |db| {
                let rolled_up =
                    if span == FigureSpan::Hour { rolled_up_until(db, part)?.unwrap_or(from) } else { from };
                let mut rows = read_rows(db, FigureSpan::Hour, part, numbers, (from, to.min(rolled_up)))?;
                rows.extend(read_rows(db, FigureSpan::Window, part, numbers, (from.max(rolled_up), to))?);
                Ok(rows)
            })
            .await?;
        rows.into_iter().map(|(span, at, counts, types)| decode(span, at, &counts, types.as_deref())).collect()
    }

    async fn figure_coverage(&self, from: Timestamp, _: Timestamp) -> Result<FigureCoverage> {
        self.read(move |db| {
            let sql = "SELECT min(written_until) FROM figure_writers";
            let written_until: Option<i64> = db.query_row(sql, [], |row| row.get(0))?;
            let sql = "SELECT begins_at, ends_at FROM figure_gaps WHERE ends_at > ? ORDER BY ends_at, begins_at";
            let mut statement = db.prepare_cached(sql)?;
            let gaps = statement
                .query_map([millis(from)], |row| Ok(FigureGap { from: at(row.get(0)?), to: at(row.get(1)?) }))?;
            Ok(FigureCoverage { written_until: written_until.map(at), gaps: gaps.collect::<rusqlite::Result<_>>()? })
        })
        .await
    }

    async fn usage_of_day(&self, day: i32) -> Result<Vec<DayUsage>> {
        self.read(move |db| {
            let sql = "SELECT t.id AS tenant, s.events AS events, s.deliveries AS deliveries, s.data_bytes AS bytes
                 FROM stored_bytes s JOIN tenants t ON t.no = s.tenant WHERE s.day = ? AND s.events > 0 ORDER BY t.id";
            let mut statement = db.prepare_cached(sql)?;
            let usage = statement.query_map([day], |row| {
                Ok(DayUsage {
                    tenant: row.get("tenant")?,
                    events: row.get::<_, i64>("events")?.cast_unsigned(),
                    deliveries: row.get::<_, i64>("deliveries")?.cast_unsigned(),
                    bytes: row.get::<_, i64>("bytes")?.cast_unsigned(),
                })
            })?;
            usage.collect()
        })
        .await
    }

    async fn forget_usage(&self, before_day: i32) -> Result<()> {
        let sql = "SELECT count(*) FROM stored_bytes WHERE day < ? AND events > 0";
        let old: i64 = self.read(move |db| db.query_row(sql, [before_day], |row| row.get(0))).await?;
        if old == 0 {
            return Ok(());
        }
        self.writer
            .write_later(move |transaction| {
                let db = transaction.db;
                db.execute("DELETE FROM stored_bytes WHERE day < ? AND events > 0 AND bytes <= 0", [before_day])?;
                let sql =
                    "UPDATE stored_bytes SET events = 0, deliveries = 0, data_bytes = 0 WHERE day < ? AND events > 0";
                db.execute(sql, [before_day]).map(drop)
            })
            .await
    }
}

impl EmbeddedStore {
    fn figure_numbers(&self, scope: &FigureScope) -> Option<(i64, i64)> {
        let index = self.index();
        numbers(scope, |tenant| index.tenant_no(tenant), |endpoint| index.endpoint_entry(endpoint).map(|(no, _)| no))
    }
}

fn add_gap(db: &Connection, gap: FigureGap) -> rusqlite::Result<()> {
    let sql = "INSERT INTO figure_gaps (begins_at, ends_at) VALUES (?, ?) ON CONFLICT DO NOTHING";
    db.execute(sql, params![millis(gap.from), millis(gap.to)]).map(drop)
}

fn insert(
    db: &Connection,
    span: FigureSpan,
    part: Shard,
    at: i64,
    writer: i64,
    rows: Vec<EncodedFigures>,
) -> rusqlite::Result<()> {
    for EncodedFigures { tenant, endpoint, counts, types } in rows {
        let (span, part) = (span as u8, part.0);
        FiguresToInsert { span, part, at, tenant, endpoint, writer, counts, types }.insert(db)?;
    }
    Ok(())
}

insert! {
    /// The figures of one scope in one window or hour, to insert.
    struct FiguresToInsert into "figures", "ON CONFLICT DO NOTHING" {
        span: u8 = "span",
        part: u8 = "part",
        at: i64 = "at",
        tenant: i64 = "tenant",
        endpoint: i64 = "endpoint",
        writer: i64 = "writer",
        counts: Vec<u8> = "counts",
        types: Option<Vec<u8>> = "types",
    }
}

/// Work that a part of the figures waits for: rolling up, and deleting old figures.
struct PartWork {
    /// The hour to roll_up, and its windows.
    hour: Option<(i64, Vec<(i64, EncodedFigures)>)>,
    has_old: bool,
}

impl PartWork {
    fn is_empty(&self) -> bool {
        self.hour.is_none() && !self.has_old
    }
}

fn find_work(db: &Connection, part: Shard, horizon: FigureHorizon) -> rusqlite::Result<PartWork> {
    let rolled_up = rolled_up_until(db, part)?;
    let first = "SELECT min(at) FROM figures WHERE span = ? AND part = ? AND at >= ?";
    let first = |span: FigureSpan, from: i64| -> rusqlite::Result<Option<i64>> {
        db.prepare_cached(first)?.query_row(params![span as u8, part.0, from], |row| row.get(0))
    };
    let hour = next_hour(rolled_up, first(FigureSpan::Window, rolled_up.unwrap_or(i64::MIN))?, horizon.roll_up_until);
    let (windows_before, hours_before) = deletion_bounds(rolled_up, horizon);
    let is_old = |first: Option<i64>, before: i64| first.is_some_and(|first| first < before);
    let has_old = is_old(first(FigureSpan::Window, i64::MIN)?, windows_before)
        || is_old(first(FigureSpan::Hour, i64::MIN)?, hours_before);
    let hour = match hour {
        // A purge goes through windows and hours; what is rolled up meanwhile would have
        // the names that it takes out.
        Some(hour) if !is_purging(db)? => Some((hour, windows_of(db, part, hour)?)),
        Some(_) | None => None,
    };
    Ok(PartWork { hour, has_old })
}

/// Returns the times before which windows and hours are deleted. Windows are
/// kept until they are rolled up.
fn deletion_bounds(rolled_up: Option<i64>, horizon: FigureHorizon) -> (i64, i64) {
    (millis(horizon.windows_before).min(rolled_up.unwrap_or(i64::MIN)), millis(horizon.hours_before))
}

fn windows_of(db: &Connection, part: Shard, hour: i64) -> rusqlite::Result<Vec<(i64, EncodedFigures)>> {
    let sql = joined!(
        " "; "SELECT", FigureColumns::COLUMNS, "FROM figures WHERE span = 0 AND part = ? AND at >= ? AND at < ? ORDER BY at"
    );
    let mut statement = db.prepare_cached(sql)?;
    let rows =
        statement.query_map(params![part.0, hour, hour + HOUR_MS], |row| Ok(FigureColumns::read(row)?.encoded()))?;
    rows.collect()
}

fn rolled_up_until(db: &Connection, part: Shard) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT rolled_up_until FROM figure_rollups WHERE part = ?";
    db.prepare_cached(sql)?.query_row([part.0], |row| row.get(0)).optional()
}

fn delete_old(transaction: &WriteTransaction<'_>, part: Shard, horizon: FigureHorizon) -> rusqlite::Result<usize> {
    let db = transaction.db;
    let (windows_before, hours_before) = deletion_bounds(rolled_up_until(db, part)?, horizon);
    let sql = "DELETE FROM figures WHERE (span, part, at, tenant, endpoint, writer) IN (
                   SELECT span, part, at, tenant, endpoint, writer FROM figures
                   WHERE span = ? AND part = ? AND at < ? ORDER BY at LIMIT ?)";
    let mut statement = db.prepare_cached(sql)?;
    let windows = statement.execute(params![FigureSpan::Window as u8, part.0, windows_before, DELETE_STEP])?;
    let hours = statement.execute(params![FigureSpan::Hour as u8, part.0, hours_before, DELETE_STEP])?;
    db.prepare_cached("DELETE FROM figure_gaps WHERE ends_at < ?")?.execute([hours_before])?;
    Ok(windows.max(hours))
}

type RawFigures = (FigureSpan, Timestamp, Vec<u8>, Option<Vec<u8>>);

/// Reads the rows of a scope, by one seek for each window or hour.
fn read_rows(
    db: &Connection,
    span: FigureSpan,
    part: Shard,
    (tenant, endpoint): (i64, i64),
    (from, to): (i64, i64),
) -> rusqlite::Result<Vec<RawFigures>> {
    let step = match span {
        FigureSpan::Window => WINDOW_MS,
        FigureSpan::Hour => HOUR_MS,
    };
    let sql = "SELECT counts, types FROM figures
               WHERE span = ? AND part = ? AND at = ? AND tenant = ? AND endpoint = ? ORDER BY writer";
    let mut statement = db.prepare_cached(sql)?;
    let mut read = Vec::new();
    let mut begins_at = from + (step - from.rem_euclid(step)) % step;
    while begins_at < to {
        let key = params![span as u8, part.0, begins_at, tenant, endpoint];
        for row in statement.query_map(key, |row| Ok((row.get(0)?, row.get(1)?)))? {
            let (counts, types) = row?;
            read.push((span, at(begins_at), counts, types));
        }
        begins_at += step;
    }
    Ok(read)
}
