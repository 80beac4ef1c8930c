//! The tables of an embedded store, and where their rows go in PostgreSQL.
//!
//! Numbers stay as they are, because a delivery's id holds its number. The
//! embedded store counts up from 1, and numbers made by PostgreSQL nodes begin
//! with a time, so the two never collide. Moved rows are below the numbers of
//! every day, so they are in the default partition (`_rest`).

use serde_json::Value;
use uuid::Uuid;

use crate::model::id::EndpointId;
use crate::model::shard::Shard;
use crate::store::embedded::store_source::SourceRow;
use crate::store::event_row::EventRow;
use crate::store::postgres::rows::stored_tenant;
use crate::store::row::joined;

/// One table of the source, and the target tables of its rows.
pub struct SourceTable {
    /// Name for people: what the table holds.
    pub name: &'static str,
    /// Query that reads rows after a position, up to a number of rows. The
    /// columns `_1`, `_2` are the position of a row; other columns that begin
    /// with `_` are only for [`SourceTable::complete`] and
    /// [`TargetTable::takes`].
    pub select: &'static str,
    /// Returns the position before the first row.
    pub begin: fn() -> Vec<Value>,
    /// Query that counts the rows.
    pub count: &'static str,
    /// Adds columns to a row that the source does not have.
    pub complete: fn(&mut SourceRow) -> Option<()>,
    /// Target tables of the rows.
    pub into: &'static [TargetTable],
}

/// One table of the target.
pub struct TargetTable {
    /// Name of the table.
    pub table: &'static str,
    /// Columns that are written.
    pub columns: &'static str,
    /// The `ON CONFLICT` clause, if rows may exist already.
    pub on_conflict: &'static str,
    /// Whether a row goes into this table.
    pub takes: fn(&SourceRow) -> bool,
}

/// The columns of an event, on both sides.
const EVENT_COLUMNS: &str = joined!(", "; "no, tenant, first_delivery, data_withheld", EventRow::NAMES);

/// Lists the columns that every delivery has, whatever its state.
macro_rules! delivery {
    ($more:literal) => {
        concat!(
            "no, tenant, endpoint, shard, event, created_at, format, lane, seq, passed, expires_at, replayed_at, ",
            "attempts, attempts_before, first_attempt_at, age_from, held_before, not_found, no_such_name, ",
            "forbidden_target, last_delay, max_age, internal_errors, internal_error, due_at, ",
            $more
        )
    };
}

/// Returns all tables, in the order in which they are moved.
pub fn all() -> Vec<SourceTable> {
    vec![
        SourceTable {
            name: "notes",
            // The target has its own notes of these names.
            select: "SELECT rowid AS _1, name, value FROM notes
                     WHERE rowid > ?1 AND name NOT IN ('master_key_check', 'moving', 'moved_from')
                     ORDER BY rowid LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM notes",
            complete: unchanged,
            into: &[TargetTable {
                table: "notes",
                columns: "name, value",
                on_conflict: "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "tenants",
            select: "SELECT no AS _1, no, id, name, defaults, quota, limits, created_at, deleted_at, 1 AS version
                     FROM tenants WHERE no > ?1 ORDER BY no LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM tenants",
            complete: unchanged,
            into: &[TargetTable {
                table: "tenants",
                columns: "no, id, name, defaults, quota, limits, created_at, deleted_at, version",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "endpoints",
            select:
                "SELECT p.no AS _1, p.no, lower(hex(p.id)) AS id, p.tenant, t.id AS _tenant, p.settings, p.urls, p.status,
                            p.backpressure_until, p.mailed_at, p.created_at, p.updated_at, p.deleted_at, p.swept_at, p.skips_dead,
                            1 AS version
                     FROM endpoints p JOIN tenants t ON t.no = p.tenant WHERE p.no > ?1 ORDER BY p.no LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM endpoints",
            complete: with_shard,
            into: &[TargetTable {
                table: "endpoints",
                columns: "no, id, tenant, shard, settings, urls, status, backpressure_until, mailed_at, created_at, updated_at, \
                          deleted_at, swept_at, skips_dead, version",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "health of endpoints",
            select: "SELECT no AS _1, no AS endpoint, health, json_extract(health, '$.generation') AS generation,
                            json_extract(health, '$.version') AS version
                     FROM endpoints WHERE no > ?1 AND health <> '{}' ORDER BY no LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM endpoints WHERE health <> '{}'",
            complete: unchanged,
            into: &[TargetTable { table: "health", columns: "endpoint, generation, version, health", on_conflict: "", takes: all_rows }],
        },
        SourceTable {
            name: "tokens",
            select: "SELECT rowid AS _1, lower(hex(id)) AS id, tenant, name, rights, '\\x' || lower(hex(hash)) AS hash,
                            created_at, expires_at, used_at, kind, sign_in, 1 AS version
                     FROM tokens WHERE rowid > ?1 ORDER BY rowid LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM tokens",
            complete: unchanged,
            into: &[TargetTable {
                table: "tokens",
                columns: "id, tenant, name, rights, hash, created_at, expires_at, used_at, kind, sign_in, version",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "looks of portals",
            select: "SELECT tenant AS _1, tenant, theme, iif(logo IS NULL, NULL, '\\x' || lower(hex(logo))) AS logo
                     FROM portals WHERE tenant > ?1 ORDER BY tenant LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM portals",
            complete: unchanged,
            into: &[TargetTable { table: "portals", columns: "tenant, theme, logo", on_conflict: "", takes: all_rows }],
        },
        SourceTable {
            name: "audit log",
            select: "SELECT lower(hex(id)) AS _1, lower(hex(id)) AS id, tenant, tenant_id, record
                     FROM audit WHERE id > unhex(?1) ORDER BY id LIMIT ?2",
            begin: || vec!["".into()],
            count: "SELECT count(*) FROM audit",
            complete: unchanged,
            into: &[TargetTable { table: "audit", columns: "id, tenant, tenant_id, record", on_conflict: "", takes: all_rows }],
        },
        SourceTable {
            name: "secrets",
            select: "SELECT rowid AS _1, lower(hex(id)) AS id, endpoint, sealed, created_at, expires_at
                     FROM secrets WHERE rowid > ?1 ORDER BY rowid LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM secrets",
            complete: unchanged,
            into: &[TargetTable {
                table: "secrets",
                columns: "id, endpoint, sealed, created_at, expires_at",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "events of endpoints",
            select: "SELECT no AS _1, no, endpoint, at, record FROM endpoint_events WHERE no > ?1 ORDER BY no LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM endpoint_events",
            complete: unchanged,
            into: &[TargetTable { table: "endpoint_events", columns: "no, endpoint, at, record", on_conflict: "", takes: all_rows }],
        },
        SourceTable {
            name: "events",
            // An id that the gateway made has no fingerprint. An empty one
            // equals no other, so a producer that sends the id gets a conflict.
            select: joined!(
                ""; "SELECT no AS _1, no AS event, coalesce(fingerprint, x'') AS fingerprint, ", EVENT_COLUMNS,
                " FROM events WHERE no > ?1 ORDER BY no LIMIT ?2",
            ),
            begin: before_first,
            count: "SELECT count(*) FROM events",
            complete: unchanged,
            into: &[
                TargetTable {
                    table: "events",
                    columns: EVENT_COLUMNS,
                    on_conflict: "",
                    takes: all_rows,
                },
                TargetTable {
                    table: "producer_ids",
                    columns: "tenant, id, event, fingerprint, accepted_at, deliveries",
                    on_conflict: "",
                    takes: all_rows,
                },
            ],
        },
        SourceTable {
            name: "figures of what is stored",
            // Moved events belong to no day of the target.
            select: "SELECT tenant AS _1, tenant, 0 AS day, 0 AS node, sum(bytes) AS bytes
                     FROM stored_bytes WHERE tenant > ?1 GROUP BY tenant ORDER BY tenant LIMIT ?2",
            begin: before_first,
            count: "SELECT count(DISTINCT tenant) FROM stored_bytes",
            complete: unchanged,
            into: &[TargetTable { table: "stored_bytes", columns: "tenant, day, node, bytes", on_conflict: "", takes: all_rows }],
        },
        SourceTable {
            name: "usage by day",
            select: "SELECT (tenant << 20) | day AS _1, tenant, day, 0 AS node, 0 AS bytes, events, deliveries, data_bytes
                     FROM stored_bytes WHERE ((tenant << 20) | day) > ?1 AND events > 0 ORDER BY 1 LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM stored_bytes WHERE events > 0",
            complete: unchanged,
            into: &[TargetTable {
                table: "stored_bytes",
                columns: "tenant, day, node, bytes, events, deliveries, data_bytes",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        deliveries(),
        SourceTable {
            name: "backfilled deliveries",
            select: "SELECT event AS _1, endpoint AS _2, event, endpoint, delivery FROM backfilled
                     WHERE (event, endpoint) > (?1, ?2) ORDER BY event, endpoint LIMIT ?3",
            begin: || vec![0.into(), 0.into()],
            count: "SELECT count(*) FROM backfilled",
            complete: unchanged,
            into: &[TargetTable {
                table: "backfilled",
                columns: "event, endpoint, delivery",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        jobs(),
        job_parts(),
        SourceTable {
            name: "deliveries that jobs follow",
            select: "SELECT lower(hex(job)) AS _1, lower(hex(endpoint)) AS _2, lower(hex(delivery)) AS _3,
                            lower(hex(job)) AS job, lower(hex(endpoint)) AS endpoint, lower(hex(delivery)) AS delivery
                     FROM job_waiting WHERE (job, endpoint, delivery) > (unhex(?1), unhex(?2), unhex(?3))
                     ORDER BY job, endpoint, delivery LIMIT ?4",
            begin: || vec!["".into(), "".into(), "".into()],
            count: "SELECT count(*) FROM job_waiting",
            complete: unchanged,
            into: &[TargetTable {
                table: "job_waiting",
                columns: "job, endpoint, delivery",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "deliveries that jobs hold back",
            select: "SELECT lower(hex(job)) AS _1, lower(hex(endpoint)) AS _2, lane AS _3, lower(hex(delivery)) AS _4,
                            lower(hex(job)) AS job, lower(hex(endpoint)) AS endpoint, lane,
                            lower(hex(delivery)) AS delivery
                     FROM job_held WHERE (job, endpoint, lane, delivery) > (unhex(?1), unhex(?2), ?3, unhex(?4))
                     ORDER BY job, endpoint, lane, delivery LIMIT ?5",
            begin: || vec!["".into(), "".into(), "".into(), "".into()],
            count: "SELECT count(*) FROM job_held",
            complete: unchanged,
            into: &[TargetTable {
                table: "job_held",
                columns: "job, endpoint, lane, delivery",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        SourceTable {
            name: "attempts",
            // The last attempt of a finished delivery is in the delivery's row.
            select: "SELECT a.no AS _1, a.no >> 20 AS delivery, a.no & 0xfffff AS number, a.record,
                            d.state <> 0 AND NOT EXISTS
                                (SELECT 1 FROM attempts b WHERE b.no > a.no AND b.no <= (a.no | 0xfffff)) AS _is_last
                     FROM attempts a JOIN deliveries d ON d.no = a.no >> 20 WHERE a.no > ?1 ORDER BY a.no LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM attempts",
            complete: unchanged,
            into: &[TargetTable {
                table: "attempts",
                columns: "delivery, number, record",
                on_conflict: "",
                takes: |row| row["_is_last"] == 0,
            }],
        },
        SourceTable {
            name: "lanes",
            select: "SELECT endpoint AS _1, lane AS _2, endpoint, lane, last_seq, head, head_since, touched_at, last_event
                     FROM lane_heads WHERE (endpoint, lane) > (?1, ?2) ORDER BY endpoint, lane LIMIT ?3",
            begin: || vec![0.into(), "".into()],
            count: "SELECT count(*) FROM lanes",
            complete: unchanged,
            into: &[TargetTable {
                table: "lanes",
                columns: "endpoint, lane, last_seq, head, head_since, touched_at, last_event",
                on_conflict: "",
                takes: all_rows,
            }],
        },
        // After the lanes: one that is created must start above its floor.
        SourceTable {
            name: "floors of sequence numbers",
            select:
                "SELECT endpoint AS _1, endpoint, floor FROM seq_floors WHERE endpoint > ?1 ORDER BY endpoint LIMIT ?2",
            begin: before_first,
            count: "SELECT count(*) FROM seq_floors",
            complete: unchanged,
            into: &[TargetTable {
                table: "seq_floors",
                columns: "endpoint, floor",
                on_conflict: "",
                takes: all_rows,
            }],
        },
    ]
}

fn jobs() -> SourceTable {
    SourceTable {
        name: "jobs",
        select: "SELECT lower(hex(id)) AS _1, lower(hex(id)) AS id, tenant, state, spec, created_at, finished_at, error
                 FROM jobs WHERE id > unhex(?1) ORDER BY id LIMIT ?2",
        begin: || vec!["".into()],
        count: "SELECT count(*) FROM jobs",
        complete: unchanged,
        into: &[TargetTable {
            table: "jobs",
            columns: "id, tenant, state, spec, created_at, finished_at, error",
            on_conflict: "",
            takes: all_rows,
        }],
    }
}

fn job_parts() -> SourceTable {
    SourceTable {
        name: "parts of jobs",
        select: "SELECT lower(hex(w.job)) AS _1, lower(hex(w.endpoint)) AS _2, lower(hex(w.job)) AS job, w.tenant,
                        coalesce(w.tenant, t.id) AS _tenant, lower(hex(w.endpoint)) AS id,
                        lower(hex(w.endpoint)) AS endpoint, CASE WHEN w.after IS NOT NULL THEN lower(hex(w.after)) END AS after, w.is_all_read, w.is_done, w.counts
                 FROM job_parts w JOIN jobs j ON j.id = w.job JOIN tenants t ON t.no = j.tenant
                 WHERE (w.job, w.endpoint) > (unhex(?1), unhex(?2)) ORDER BY w.job, w.endpoint LIMIT ?3",
        begin: || vec!["".into(), "".into()],
        count: "SELECT count(*) FROM job_parts",
        complete: with_shard,
        into: &[TargetTable {
            table: "job_parts",
            columns: "job, tenant, endpoint, shard, after, is_all_read, is_done, counts",
            on_conflict: "",
            takes: all_rows,
        }],
    }
}

fn deliveries() -> SourceTable {
    const WAITING: &str = delivery!("behind, expiry_check_at, urgent, accepting_node");
    const OVER: &str = delivery!("last_attempt, state, cause, finished_at");
    SourceTable {
        name: "deliveries",
        select: "SELECT d.no AS _1, d.no, d.tenant, t.id AS _tenant, d.endpoint, lower(hex(p.id)) AS id, d.event,
                        d.created_at, d.format, d.lane, d.seq, d.passed, d.expires_at, d.replayed_at, d.attempts,
                        d.attempts_before, d.first_attempt_at, d.age_from, d.held_before, d.not_found, d.no_such_name,
                        d.forbidden_target, d.last_delay, d.max_age, d.internal_errors, d.internal_error, d.due_at, d.behind,
                        d.expiry_check_at, d.urgent, 0 AS accepting_node, d.state, d.cause, d.finished_at,
                        CASE WHEN d.state <> 0 THEN
                            (SELECT a.record FROM attempts a WHERE a.no > d.no << 20 AND a.no <= (d.no << 20 | 0xfffff)
                             ORDER BY a.no DESC LIMIT 1) END AS last_attempt
                 FROM deliveries d JOIN endpoints p ON p.no = d.endpoint JOIN tenants t ON t.no = p.tenant
                 WHERE d.no > ?1 ORDER BY d.no LIMIT ?2",
        begin: before_first,
        count: "SELECT count(*) FROM deliveries",
        complete: with_shard,
        into: &[
            TargetTable { table: "queue", columns: WAITING, on_conflict: "", takes: |row| row["state"] == 0 },
            TargetTable { table: "dead", columns: OVER, on_conflict: "", takes: |row| row["state"] == 2 },
            TargetTable {
                table: "finished",
                columns: OVER,
                on_conflict: "",
                takes: |row| row["state"] == 1 || row["state"] == 3,
            },
        ],
    }
}

fn before_first() -> Vec<Value> {
    vec![0.into()]
}

fn all_rows(_: &SourceRow) -> bool {
    true
}

fn unchanged(_: &mut SourceRow) -> Option<()> {
    Some(())
}

fn with_shard(row: &mut SourceRow) -> Option<()> {
    let shard = Shard::of(&stored_tenant(row["_tenant"].as_str()?), endpoint_id(&row["id"])?);
    row.insert("shard".into(), shard.0.into());
    Some(())
}

fn endpoint_id(hex: &Value) -> Option<EndpointId> {
    hex.as_str().and_then(|hex| Uuid::try_parse(hex).ok()).map(EndpointId)
}
