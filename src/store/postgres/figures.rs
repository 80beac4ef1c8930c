//! Keeps figures, and what tenants used on a day.

use async_trait::async_trait;
use jiff::Timestamp;

use super::PostgresStore;
use super::read_query::{read_both, read_one, read_rows};
use super::rows::{at, millis};
use super::stored_function::by_name;
use super::transaction::{PgTransaction, bind};
use crate::model::figure_time::{FigureGap, FigureSpan, HOUR_MS, WINDOW_MS};
use crate::model::id::TenantId;
use crate::model::shard::Shard;
use crate::store::Result;
use crate::store::figure_columns::FigureColumns;
use crate::store::figures::{
    DayUsage, FigureCoverage, FigureHorizon, FigureRow, FigureScope, FigureStore, FigureWriter, StoredFigures,
};
use crate::store::plan::figures::{
    DELETE_STEP, EncodedFigures, ROLLED_UP, SILENT_MS, decode, encode, next_hour, numbers, roll_up,
};
use crate::store::row::PostgresColumns;

#[async_trait]
impl FigureStore for PostgresStore {
    fn new_figure_writer(&self, now: Timestamp) -> FigureWriter {
        FigureWriter::of_run(now, self.shared.shard_leases.node())
    }

    async fn begin_figures(&self, writer: FigureWriter, now: Timestamp) -> Result<()> {
        let tx = self.shared.begin().await?;
        // Whoever deletes the row of an ended writer notes its gap, and nobody else.
        let sql =
            "DELETE FROM posthaste.figure_writers WHERE written_until < $1 AND writer <> $2 RETURNING written_until";
        for row in tx.query(sql, bind![millis(now) - SILENT_MS, writer.0]).await? {
            add_gap(&tx, FigureGap::of_crash(at(row.get(0)), now)).await?;
        }
        let sql = "INSERT INTO posthaste.figure_writers (writer, written_until) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        tx.execute(sql, bind![writer.0, millis(now)]).await?;
        tx.commit().await
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
        let tx = self.shared.begin().await?;
        insert(&tx, FigureSpan::Window, part, millis(window_at), writer.0, rows).await?;
        tx.commit().await
    }

    async fn figures_written(
        &self,
        writer: FigureWriter,
        until: Option<Timestamp>,
        dropped: Option<FigureGap>,
    ) -> Result<()> {
        let tx = self.shared.begin().await?;
        if let Some(gap) = dropped {
            add_gap(&tx, gap).await?;
        }
        match until {
            None => {
                tx.execute("DELETE FROM posthaste.figure_writers WHERE writer = $1", bind![writer.0]).await?;
            }
            Some(until) => {
                // The row is gone if the node was silent for longer than its lease.
                let sql = "INSERT INTO posthaste.figure_writers AS w (writer, written_until) VALUES ($1, $2)
                           ON CONFLICT (writer) DO UPDATE SET written_until = $2 WHERE w.written_until < $2";
                tx.execute(sql, bind![writer.0, millis(until)]).await?;
            }
        }
        tx.commit().await
    }

    async fn maintain_figures(&self, part: Shard, horizon: FigureHorizon) -> Result<bool> {
        let number = i16::from(part.0);
        let sql = "SELECT (SELECT rolled_up_until FROM posthaste.figure_rollups WHERE part = $1) AS rolled_up_until,
                          (SELECT min(at) FROM posthaste.figures WHERE span = 0 AND part = $1) AS first,
                          (SELECT min(at) FROM posthaste.figures WHERE span = 0 AND part = $1 AND at >= coalesce(
                              (SELECT rolled_up_until FROM posthaste.figure_rollups WHERE part = $1), 0)) AS first_not_rolled_up,
                          (SELECT min(at) FROM posthaste.figures WHERE span = 1 AND part = $1) AS first_hour,
                          EXISTS (SELECT FROM posthaste.tenants WHERE purge_job IS NOT NULL) AS is_purging";
        let Some(row) = read_one(&self.shared, sql, bind![number]).await? else { return Ok(false) };
        let (rolled_up, first, first_not_rolled_up, first_hour): (Option<i64>, Option<i64>, Option<i64>, Option<i64>) =
            (row.get("rolled_up_until"), row.get("first"), row.get("first_not_rolled_up"), row.get("first_hour"));
        // A purge goes through windows and hours; what is rolled up meanwhile would have
        // the names that it takes out.
        let is_purging: bool = row.get("is_purging");
        let hour = next_hour(rolled_up, first_not_rolled_up, horizon.roll_up_until).filter(|_| !is_purging);
        let rolled_up = hour.map(|hour| hour + HOUR_MS).or(rolled_up);
        let windows_before = millis(horizon.windows_before).min(rolled_up.unwrap_or(i64::MIN));
        let hours_before = millis(horizon.hours_before);
        let is_old = |first: Option<i64>, before: i64| first.is_some_and(|first| first < before);
        if hour.is_none() && !is_old(first, windows_before) && !is_old(first_hour, hours_before) {
            return Ok(false);
        }
        let tx = self.shared.begin().await?;
        if let Some(hour) = hour {
            roll_up_hour(&tx, part, hour).await?;
        }
        let sql = include_str!("sql/delete_figures.sql");
        let windows = tx.execute(sql, bind![span(FigureSpan::Window), number, windows_before, DELETE_STEP]).await?;
        let hours = tx.execute(sql, bind![span(FigureSpan::Hour), number, hours_before, DELETE_STEP]).await?;
        tx.execute("DELETE FROM posthaste.figure_gaps WHERE ends_at < $1", bind![hours_before]).await?;
        tx.commit().await?;
        Ok(hour.is_some() || windows.max(hours) >= DELETE_STEP.cast_unsigned())
    }

    async fn figures(
        &self,
        scope: &FigureScope,
        wanted: FigureSpan,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StoredFigures>> {
        let Some(numbers) = self.figure_numbers(scope) else { return Ok(Vec::new()) };
        let (part, from, to) = (scope.part(), millis(from), millis(to));
        let rolled_up = match wanted {
            FigureSpan::Window => from,
            FigureSpan::Hour => {
                let sql = "SELECT rolled_up_until FROM posthaste.figure_rollups WHERE part = $1";
                let row = read_one(&self.shared, sql, bind![i16::from(part.0)]).await?;
                row.map_or(from, |row| row.get(0))
            }
        };
        let mut read = self.read_span(FigureSpan::Hour, part, numbers, (from, to.min(rolled_up))).await?;
        read.extend(self.read_span(FigureSpan::Window, part, numbers, (from.max(rolled_up), to)).await?);
        Ok(read)
    }

    async fn figure_coverage(&self, from: Timestamp, now: Timestamp) -> Result<FigureCoverage> {
        let writers = "SELECT min(written_until) FROM posthaste.figure_writers WHERE written_until >= $1";
        let gaps = "SELECT begins_at, ends_at FROM posthaste.figure_gaps WHERE ends_at > $1
                    UNION ALL
                    SELECT written_until, written_until + $3 FROM posthaste.figure_writers
                    WHERE written_until < $2 AND written_until + $3 > $1
                    ORDER BY 2, 1";
        let silent_before = millis(now) - SILENT_MS;
        let (writers, gaps) = read_both(
            &self.shared,
            (writers, bind![silent_before]),
            (gaps, bind![millis(from), silent_before, 2 * WINDOW_MS]),
        )
        .await?;
        let written_until: Option<i64> = writers.first().and_then(|row| row.get(0));
        let gaps = gaps.iter().map(|row| FigureGap { from: at(row.get(0)), to: at(row.get(1)) });
        Ok(FigureCoverage { written_until: written_until.map(at), gaps: gaps.collect() })
    }

    async fn usage_of_day(&self, day: i32) -> Result<Vec<DayUsage>> {
        let sql = "SELECT t.id AS tenant, sum(s.events)::bigint AS events, sum(s.deliveries)::bigint AS deliveries,
                       sum(s.data_bytes)::bigint AS bytes
                   FROM posthaste.stored_bytes s JOIN posthaste.tenants t ON t.no = s.tenant
                   WHERE s.day = $1 AND s.events > 0 GROUP BY t.no, t.id ORDER BY t.id";
        let rows = read_rows(&self.shared, sql, bind![day]).await?;
        let usage = rows.iter().map(|row| DayUsage {
            tenant: row.get::<_, TenantId>("tenant"),
            events: row.get::<_, i64>("events").cast_unsigned(),
            deliveries: row.get::<_, i64>("deliveries").cast_unsigned(),
            bytes: row.get::<_, i64>("bytes").cast_unsigned(),
        });
        Ok(usage.collect())
    }

    async fn forget_usage(&self, before_day: i32) -> Result<()> {
        let sql = "UPDATE posthaste.stored_bytes SET events = 0, deliveries = 0, data_bytes = 0 WHERE day < $1 AND events > 0";
        let tx = self.shared.begin().await?;
        tx.execute(sql, bind![before_day]).await?;
        tx.commit().await
    }
}

impl PostgresStore {
    fn figure_numbers(&self, scope: &FigureScope) -> Option<(i64, i64)> {
        let index = self.shared.index();
        numbers(scope, |tenant| index.tenant_no(tenant), |endpoint| index.endpoint_entry(endpoint).map(|(no, _)| no))
    }

    async fn read_span(
        &self,
        of: FigureSpan,
        part: Shard,
        (tenant, endpoint): (i64, i64),
        (from, to): (i64, i64),
    ) -> Result<Vec<StoredFigures>> {
        let distance = match of {
            FigureSpan::Window => WINDOW_MS,
            FigureSpan::Hour => HOUR_MS,
        };
        let first = from + (distance - from.rem_euclid(distance)) % distance;
        if first >= to {
            return Ok(Vec::new());
        }
        let (span, part, last) = (span(of), i16::from(part.0), to - 1);
        let (sql, bound) = by_name![include_str!("sql/read_figures.sql");
            span = span,
            part = part,
            tenant = tenant,
            endpoint = endpoint,
            first = first,
            last = last,
            distance = distance,
        ];
        let rows = read_rows(&self.shared, &sql, &bound).await?;
        rows.iter().map(|row| decode(of, at(row.get(0)), row.get(1), row.get(2))).collect()
    }
}

/// Rolls up an hour of a part. The row of the part is locked, so that one node
/// rolls it up.
async fn roll_up_hour(tx: &PgTransaction, part: Shard, hour: i64) -> Result<()> {
    let number = i16::from(part.0);
    let lock = "INSERT INTO posthaste.figure_rollups AS f (part, rolled_up_until) VALUES ($1, $2)
                ON CONFLICT (part) DO UPDATE SET rolled_up_until = $2 WHERE f.rolled_up_until < $2";
    if tx.execute(lock, bind![number, hour + HOUR_MS]).await? == 0 {
        return Ok(());
    }
    let sql = format!(
        "SELECT {} FROM posthaste.figures WHERE span = 0 AND part = $1 AND at >= $2 AND at < $3 ORDER BY at",
        FigureColumns::COLUMNS
    );
    let rows = tx.query(&sql, bind![number, hour, hour + HOUR_MS]).await?;
    let windows = rows.iter().map(|row| FigureColumns::read(row).encoded());
    insert(tx, FigureSpan::Hour, part, hour, ROLLED_UP, roll_up(windows)?).await
}

async fn insert(
    tx: &PgTransaction,
    of: FigureSpan,
    part: Shard,
    begins_at: i64,
    writer: i64,
    rows: Vec<EncodedFigures>,
) -> Result<()> {
    let tenants: Vec<i64> = rows.iter().map(|row| row.tenant).collect();
    let endpoints: Vec<i64> = rows.iter().map(|row| row.endpoint).collect();
    let (counts, types): (Vec<Vec<u8>>, Vec<Option<Vec<u8>>>) =
        rows.into_iter().map(|row| (row.counts, row.types)).unzip();
    let (span, part) = (span(of), i16::from(part.0));
    let (sql, bound) = by_name![include_str!("sql/write_figures.sql");
        span = span,
        part = part,
        begins_at = begins_at,
        writer = writer,
        tenants = tenants,
        endpoints = endpoints,
        counts = counts,
        types = types,
    ];
    tx.execute(&sql, &bound).await.map(drop)
}

/// Notes what a node that was lost has not written, and ends its writer. Its
/// shards are freed in the same transaction.
pub(super) async fn end_lost_writer(tx: &PgTransaction, node: i64) -> Result<()> {
    let sql = "DELETE FROM posthaste.figure_writers WHERE writer & $1 = $2 & $1
               RETURNING written_until, (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    for row in tx.query(sql, bind![FigureWriter::APART, node]).await? {
        add_gap(tx, FigureGap::of_crash(at(row.get(0)), at(row.get(1)))).await?;
    }
    Ok(())
}

async fn add_gap(tx: &PgTransaction, gap: FigureGap) -> Result<()> {
    let sql = "INSERT INTO posthaste.figure_gaps (begins_at, ends_at) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.execute(sql, bind![millis(gap.from), millis(gap.to)]).await.map(drop)
}

fn span(of: FigureSpan) -> i16 {
    of as i16
}
