//! Keeps idle connections for the next request to the same host.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::Connector;
use super::connection_record::ConnectFailure;
use super::http_connection::HttpConnection;
use crate::model::id_map::IdMap;

/// Time after which an idle connection is closed. Receivers commonly close
/// theirs after five seconds; closing first avoids sending into a closing one.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Interval at which connections that are idle for too long are closed.
const SWEEP: Duration = Duration::from_secs(1);

/// Connections that share a connector, and are told apart by host alone.
pub struct ConnectionPool {
    connector: Connector,
    idle: Mutex<IdleConnections>,
}

/// Where a connection leads: whether it is encrypted, and the host and port.
pub type Origin = (bool, Authority);

#[derive(Default)]
struct IdleConnections {
    by_origin: IdMap<Origin, Vec<IdleConnection>>,
    is_swept: bool,
}

struct IdleConnection {
    connection: HttpConnection,
    since: Instant,
}

impl ConnectionPool {
    /// Creates an empty pool of connections that this connector opens.
    pub fn new(connector: Connector) -> Self {
        Self { connector, idle: Mutex::default() }
    }

    /// Takes an idle connection that the receiver has not closed.
    pub async fn take_idle(&self, origin: &Origin) -> Option<HttpConnection> {
        loop {
            let mut connection = self.take_newest(origin)?;
            if connection.is_usable().await {
                return Some(connection);
            }
        }
    }

    fn take_newest(&self, origin: &Origin) -> Option<HttpConnection> {
        let mut idle = self.idle.lock();
        let connections = idle.by_origin.get_mut(origin)?;
        connections.pop_if(|newest| newest.since.elapsed() < IDLE_MAX).map(|newest| newest.connection)
    }

    /// Opens a connection.
    pub async fn open(&self, uri: &Uri) -> Result<HttpConnection, ConnectFailure> {
        Ok(HttpConnection::over_stream(self.connector.open(uri).await?))
    }

    /// Keeps a connection whose answer was read to its end, if it can be used
    /// again.
    pub async fn put_back(self: &Arc<Self>, origin: Origin, mut connection: HttpConnection) {
        if !connection.is_usable().await {
            return;
        }
        let mut idle = self.idle.lock();
        idle.by_origin.entry(origin).or_default().push(IdleConnection { connection, since: Instant::now() });
        if !std::mem::replace(&mut idle.is_swept, true) {
            tokio::spawn(close_idle_connections(Arc::downgrade(self)));
        }
    }

    /// Closes what is idle for too long. Returns whether anything is left.
    fn close_idle(&self) -> bool {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        idle.by_origin.retain(|_, connections| {
            // The oldest are first.
            let count = connections.partition_point(|one| now.duration_since(one.since) >= IDLE_MAX);
            connections.drain(..count).for_each(|one| one.connection.close());
            !connections.is_empty()
        });
        idle.is_swept = !idle.by_origin.is_empty();
        idle.is_swept
    }
}

/// Closes idle connections of a pool until there are none.
async fn close_idle_connections(pool: Weak<ConnectionPool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match pool.upgrade() {
            Some(pool) if pool.close_idle() => {}
            _ => return,
        }
    }
}
