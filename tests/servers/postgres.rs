//! Runs a throwaway PostgreSQL, from the Debian package.
//!
//! There is one server per test process, started on first use; tests that stop
//! or kill the database start one of their own. Each test has a database to
//! itself, which is dropped with its handle.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;
use tokio_postgres::{NoTls, SimpleQueryMessage};
use url::Url;

use super::guard::{self, Guard};

/// Environment variable with the URL of a server to use instead of a throwaway
/// one, with a role that may create databases.
const OVERRIDE: &str = "POSTHASTE_TEST_DATABASE_URL";
/// Oldest version that the gateway works with.
const OLDEST: u32 = 15;
/// Longest time that a server may take to start.
const PATIENCE: Duration = Duration::from_secs(90);

static SHARED: OnceCell<Server> = OnceCell::const_new();

/// A running server.
pub struct Server {
    /// URL with the role that creates and drops databases.
    admin: Url,
    /// URL with the role that owns them: an ordinary one, as the gateway should have.
    owner: Url,
    /// Guard of the process; none for a server that the tests did not start.
    guard: Option<Arc<Guard>>,
    template: OnceCell<Database>,
}

/// A database of its own, dropped with this.
pub struct Database {
    name: String,
    url: Url,
    admin: Url,
}

impl Server {
    /// Returns the server that this test process shares; the first call starts it
    /// with these settings.
    pub async fn shared(settings: &[&str]) -> &'static Self {
        SHARED
            .get_or_init(|| async {
                let Ok(url) = std::env::var(OVERRIDE) else { return Self::start(settings).await };
                let admin: Url = url.parse().unwrap_or_else(|problem| panic!("{OVERRIDE} is no URL: {problem}"));
                Self { owner: admin.clone(), admin, guard: None, template: OnceCell::new() }
            })
            .await
    }

    /// Starts a separate server with these settings, such as `fsync=off`.
    pub async fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, &[]).await
    }

    /// Starts a separate server with TLS, with this certificate and key, as PEM.
    pub async fn start_with_tls(certificate: &str, key: &str) -> Self {
        let settings = ["ssl=on", "ssl_cert_file=../server.crt", "ssl_key_file=../server.key"];
        Self::start_with(&settings, &[("server.crt", certificate), ("server.key", key)]).await
    }

    async fn start_with(settings: &[&str], files: &[(&str, &str)]) -> Self {
        let (password, port) = (format!("{:032x}", rand::random::<u128>()), guard::free_port());
        let folder = guard::folder("posthaste-postgres-", &[&[("password", password.as_str())], files].concat());
        let mut initdb = guard::command(binaries().join("initdb"));
        initdb.args(["-U", "admin", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D"]);
        initdb.arg(folder.join("data")).arg(format!("--pwfile={}", folder.join("password").display())).current_dir("/");
        run(initdb).await;

        let started = Self::launch(folder, &password, port, settings).await;
        execute(&started.admin, &format!("CREATE ROLE posthaste LOGIN PASSWORD '{password}'")).await.expect("a role");
        started
    }

    /// Starts a server on the data in this folder.
    async fn launch(folder: PathBuf, password: &str, port: u16, settings: &[&str]) -> Self {
        let mut server = guard::command(binaries().join("postgres"));
        server.arg("-D").arg(folder.join("data"));
        let port = format!("port={port}");
        let ours = ["listen_addresses=127.0.0.1", "unix_socket_directories=", &port, "max_connections=300"];
        for setting in ours.iter().chain(settings) {
            server.args(["-c", setting]);
        }
        let address = format!("127.0.0.1:{}", &port["port=".len()..]);
        let url = |role: &str, database: &str| {
            Url::parse(&format!("postgres://{role}:{password}@{address}/{database}")).expect("a URL")
        };
        let started = Self {
            admin: url("admin", "postgres"),
            owner: url("posthaste", ""),
            guard: Some(Arc::new(Guard::new(folder, &server))),
            template: OnceCell::new(),
        };
        started.start_again().await;
        started
    }

    /// Starts a standby of this server, which from now on answers no commit
    /// before the standby has it.
    pub async fn synchronous_standby(&self) -> Self {
        let folder = guard::folder("posthaste-standby-", &[]);
        let mut backup = guard::command(binaries().join("pg_basebackup"));
        backup.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d", self.admin.as_str(), "-D"]);
        backup.arg(folder.join("data")).current_dir("/");
        run(backup).await;
        let password = self.admin.password().expect("it has one");
        let standby = Self::launch(folder, password, guard::free_port(), &[]).await;
        for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            execute(&self.admin, statement).await.expect("an administrator may");
        }
        let question =
            "DO $$ BEGIN ASSERT (SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'); END $$";
        let until = Instant::now() + PATIENCE;
        while let Err(problem) = execute(&self.admin, question).await {
            assert!(Instant::now() < until, "the standby does not follow: {problem}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        standby
    }

    /// Starts a separate server that archives its log into this folder, for
    /// [`Server::restored_to`].
    pub async fn start_archiving(archive: &Path) -> Self {
        // A file has its name once it is whole: a server that is restored may read it at any moment.
        let command = format!("archive_command=cp %p {0}/%f.part && mv {0}/%f.part {0}/%f", archive.display());
        Self::start(&["archive_mode=on", "wal_level=replica", &command]).await
    }

    /// Takes a base backup; returns its folder.
    pub async fn base_backup(&self) -> PathBuf {
        let folder = guard::folder("posthaste-restored-", &[]);
        let mut backup = guard::command(binaries().join("pg_basebackup"));
        backup.args(["--checkpoint=fast", "--no-sync", "-d", self.admin.as_str(), "-D"]);
        backup.arg(folder.join("data")).current_dir("/");
        run(backup).await;
        folder
    }

    /// Starts a server on a base backup of this one, restored from the archive up to
    /// a restore point.
    pub async fn restored_to(&self, point: &str, base_backup: PathBuf, archive: &Path) -> Self {
        let signal = base_backup.join("data/recovery.signal");
        let mut touch = guard::command("touch");
        touch.arg(&signal);
        run(touch).await;
        let settings = [
            format!("restore_command=cp {}/%f %p", archive.display()),
            format!("recovery_target_name={point}"),
            "recovery_target_action=promote".to_owned(),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let password = self.admin.password().expect("it has one");
        let restored = Self::launch(base_backup, password, guard::free_port(), &settings).await;
        let until = Instant::now() + PATIENCE;
        let question = "DO $$ BEGIN ASSERT NOT pg_is_in_recovery(); END $$";
        while let Err(problem) = execute(&restored.admin, question).await {
            assert!(Instant::now() < until, "it is not restored: {problem}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        restored
    }

    /// Returns a database of this name that is there already. It is dropped with
    /// this.
    pub fn existing(&self, name: &str) -> Database {
        let mut url = self.owner.clone();
        url.set_path(name);
        // A restored server has the roles of the one that was backed up.
        Database { name: name.to_owned(), url, admin: self.admin.clone() }
    }

    /// Promotes a standby to a primary.
    pub async fn promote(&self) {
        execute(&self.admin, "SELECT pg_promote()").await.expect("a standby can be promoted");
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        let port = self.admin.port().unwrap_or(5432);
        format!("127.0.0.1:{port}").parse().expect("an address")
    }

    /// Stops it at once, as an operator does; connections are cut.
    pub async fn stop(&self) {
        self.guard().stop().await;
    }

    /// Kills all its processes with SIGKILL.
    pub async fn kill(&self) {
        self.guard().kill().await;
    }

    /// Starts it again, on the same port; returns when it answers.
    pub async fn start_again(&self) {
        let guard = self.guard();
        let until = Instant::now() + PATIENCE;
        guard.start().await;
        while let Err(problem) = execute(&self.admin, "SELECT 1").await {
            assert!(Instant::now() < until, "PostgreSQL does not start: {problem}\n{}", guard.log());
            if guard.has_ended() {
                // A killed process may hold its shared memory for a moment longer.
                guard.start().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Creates an empty database.
    pub async fn database(&self) -> Database {
        self.create("").await
    }

    /// Creates a copy of a database that the first call prepares.
    pub async fn database_like(&self, prepare: impl AsyncFnOnce(&str)) -> Database {
        if self.guard.is_none() {
            // Nobody would drop the template there.
            return self.create("").await;
        }
        let prepared = async {
            let template = self.create("").await;
            prepare(template.url()).await;
            template
        };
        let template = self.template.get_or_init(|| prepared).await;
        self.create(&format!("TEMPLATE {}", template.name)).await
    }

    async fn create(&self, how: &str) -> Database {
        let name = format!("posthaste_test_{:016x}", rand::random::<u64>());
        let owner = self.owner.username();
        let create = format!("CREATE DATABASE {name} OWNER {owner} {how}");
        execute(&self.admin, &create).await.unwrap_or_else(|problem| panic!("{create}: {problem}"));
        let mut url = self.owner.clone();
        url.set_path(&name);
        Database { name, url, admin: self.admin.clone() }
    }

    fn guard(&self) -> &Arc<Guard> {
        self.guard.as_ref().expect("only a server of one's own is stopped; start one")
    }
}

impl Database {
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL of the database through another address: a proxy's or a
    /// pooler's.
    pub fn url_through(&self, address: SocketAddr) -> String {
        let mut url = self.url.clone();
        url.set_ip_host(address.ip()).expect("a host");
        url.set_port(Some(address.port())).expect("a port");
        url.into()
    }

    /// Returns the role and the password to log in with.
    pub fn role_and_password(&self) -> (&str, &str) {
        (self.url.username(), self.url.password().unwrap_or_default())
    }

    /// Runs statements as the administrator.
    pub async fn execute(&self, statements: &str) {
        execute(&self.own_admin(), statements).await.unwrap_or_else(|problem| panic!("{statements}: {problem}"));
    }

    /// Runs a query that returns one number.
    pub async fn number(&self, question: &str) -> i64 {
        let rows = self.rows(question).await;
        let number = rows.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
        number.unwrap_or_else(|| panic!("{question}: not a number in {rows:?}"))
    }

    /// Runs a query; returns each row as text.
    pub async fn rows(&self, question: &str) -> Vec<Vec<Option<String>>> {
        let querying = async {
            let (client, connection) = tokio_postgres::connect(self.own_admin().as_str(), NoTls).await?;
            let connection = tokio::spawn(connection);
            let messages = client.simple_query(question).await?;
            drop(client);
            let _ = connection.await;
            Ok::<_, tokio_postgres::Error>(messages)
        };
        let messages = querying.await.unwrap_or_else(|problem| panic!("{question}: {problem}"));
        let row = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect()),
            _ => None,
        };
        messages.into_iter().filter_map(row).collect()
    }

    /// Returns the bytes of all tables of the gateway, without what the server
    /// would clean up by itself.
    pub async fn size(&self) -> i64 {
        self.execute("VACUUM FULL").await;
        self.number(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n
             ON n.oid = c.relnamespace WHERE n.nspname = 'posthaste' AND c.relkind IN ('r', 'S')",
        )
        .await
    }

    fn own_admin(&self) -> Url {
        let mut url = self.admin.clone();
        url.set_path(&self.name);
        url
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, drop) = (self.admin.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // In a thread of its own, because the test's runtime may be ending.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            // A server that has ended has no database to drop.
            let _ = runtime.block_on(execute(&admin, &drop));
        });
        let _ = dropping.join();
    }
}

/// Runs one of PostgreSQL's programs on a database; returns what it printed.
pub async fn run_program(name: &str, args: &[&str]) -> Vec<u8> {
    let mut program = guard::command(binaries().join(name));
    program.args(args).current_dir("/");
    let output = tokio::task::spawn_blocking(move || program.output()).await.expect("it is run").expect("it is there");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Runs statements on a connection of their own.
async fn execute(url: &Url, statements: &str) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url.as_str(), NoTls).await?;
    let connection = tokio::spawn(connection);
    let result = client.batch_execute(statements).await;
    drop(client);
    let _ = connection.await;
    result
}

/// Returns the folder of the programs of the newest installed version.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let known = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let usable = known.filter(|(version, path)| *version >= OLDEST && path.join("bin/initdb").exists());
    let newest = usable.max_by_key(|(version, _)| *version);
    let (_, path) = newest.unwrap_or_else(|| {
        panic!(
            "there is no PostgreSQL {OLDEST} or newer in /usr/lib/postgresql: install Debian's package postgresql, \
             or run ./check, which does"
        )
    });
    path.join("bin")
}

async fn run(mut command: Command) {
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("it is run").expect("it is there");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no database could be made: {message}");
}
