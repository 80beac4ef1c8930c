//! Looks at a database without changing it: also at one that an older or newer
//! version has written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::types::Type;

use super::access;
use super::changed_rows::secrets_after;
use super::connect::{self, opening_error};
use super::endpoint::PostgresEndpointRow;
use super::migrate::VERSION_MIN;
use super::transaction::{PgTransaction, bind};
use crate::model::database::DatabaseUrl;
use crate::model::endpoint::Endpoint;
use crate::model::token::Token;
use crate::store::migrations;
use crate::store::row::PostgresColumns;
use crate::store::seal::{CHECK_NOTE, Seal};

/// Number of round trips that are measured.
const ROUND_TRIPS: usize = 9;

/// Facts about a database, read without joining its cluster.
#[derive(Debug)]
pub struct DatabaseInspection {
    /// Version of the server, for people.
    pub server: String,
    /// Whether posthaste runs on this version of the server.
    pub is_supported: bool,
    /// Whether it takes no writes.
    pub is_standby: bool,
    /// Sentences about settings with which confirmed data can be lost.
    pub warnings: Vec<&'static str>,
    /// Most connections that the server takes.
    pub max_connections: i64,
    /// Wall time of the server.
    pub now: Timestamp,
    /// Median time of a round trip.
    pub round_trip: Duration,
    /// Version of the schema; none before the first start.
    pub version: Option<usize>,
    /// Version of the schema that this program writes.
    pub known_version: usize,
    /// Check text of the master key that it is sealed under.
    pub key_check: Option<String>,
    /// Number of nodes whose lease has not ended.
    pub nodes: i64,
}

/// Connects to a database and looks at it.
pub async fn inspect(url: &DatabaseUrl) -> anyhow::Result<DatabaseInspection> {
    let pool = connect::pool(url.reveal(), 1)?;
    let client = connect::take_connection(&pool, url.reveal()).await?;
    let failed = |problem: tokio_postgres::Error| opening_error("cannot look at the database", &problem);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        client.query_typed("SELECT 1", &[]).await.map_err(failed)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let sql = "SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS server,
                      pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS is_standby,
                      current_setting('fsync', true) AS fsync, current_setting('full_page_writes', true) AS full_page_writes,
                      current_setting('synchronous_commit', true) AS synchronous_commit,
                      current_setting('max_connections')::int8 AS max_connections,
                      (extract(epoch FROM clock_timestamp()) * 1000)::int8 AS now_ms,
                      to_regclass('posthaste.migrations') IS NOT NULL AS has_schema";
    let row = client.query_typed_one(sql, &[]).await.map_err(failed)?;
    let (mut version, mut key_check, mut nodes) = (None, None, 0);
    if row.get("has_schema") {
        let sql = "SELECT (SELECT coalesce(max(version), 0) FROM posthaste.migrations),
                          (SELECT value FROM posthaste.notes WHERE name = $1),
                          (SELECT count(*) FROM posthaste.nodes WHERE lease_until > now())";
        let schema = client.query_typed_one(sql, &[(&CHECK_NOTE, Type::TEXT)]).await.map_err(failed)?;
        let found: i32 = schema.get(0);
        version = Some(usize::try_from(found).unwrap_or(usize::MAX));
        key_check = schema.get(1);
        nodes = schema.get(2);
    }
    Ok(DatabaseInspection {
        server: row.get("server"),
        is_supported: row.get::<_, i32>("number") >= VERSION_MIN,
        is_standby: row.get("is_standby"),
        warnings: super::migrate::warnings(
            row.get("fsync"),
            row.get("full_page_writes"),
            row.get("synchronous_commit"),
        ),
        max_connections: row.get("max_connections"),
        now: Timestamp::from_millisecond(row.get("now_ms"))?,
        round_trip: times[ROUND_TRIPS / 2],
        version,
        known_version: migrations::POSTGRES.len(),
        key_check,
        nodes,
    })
}

/// Version of the catalog before everything in it.
const BEFORE_ALL: i64 = -1;

/// Reads the endpoints and tokens of a database of this version.
pub async fn catalog_of(url: &DatabaseUrl, seal: &Seal) -> anyhow::Result<(Vec<Arc<Endpoint>>, Vec<Arc<Token>>)> {
    let pool = connect::pool(url.reveal(), 1)?;
    let tx = PgTransaction::begin_reading(&pool).await?;
    let mut secrets = secrets_after(&tx, BEFORE_ALL, seal).await?;
    let mut endpoints = Vec::new();
    let sql = PostgresEndpointRow::sql("p.deleted_at IS NULL AND t.deleted_at IS NULL");
    for row in tx.query(&sql, bind![]).await? {
        let row = PostgresEndpointRow::read(&row);
        let secrets = secrets.remove(&row.endpoint.no).unwrap_or_default();
        endpoints.push(Arc::new(Endpoint { secrets, ..row.endpoint(seal)? }));
    }
    let tokens = access::changed_after(&tx, BEFORE_ALL).await?;
    tx.commit().await?;
    let tokens = tokens.into_iter().filter(|(_, is_revoked)| !is_revoked).map(|(token, _)| Arc::new(token));
    Ok((endpoints, tokens.collect()))
}
