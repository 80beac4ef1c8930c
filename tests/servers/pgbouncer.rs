//! Runs PgBouncer, from the Debian package, between a gateway and its database.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::NoTls;

use super::guard::{self, Guard};
use super::postgres::{Database, Server};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running pooler. It owns the connections to the database and lends them
/// for one transaction at a time.
pub struct PgBouncer {
    pub address: SocketAddr,
    _guard: Arc<Guard>,
}

impl PgBouncer {
    /// Starts a pooler of a database, with this many connections to it.
    pub async fn start(server: &Server, database: &Database, connections: usize) -> Self {
        assert!(
            Path::new(PROGRAM).exists(),
            "there is no PgBouncer at {PROGRAM}: install Debian's package pgbouncer, or run ./check, which does"
        );
        let address = SocketAddr::from(([127, 0, 0, 1], guard::free_port()));
        let (role, password) = database.role_and_password();
        let users = format!("\"{role}\" \"{password}\"\n");
        let folder = guard::folder("posthaste-pgbouncer-", &[("users", &users)]);
        let settings = format!(
            "[databases]\n* = host={host} port={port}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {users}\npool_mode = transaction\n\
             default_pool_size = {connections}\nmax_client_conn = 1000\n",
            host = server.address().ip(),
            port = server.address().port(),
            listen = address.port(),
            users = folder.join("users").display(),
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("a file");
        let mut pooler = guard::command(PROGRAM);
        pooler.arg(&file);
        let guard = Arc::new(Guard::new(folder, &pooler));
        guard.start().await;
        let until = Instant::now() + Duration::from_secs(90);
        while let Err(problem) = tokio_postgres::connect(&database.url_through(address), NoTls).await {
            let is_lost = guard.has_ended() || Instant::now() > until;
            assert!(!is_lost, "PgBouncer does not start: {problem}\n{}", guard.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self { address, _guard: guard }
    }
}
