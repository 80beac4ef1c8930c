//! Defines every setting with its default and its description, and reads them.
//!
//! A setting comes from a flag, else from `POSTHASTE_…` in the environment,
//! else from the file, else from its default. The reference page
//! (`docs/settings.md`) is made from the descriptions here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;

use crate::model::database::DatabaseUrl;
use crate::model::egress::{DnsResolver, ProxyUrl};
use crate::model::logged_attempts::LoggedAttempts;
use crate::model::parse_fault::data_fault;
use crate::model::setting_in_force::{SettingInForce, SettingOrigin};
use crate::model::size::Size;
use crate::model::slo_target::SloTarget;
use crate::model::source_address::SourceAddresses;
use crate::model::span::Span;
use crate::model::trace::TraceSampling;
pub use collector_url::OptionalCollector;
pub use dashboard_place::DashboardPlace;
pub use outbox_list::OutboxList;
use values::default_sender;
pub use values::{
    Count, DirectoryPath, ListenAddress, LogFilter, LogFormat, Mailbox, NetworkList, OptionalDatabase,
    OptionalFilePath, OptionalListenAddress, OptionalMailServer, OptionalPortalUrl, OptionalProxy, OptionalPublicUrl,
    OptionalRetention, OriginList, PortList, YesNo,
};

mod collector_url;
mod dashboard_place;
pub mod environment;
mod outbox_list;
mod values;

/// Name of the settings file that is read, if it exists, when none is given.
pub const FILE: &str = "posthaste.toml";

macro_rules! settings {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty = $default:expr, $env:literal, $hint:literal $(, alone means $alone:literal)?;)*) => {
        /// Settings given in one source: the command line with the
        /// environment, or the file. Absent ones are `None`.
        #[derive(Debug, Clone, Default, Deserialize, clap::Args)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct PartialSettings {
            $($(#[doc = $doc])* #[arg(long, env = $env, hide_env_values = true, value_name = $hint, help_heading = "Settings" $(, num_args = 0..=1, require_equals = true, default_missing_value = $alone)?)] pub $name: Option<$type>,)*
        }

        /// All settings with their values.
        #[derive(Debug, Clone)]
        pub struct Settings {
            $($(#[doc = $doc])* pub $name: $type,)*
        }

        impl Settings {
            /// Takes each setting from `first`, else from `file`, else its default.
            pub fn resolve(first: PartialSettings, file: PartialSettings) -> Self {
                Self { $($name: first.$name.or(file.$name).unwrap_or_else(|| $default),)* }
            }

            /// Takes the settings as [`Self::resolve`] does, and returns with each
            /// where it came from. `is_flag` says of a name whether `first` has it
            /// from a flag, as opposed to the environment.
            pub fn in_force(
                first: PartialSettings,
                file: PartialSettings,
                is_flag: impl Fn(&str) -> bool,
            ) -> (Self, Vec<SettingInForce>) {
                let origins = [$(match (&first.$name, &file.$name) {
                    (Some(_), _) if is_flag(stringify!($name)) => SettingOrigin::Flag,
                    (Some(_), _) => SettingOrigin::Environment,
                    (None, Some(_)) => SettingOrigin::File,
                    (None, None) => SettingOrigin::Default,
                }),*];
                let settings = Self::resolve(first, file);
                let shown = settings.values_for_display().into_iter().zip(origins);
                let shown = shown.map(|((name, value), origin)| SettingInForce { name: name.replace('_', "-"), value, origin });
                let shown = shown.collect();
                (settings, shown)
            }

            /// Returns the name and the value of every setting, for display.
            pub fn values_for_display(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($name), self.$name.to_string()),)*]
            }
        }

        /// Returns the description of every setting, for the reference page.
        pub fn reference() -> Vec<SettingDescription> {
            vec![$(SettingDescription {
                name: stringify!($name),
                env: $env,
                hint: $hint,
                default: { let value: $type = $default; value.to_string() },
                sentences: concat!($($doc),*).trim(),
            },)*]
        }
    };
}

/// The description of one setting.
#[derive(Debug, Clone)]
pub struct SettingDescription {
    /// Name of the setting, with underscores.
    pub name: &'static str,
    /// Environment variable that sets it.
    pub env: &'static str,
    /// Placeholder for its value in the help, such as `DURATION`.
    pub hint: &'static str,
    /// Default value, as it is displayed.
    pub default: String,
    /// Sentences that say what it decides.
    pub sentences: &'static str,
}

impl SettingDescription {
    /// Returns the command-line flag, such as `--max-in-flight`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}

settings! {
    /// The directory that holds the store, the admin token and the master key. One process at a time may use it. With `--database-url` it holds the admin token and the master key alone, and nodes on one machine may share it.
    data: DirectoryPath = DirectoryPath("./posthaste-data".into()), "POSTHASTE_DATA", "DIR";
    /// The PostgreSQL that holds everything, such as `postgres://user:password@db.example.com:5432/posthaste`; any number of nodes may share one. Without it everything is in the data directory. `sslmode`, `sslrootcert`, `connect_timeout` and the like are written after a `?`, as for psql. It is never shown with its password; where others can see the command line, use the environment or a file.
    database_url: OptionalDatabase = OptionalDatabase::None, "POSTHASTE_DATABASE_URL", "URL";
    /// The file that holds the database's URL, read at start, instead of `--database-url`.
    database_url_file: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_DATABASE_URL_FILE", "FILE";
    /// The file that holds the key under which the secrets of endpoints, their headers and the rest of their settings are sealed, the same for every node of a database. Without it that is `master-key` in the data directory, which the first start makes. `posthaste keys rotate` replaces it.
    master_key_file: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_MASTER_KEY_FILE", "FILE";
    /// The directory in which `POST /v1/backups` and `posthaste backup` put [backups](backup.md), on another disk if there is one. Without it none are made while the gateway runs. Not used with `--database-url`.
    backup_dir: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_BACKUP_DIR", "DIR";
    /// How long a start waits for a database that is away or takes no writes. Meanwhile `/healthz` is answered 200 and everything else 503; then the gateway ends with the reason. Used with `--database-url` alone.
    database_wait: Span = Span::secs(60), "POSTHASTE_DATABASE_WAIT", "DURATION";
    /// How long a node that no longer renews its lease keeps its shards; then the others take them over. Used with `--database-url` alone.
    lease: Span = Span::secs(15), "POSTHASTE_LEASE", "DURATION";
    /// A producer's PostgreSQL whose [outbox](producing.md#the-outbox) is relayed, such as `postgres://relay:password@db.example.com/shop`. It may be given several times, on the command line; in the environment and in the file the URLs have blanks between them. Nodes may all have the same ones: one of them relays each. It is never shown with its password.
    outbox: OutboxList = OutboxList::Urls(Vec::new()), "POSTHASTE_OUTBOX", "URL";
    /// The file that holds the URLs of outboxes, one per line, read at start. They are added to those of `--outbox`.
    outbox_file: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_OUTBOX_FILE", "FILE";
    /// The address the API is served on.
    listen: ListenAddress = ListenAddress(SocketAddr::from(([127, 0, 0, 1], 8400))), "POSTHASTE_LISTEN", "ADDR";
    /// The file that holds the certificate of the API's address, in PEM, with its chain after it. With it and `--tls-key` the API is served as https alone, with TLS 1.2 and 1.3, and a plain request is told so. Both files are read again when they change; files that cannot be used are logged, and the certificate before them stays.
    tls_certificate: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_TLS_CERTIFICATE", "FILE";
    /// The file that holds the private key of `--tls-certificate`, in PEM and not encrypted: RSA, ECDSA (P-256, P-384) or Ed25519.
    tls_key: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_TLS_KEY", "FILE";
    /// A second address that answers `/healthz`, `/readyz` and `/metrics` alone, such as 127.0.0.1:8401, on connections of its own and from the moment the process starts, also while it waits for its database. Point probes and Prometheus at it, and keep strangers away from it: then nothing that they do to `--listen` can fail a probe. Without it they are answered on `--listen` alone.
    health_listen: OptionalListenAddress = OptionalListenAddress(None), "POSTHASTE_HEALTH_LISTEN", "ADDR";
    /// Where the [dashboard](dashboard.md) and the customers' portal are served: `on` for the address of the API, `off` for nowhere, or an address of their own such as 127.0.0.1:8402, where the API is not served. With `--tls-certificate` they are https there, too.
    dashboard: DashboardPlace = DashboardPlace::On, "POSTHASTE_DASHBOARD", "on|off|ADDR";
    /// Where receivers reach the API, such as `https://hooks.example.com`: the beginning of the links from which they fetch the data of thin events, and of links with which people sign in. The paths below `/data/` are all they need. The same on every node.
    public_url: OptionalPublicUrl = OptionalPublicUrl(None), "POSTHASTE_PUBLIC_URL", "URL";
    /// A host of its own for the customers' [portal](portal.md#on-a-host-of-its-own), such as `https://webhooks.example.com`: links to the portal begin with it, and requests to that host reach the pages of the portal and nothing else. Without it the portal is at `--public-url`, below `/portal`. The same on every node.
    portal_url: OptionalPortalUrl = OptionalPortalUrl(None), "POSTHASTE_PORTAL_URL", "URL";
    /// Origins whose pages may show the portal in a frame, such as `https://app.example.com`; nobody's without it. `http` is taken for this machine alone.
    portal_origins: OriginList = OriginList(Vec::new()), "POSTHASTE_PORTAL_ORIGINS", "ORIGIN[,ORIGIN]";
    /// How many connections to the API may be open at once. Beyond it health checks are still answered, and a valid token takes the place of a connection that has shown none and waits; everything else is answered 503. One address may hold half of them with connections whose last request carried no valid token.
    max_connections: Count = Count(10_000), "POSTHASTE_MAX_CONNECTIONS", "COUNT";
    /// Networks of reverse proxies whose `X-Forwarded-For` is trusted. It decides which address the audit log shows, and against which address connections and requests without a valid token are counted. Behind a proxy that is not named here everybody is one address.
    trusted_proxies: NetworkList = NetworkList(Vec::new()), "POSTHASTE_TRUSTED_PROXIES", "CIDR[,CIDR]";
    /// Networks that may be called besides public addresses, such as 127.0.0.0/8 for receivers on this machine. Loopback, private, link-local and metadata addresses are refused otherwise. Names that mean this machine or its network (`localhost`, and whatever ends in `.local`, `.internal`, `.localdomain` or `.home.arpa`) are called when all their addresses are opened here. `0.0.0.0` and `::` stay closed. IPv4 networks may be written as IPv6 ones (`::ffff:10.0.0.0/104`); `::/0` means IPv6 alone.
    allow_egress: NetworkList = NetworkList(Vec::new()), "POSTHASTE_ALLOW_EGRESS", "CIDR[,CIDR]";
    /// Networks that are never called, public or not. It wins over `--allow-egress`. The address the gateway listens on is never called either; those of other nodes, and a load balancer in front of them, belong here if tenants are not to reach them.
    deny_egress: NetworkList = NetworkList(Vec::new()), "POSTHASTE_DENY_EGRESS", "CIDR[,CIDR]";
    /// Ports that may be called though they usually belong to other services: 22, 23, 25, 53, 110, 111, 135, 139, 143, 445, 465, 587, 993, 995, 1433, 2375, 2379, 3306, 5432, 6379, 9200, 11211 and 27017 are refused otherwise, also in networks that `--allow-egress` opens. All other ports are open.
    allow_port: PortList = PortList(Vec::new()), "POSTHASTE_ALLOW_PORT", "PORT[,PORT]";
    /// Calls receivers without encryption where their URL says `http`. Without it that is done on this machine alone (loopback addresses), and everyone else needs `https`.
    allow_http: YesNo = YesNo(false), "POSTHASTE_ALLOW_HTTP", "BOOL", alone means "true";
    /// Who looks up the names of receivers: `own` for the gateway's own resolver at this machine's name servers, `system` for the machine's resolver with whatever it is configured to ask, or name servers such as `9.9.9.9` or `127.0.0.1:5353` for the own resolver at those. The own resolver takes names as absolute and tries no search list.
    dns: DnsResolver = DnsResolver::Own, "POSTHASTE_DNS", "own|system|ADDR[,ADDR]";
    /// The proxy through which receivers are called, such as `http://proxy.example.com:3128` (with CONNECT) or `socks5://user:password@proxy.example.com:1080`. Names are looked up and judged here first, and the proxy is given the address. `HTTP_PROXY` and the like mean nothing to the gateway. It is never shown with its password.
    egress_proxy: OptionalProxy = OptionalProxy::None, "POSTHASTE_EGRESS_PROXY", "URL";
    /// The address of this machine that connections to receivers come from, such as `192.0.2.7`; one IPv4 and one IPv6 address at most. Where it names one kind alone, receivers are called at addresses of that kind alone. Without it the machine chooses. It cannot be used with `--egress-proxy`.
    egress_bind: SourceAddresses = SourceAddresses::default(), "POSTHASTE_EGRESS_BIND", "ADDR[,ADDR]";
    /// The networks that receivers see connections come from, where the machine itself does not know: behind NAT, or through `--egress-proxy`. `GET /v1/egress` tells them to those who allow-list; without it, it tells `--egress-bind`. It changes no connection.
    egress_addresses: NetworkList = NetworkList(Vec::new()), "POSTHASTE_EGRESS_ADDRESSES", "CIDR[,CIDR]";
    /// How long delivered and cancelled deliveries are kept, with their attempts and events. Event ids are remembered as long.
    retention: Span = Span::secs(30 * 86_400), "POSTHASTE_RETENTION", "DURATION";
    /// How long dead letters are kept. One that blocks a lane others wait in is kept until it is replayed or discarded.
    dead_letter_retention: Span = Span::secs(90 * 86_400), "POSTHASTE_DEAD_LETTER_RETENTION", "DURATION";
    /// How long the data of events is kept that no endpoint wanted: `retention` for as long as everything else. Their ids are remembered as long as all others.
    unmatched_retention: OptionalRetention = OptionalRetention(None), "POSTHASTE_UNMATCHED_RETENTION", "DURATION";
    /// How long it is kept who changed what.
    audit_retention: Span = Span::secs(90 * 86_400), "POSTHASTE_AUDIT_RETENTION", "DURATION";
    /// How long figures are kept, by the hour, and what tenants used on a day. Windows of five minutes are kept for 48 hours.
    figures_retention: Span = Span::secs(90 * 86_400), "POSTHASTE_FIGURES_RETENTION", "DURATION";
    /// The goal that the health table and the alerts hold deliveries against: which part of them is to arrive within ten minutes of acceptance. What receivers refuse and what is replayed does not count.
    slo_target: SloTarget = SloTarget::default(), "POSTHASTE_SLO_TARGET", "N%";
    /// How long a delivery may wait for its first attempt, held by a pause or behind others in its lane. Then it is a dead letter (`expired`).
    hold_max: Span = Span::secs(30 * 86_400), "POSTHASTE_HOLD_MAX", "DURATION";
    /// The largest event accepted, in bytes of its JSON.
    max_event_bytes: Size = Size(1_024 * 1_024), "POSTHASTE_MAX_EVENT_BYTES", "BYTES";
    /// Keeps payloads out of the API's answers: the data of events, and what receivers answered. They are delivered all the same.
    redact_payloads: YesNo = YesNo(false), "POSTHASTE_REDACT_PAYLOADS", "BOOL", alone means "true";
    /// How many bytes of events may be on their way in at once, from the first byte of a body to its commit. Of bodies that are still coming in, one tenant may hold three times what is left. Beyond it producers are answered 503 at once; one request is always possible.
    ingest_memory: Size = Size(64 * 1_024 * 1_024), "POSTHASTE_INGEST_MEMORY", "BYTES";
    /// How many requests with events may wait for their commit at once. Beyond it producers are answered 503 at once.
    ingest_waiting: Count = Count(4_096), "POSTHASTE_INGEST_WAITING", "COUNT";
    /// How many requests to receivers may be open at once, over all endpoints.
    max_in_flight: Count = Count(2_048), "POSTHASTE_MAX_IN_FLIGHT", "COUNT";
    /// How many requests may be open at once to one host and port, over all endpoints that stand there; 0 for no such limit.
    max_in_flight_per_host: Count = Count(0), "POSTHASTE_MAX_IN_FLIGHT_PER_HOST", "COUNT";
    /// After more than this many permanent answers without a success between them an endpoint is paused.
    pause_refusals: Count = Count(100), "POSTHASTE_PAUSE_REFUSALS", "COUNT";
    /// After this long with nothing but failures an endpoint is paused.
    pause_failing: Span = Span::secs(5 * 86_400), "POSTHASTE_PAUSE_FAILING", "DURATION";
    /// How long a stop waits for requests in flight.
    stop_timeout: Span = Span::secs(65), "POSTHASTE_STOP_TIMEOUT", "DURATION";
    /// Below this much free disk space new events are refused (507), while deliveries go on. At least what finishing needs: 128 MiB for the store's log, and 8 KiB for each of `--max-in-flight`. Not used with `--database-url`.
    disk_reserve: Size = Size(256 * 1_024 * 1_024), "POSTHASTE_DISK_RESERVE", "BYTES";
    /// Whether the gateway sends itself an event once a minute, the whole way from acceptance to a receiver inside the process: `on` or `off`. `posthaste_self_test_age_seconds` says how long ago the last one was sent that arrived. It is in no list and no figure.
    self_test: YesNo = YesNo(true), "POSTHASTE_SELF_TEST", "on|off";
    /// The mail server that sends mail to owners of endpoints about failures, such as `smtp://user@mail.example.com:587` or `smtps://user@mail.example.com`. Without it nobody is mailed. `smtp` is encrypted with STARTTLS, and not encrypted to a loopback address; `?tls=none`, `?tls=opportunistic` and `?tls=required` change that. The usual ports are 587, 465 for `smtps`, and 25 to a loopback address. The URL never holds a password.
    smtp: OptionalMailServer = OptionalMailServer::None, "POSTHASTE_SMTP", "URL";
    /// The file that holds the password of the user in `--smtp`, read at start.
    smtp_password_file: OptionalFilePath = OptionalFilePath(None), "POSTHASTE_SMTP_PASSWORD_FILE", "FILE";
    /// Whom mails are from.
    mail_from: Mailbox = Mailbox(default_sender()), "POSTHASTE_MAIL_FROM", "MAILBOX";
    /// How logs are written: `human`, `json`, or `auto` for human on a terminal and JSON otherwise.
    log_format: LogFormat = LogFormat::Auto, "POSTHASTE_LOG_FORMAT", "FORMAT";
    /// What is logged: `off`, `error`, `warn`, `info`, `debug` or `trace`, and after a comma what differs for a part, such as `info,posthaste::lifecycle=debug`.
    log: LogFilter = LogFilter("info".into()), "POSTHASTE_LOG", "FILTER";
    /// Which attempts have a line in the log: `all`, `failures`, or `failures` and a share of the others, such as `1%`. Attempts that did not deliver always have one. The store has all of them anyway.
    log_attempts: LoggedAttempts = LoggedAttempts::All, "POSTHASTE_LOG_ATTEMPTS", "all|failures|N%";
    /// The collector that [traces](tracing.md) are exported to, such as `http://127.0.0.1:4318`, with OTLP over HTTP as JSON; `/v1/traces` is added where it is missing. Without it no traces are exported.
    otlp_endpoint: OptionalCollector = OptionalCollector::None, "POSTHASTE_OTLP_ENDPOINT", "URL";
    /// The share of events whose traces are exported to `--otlp-endpoint`, such as `1%`; the same on every node. An event whose producer gave a `traceparent` is exported if that says that the trace is sampled, whatever the share is.
    trace_sampling: TraceSampling = TraceSampling::default(), "POSTHASTE_TRACE_SAMPLING", "N%";
}

/// Whether the command line of this process has the flag of a setting.
pub fn is_flag_given(name: &str) -> bool {
    let flag = format!("--{}", name.replace('_', "-"));
    let is_it = |arg: &str| arg.strip_prefix(&flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    std::env::args_os().skip(1).any(|arg| arg.to_str().is_some_and(is_it))
}

/// Reads the settings file. A file that was named must exist.
pub fn read_file(named: Option<&Path>) -> anyhow::Result<PartialSettings> {
    let path = named.unwrap_or(Path::new(FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(problem) if problem.kind() == std::io::ErrorKind::NotFound && named.is_none() => {
            return Ok(PartialSettings::default());
        }
        Err(problem) => {
            return Err(problem).with_context(|| format!("cannot read the settings file {}", path.display()));
        }
    };
    parse(&text).map_err(|why| anyhow!("the settings file {} is wrong{why}", path.display()))
}

/// Returns where a gateway listens that is started in this folder, and the file of its
/// certificate if it has one, if its settings file says so and can be read.
pub fn listen_in_file() -> Option<(SocketAddr, Option<PathBuf>)> {
    let file = read_file(None).ok()?;
    Some((file.listen?.0, file.tls_certificate.and_then(|file| file.0)))
}

/// Parses the settings file. An error names the line and the setting alone: the
/// rest of the line may hold a password.
fn parse(text: &str) -> Result<PartialSettings, String> {
    toml::from_str(text).map_err(|problem| {
        let start = problem.span().map_or(0, |span| span.start.min(text.len()));
        let before = &text[..start];
        let line = before.matches('\n').count();
        let name = text.lines().nth(line).and_then(|line| line.split_once('=')).map(|(name, _)| name.trim());
        let name = name.filter(|name| name.bytes().all(|c| c.is_ascii_lowercase() || c == b'-')).unwrap_or_default();
        let name = Some(name).filter(|name| !name.is_empty()).map(|name| format!(", {name}")).unwrap_or_default();
        format!(" in line {}{name}: {}", line + 1, file_fault(problem.message()))
    })
}

/// Returns what is wrong in the settings file, from the message of the parser.
fn file_fault(message: &str) -> String {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    if let Some(name) = unknown {
        let nearest = environment::nearest_name(name).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        return format!("{name} is no setting; {nearest}`posthaste config --reference` lists all settings");
    }
    match message {
        values::FILE_VALUE => {
            format!("write {message}; several values go into one text, such as \"10.0.0.0/8,127.0.0.0/8\"")
        }
        message if message.starts_with("duplicate key") => "it is given twice; keep one".to_owned(),
        message if message.starts_with("invalid type") => data_fault(message),
        message if message.starts_with("invalid ") || message.contains("expected") || message.contains("quoted") => {
            "this is not TOML; write a name, = and a value, and texts in double quotes, such as retention = \"7d\""
                .to_owned()
        }
        other => other.to_owned(),
    }
}

impl Settings {
    /// Refuses values that are out of range and combinations that cannot work.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.retention < Span::secs(60) || self.dead_letter_retention < Span::secs(60) {
            bail!(
                "retention is {} and dead-letter-retention is {}; use at least 1m for both",
                self.retention,
                self.dead_letter_retention
            );
        }
        if let Some(unmatched) = self.unmatched_retention.0.filter(|span| *span < Span::secs(60)) {
            bail!("unmatched-retention is {unmatched}; use at least 1m, or `retention` for as long as everything else");
        }
        if self.audit_retention < Span::secs(60) {
            bail!("audit-retention is {}; use at least 1m", self.audit_retention);
        }
        if self.figures_retention < Span::secs(48 * 3_600) {
            bail!("figures-retention is {}; use at least 48h", self.figures_retention);
        }
        if !(1..=1_000_000).contains(&self.max_connections.0) {
            bail!("max-connections is {}; use 1 to 1,000,000", self.max_connections);
        }
        if let Some(health) = self.health_listen.0.filter(|health| *health == self.listen && health.0.port() != 0) {
            bail!("health-listen is {health}, and so is listen; give them different ports");
        }
        if self.hold_max < Span::secs(1) || self.hold_max > Span::secs(365 * 86_400) {
            bail!("hold-max is {}; use 1s to 365d", self.hold_max);
        }
        if !(1_024..=64 * 1_024 * 1_024).contains(&self.max_event_bytes.0) {
            bail!("max-event-bytes is {}; use 1KiB to 64MiB", self.max_event_bytes);
        }
        if !(1..=1_000_000).contains(&self.pause_refusals.0) {
            bail!("pause-refusals is {}; use 1 to 1,000,000", self.pause_refusals);
        }
        if self.pause_failing < Span::secs(60) {
            bail!("pause-failing is {}; use at least 1m", self.pause_failing);
        }
        if !(1_024..=1 << 40).contains(&self.ingest_memory.0) {
            bail!("ingest-memory is {}; use 1KiB to 1024GiB", self.ingest_memory);
        }
        if !(1..=1_000_000).contains(&self.ingest_waiting.0) {
            bail!("ingest-waiting is {}; use 1 to 1,000,000", self.ingest_waiting);
        }
        if !(1..=100_000).contains(&self.max_in_flight.0) {
            bail!("max-in-flight is {}; use 1 to 100,000", self.max_in_flight);
        }
        if !(Span::secs(2)..=Span::secs(300)).contains(&self.lease) {
            bail!("lease is {}; use 2s to 5m", self.lease);
        }
        self.check_portal()?;
        self.collector()?;
        self.check_egress()?;
        self.check_tls()?;
        self.check_database()?;
        self.outboxes()?;
        self.check_mail()
    }

    /// Returns the databases whose outboxes are relayed. Reads `--outbox-file`.
    pub fn outboxes(&self) -> anyhow::Result<Vec<DatabaseUrl>> {
        outbox_list::outbox_urls(&self.outbox, self.outbox_file.0.as_deref())
    }

    /// Returns the URL that traces are exported to, if one is set.
    pub fn collector(&self) -> anyhow::Result<Option<&url::Url>> {
        match &self.otlp_endpoint {
            OptionalCollector::None => Ok(None),
            OptionalCollector::Url(url) => Ok(Some(url)),
            OptionalCollector::Wrong(why) => bail!("otlp-endpoint is wrong: {why}"),
        }
    }

    /// Returns the proxy that receivers are called through, if one is set.
    pub fn proxy(&self) -> anyhow::Result<Option<ProxyUrl>> {
        match &self.egress_proxy {
            OptionalProxy::None => Ok(None),
            OptionalProxy::Url(url) => Ok(Some(url.clone())),
            OptionalProxy::Wrong(why) => bail!("egress-proxy is wrong: {why}"),
        }
    }

    /// Returns the URL of the database, if one is set. Reads `--database-url-file`.
    pub fn database(&self) -> anyhow::Result<Option<DatabaseUrl>> {
        match (&self.database_url, &self.database_url_file.0) {
            (OptionalDatabase::Url(url), _) => Ok(Some(url.clone())),
            (OptionalDatabase::Wrong(why), _) => bail!("database-url is wrong: {why}"),
            (OptionalDatabase::None, None) => Ok(None),
            (OptionalDatabase::None, Some(file)) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read the database's URL from {}", file.display()))?;
                let url = text.parse().map_err(|why| anyhow!("the URL in {} is wrong: {why}", file.display()))?;
                Ok(Some(url))
            }
        }
    }

    /// Returns the files of certificate and key, if the API is served as https.
    pub fn tls_files(&self) -> Option<(&Path, &Path)> {
        self.tls_certificate.0.as_deref().zip(self.tls_key.0.as_deref())
    }

    fn check_tls(&self) -> anyhow::Result<()> {
        match (&self.tls_certificate.0, &self.tls_key.0) {
            (Some(file), None) => {
                bail!("tls-certificate is {}, and there is no key; name its file with tls-key", file.display())
            }
            (None, Some(file)) => {
                bail!("tls-key is {}, and there is no certificate; name its file with tls-certificate", file.display())
            }
            (Some(_), Some(_)) | (None, None) => Ok(()),
        }
    }

    fn check_portal(&self) -> anyhow::Result<()> {
        let Some((portal, public)) = self.portal_url.0.as_ref().zip(self.public_url.0.as_ref()) else { return Ok(()) };
        let host = public.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
        if portal.has_name(host) {
            bail!(
                "portal-url is {}, and public-url has the same host; give the portal another one, or leave portal-url out",
                portal.as_str()
            );
        }
        Ok(())
    }

    fn check_egress(&self) -> anyhow::Result<()> {
        match self.proxy()? {
            Some(proxy) if !self.egress_bind.is_empty() => bail!(
                "egress-bind is {}, and egress-proxy is {proxy}, whose address receivers see; leave one of them out, \
                 and name the proxy's addresses with egress-addresses",
                self.egress_bind
            ),
            _ => Ok(()),
        }
    }

    fn check_database(&self) -> anyhow::Result<()> {
        match (&self.database_url, &self.database_url_file.0) {
            (OptionalDatabase::Wrong(why), _) => bail!("database-url is wrong: {why}"),
            (OptionalDatabase::Url(_), Some(file)) => {
                bail!("database-url is given, and database-url-file is {}; leave one of them out", file.display())
            }
            _ => Ok(()),
        }
    }

    fn check_mail(&self) -> anyhow::Result<()> {
        let server = match &self.smtp {
            OptionalMailServer::None => None,
            OptionalMailServer::Server(server) => Some(server),
            OptionalMailServer::Wrong(why) => bail!("smtp is wrong: {why}"),
        };
        let user = server.and_then(|server| server.user.as_deref());
        match (user, &self.smtp_password_file.0) {
            (Some(user), None) => {
                bail!("smtp names the user {user:?}, and there is no password; name its file with smtp-password-file")
            }
            (None, Some(file)) => bail!(
                "smtp-password-file is {}, and smtp names no user to go with it; write smtp like \
                 smtp://user@mail.example.com, or leave smtp-password-file out",
                file.display()
            ),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::named_enum::NamedEnum;

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let file: PartialSettings =
            toml::from_str("retention = \"7d\"\nallow-egress = \"10.0.0.0/8, 127.0.0.1\"").unwrap();
        let first = PartialSettings { retention: Some("2d".parse().unwrap()), ..PartialSettings::default() };
        let settings = Settings::resolve(first, file);
        assert_eq!(settings.retention.to_string(), "48h");
        assert_eq!(settings.allow_egress.to_string(), "10.0.0.0/8,127.0.0.1/32");
        assert_eq!(settings.listen.to_string(), "127.0.0.1:8400");
    }

    #[test]
    fn every_setting_tells_where_it_came_from() {
        let first: PartialSettings = toml::from_str("retention = \"7d\"\nhold-max = \"1d\"").unwrap();
        let url = "postgres://ops:hush@db.example.com/app";
        let file = parse(&format!("retention = \"9d\"\ndatabase-url = {url:?}")).unwrap();
        let (settings, shown) = Settings::in_force(first, file, |name| name == "retention");
        assert_eq!((settings.retention, shown.len()), ("7d".parse().unwrap(), reference().len()));
        let of = |name: &str| {
            let setting = shown.iter().find(|setting| setting.name == name).unwrap();
            (setting.value.as_str(), setting.origin.as_str())
        };
        assert_eq!((of("retention"), of("hold-max")), (("7d", "flag"), ("24h", "environment")));
        assert_eq!(of("database-url"), ("postgres://ops@db.example.com/app", "file"));
        assert_eq!(of("listen"), ("127.0.0.1:8400", "default"));
    }

    #[test]
    fn a_network_is_shown_in_the_form_in_which_it_is_judged() {
        let file: PartialSettings = toml::from_str("deny-egress = \"::ffff:127.0.0.0/104, ::1\"").unwrap();
        assert_eq!(Settings::resolve(file, PartialSettings::default()).deny_egress.to_string(), "127.0.0.0/8,::1/128");
    }

    #[test]
    fn what_config_prints_the_file_takes() {
        let settings = Settings::resolve(PartialSettings::default(), PartialSettings::default());
        let printed: String = settings
            .values_for_display()
            .iter()
            .map(|(name, value)| format!("{} = {value:?}\n", name.replace('_', "-")))
            .collect();
        let file: PartialSettings = toml::from_str(&printed).unwrap();
        assert_eq!(
            Settings::resolve(file, PartialSettings::default()).values_for_display(),
            settings.values_for_display()
        );
        let plain: PartialSettings = toml::from_str("max-in-flight = 7\ndisk-reserve = 1000").unwrap();
        assert_eq!((plain.max_in_flight, plain.disk_reserve), (Some(Count(7)), Some(Size(1_000))));
    }

    #[test]
    fn a_wrong_setting_is_refused_by_name_with_the_way_out() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert!(
            wrong("retention = \"7d\"\nretention = \"8d\"").contains("line 2, retention: it is given twice; keep one")
        );
        assert!(wrong("retentoin = \"7d\"").contains("retentoin is no setting; did you mean retention?"));
        assert!(wrong("retention = 5").ends_with("retention: it is the number 5; use a text"));
        assert!(wrong("allow-egress = [\"127.0.0.0/8\"]").contains("several values go into one text"));
        for broken in ["listen = null", "retention = \"5d", "retention 5d", "log = info"] {
            assert!(wrong(broken).contains("not TOML; write a name, = and a value"), "{}", wrong(broken));
        }
        let week = wrong("log = \"info\"\nretention = \"week\"");
        assert!(week.contains("in line 2, retention: ") && week.contains("such as 30s"), "{week}");
        assert!(wrong("allow-egress = \"here\"").contains("127.0.0.0/8"));
        let mixed = wrong("deny-egress = \"::ffff:127.0.0.0/90\"");
        assert!(mixed.contains("deny-egress: ") && mixed.contains("write the IPv4 networks as such"), "{mixed}");
        assert!(wrong("disk-reserve = \"5 apples\"").contains("MiB"));
        assert!(wrong("listen = 8400").contains("127.0.0.1:8400"));
    }

    #[test]
    fn a_log_filter_names_parts_that_there_are() {
        let listed: Vec<&str> =
            include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("pub mod ")).collect();
        for module in listed {
            let filter = format!("posthaste::{}=debug", module.trim_end_matches(';'));
            assert!(filter.parse::<LogFilter>().is_ok(), "{filter}");
        }
        let wrong = "posthaste::lifecyle=debug".parse::<LogFilter>().unwrap_err();
        assert!(wrong.contains("no part \"lifecyle\"") && wrong.contains("lifecycle"), "{wrong}");
    }

    #[test]
    fn a_log_filter_names_levels_and_silences_nothing_by_mistake() {
        for text in
            ["off", "WARN", "info,posthaste=debug", "posthaste=debug", "warn,hyper=trace", "info,[request]=debug"]
        {
            assert_eq!(text.parse::<LogFilter>().map(|filter| filter.0), Ok(text.to_owned()));
        }
        assert_eq!("".parse::<LogFilter>(), Ok(LogFilter("info".into())), "an empty variable is none");
        for (text, needle) in [
            ("loud", "\"loud\" is not a level"),
            ("posthaste", "\"posthaste\" is not a level"),
            ("info,loud", "\"loud\" is not a level"),
            ("posthaste=loud", "is not a log filter"),
            ("posthste=debug", "nothing of posthaste itself"),
        ] {
            let why = text.parse::<LogFilter>().unwrap_err();
            assert!(why.contains(needle) && why.contains("warn, info, debug"), "{text}: {why}");
        }
    }

    #[test]
    fn a_mail_server_that_cannot_be_used_is_refused_and_its_password_is_not_shown() {
        let refused = |text: &str| {
            let given: PartialSettings = toml::from_str(text).unwrap();
            let settings = Settings::resolve(given, PartialSettings::default());
            let why = settings.check().unwrap_err().to_string();
            assert!(!why.contains("hush") && !format!("{settings:?}").contains("hush"), "{why}");
            why
        };
        assert!(refused("smtp = \"smtp://ops:hush@mail.example.com\"").contains("smtp-password-file"));
        assert!(refused("smtp = \"smtp://ops:hu#sh@mail.example.com\"").starts_with("smtp is wrong"));
        assert!(refused("smtp = \"smtp://ops@mail.example.com\"").contains("\"ops\""));
        assert!(refused("smtp-password-file = \"pw\"").contains("smtp names no user"));
        assert!(refused("smtp = \"smtp://mail.example.com\"\nsmtp-password-file = \"pw\"").contains("pw"));
        let wrong = toml::from_str::<PartialSettings>("mail-from = \"somebody\"").unwrap_err().to_string();
        assert!(wrong.contains("mail-from") && wrong.contains("<posthaste@example.com>"), "{wrong}");
        assert!("A <a@example.com>\r\nBcc: b@example.com".parse::<Mailbox>().is_err());
    }

    #[test]
    fn mail_settings_read_and_print_alike() {
        let text = "smtp = \"smtp://ops@mail.example.com:2587?tls=required\"\nsmtp-password-file = \"/run/pw\"\n\
                    mail-from = \"Hooks <hooks@example.com>\"\n";
        let settings = Settings::resolve(toml::from_str(text).unwrap(), PartialSettings::default());
        settings.check().unwrap();
        for (name, value) in settings.values_for_display() {
            let line = format!("{} = {value:?}", name.replace('_', "-"));
            assert_eq!(text.contains(&line), name.contains("smtp") || name.contains("mail"), "{line}");
        }
        let nothing: PartialSettings = toml::from_str("smtp = \"\"\nsmtp-password-file = \"\"").unwrap();
        assert_eq!(
            (nothing.smtp, nothing.smtp_password_file),
            (Some(OptionalMailServer::None), Some(OptionalFilePath(None)))
        );
    }

    #[test]
    fn a_database_is_never_shown_with_its_password() {
        let url = "postgres://ops:hush@db.example.com/app";
        let given = parse(&format!("database-url = {url:?}")).unwrap();
        assert!(!format!("{given:?}").contains("hush"));
        let settings = Settings::resolve(given, PartialSettings::default());
        settings.check().unwrap();
        let shown = settings.values_for_display().into_iter().find(|(name, _)| *name == "database_url").unwrap();
        assert_eq!(shown.1, "postgres://ops@db.example.com/app");
        assert!(!format!("{settings:?}").contains("hush"));
        assert_eq!(settings.database().unwrap().unwrap().reveal(), url);
        for text in [
            "database-url = \"postgres://ops:hush@db",
            "database-url = postgres://ops:hush@db",
            "database-url = \"mysql://ops:hush@db/app\"",
            "database-url = \"postgres://ops:hush@db/app\"\ndatabase-url-file = \"x\"",
            "database-url = \"postgres://ops:hush@db/app\"\ndatabase-url = \"postgres://ops:hush@db/app\"",
        ] {
            let settings = parse(text).map(|given| Settings::resolve(given, PartialSettings::default()));
            let why = settings.map_or_else(|why| why, |settings| settings.check().unwrap_err().to_string());
            assert!(why.contains("database-url") && !why.contains("hush"), "{text}: {why}");
        }
    }

    #[test]
    fn a_database_can_be_named_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        let settings =
            Settings::resolve(parse(&format!("database-url-file = {file:?}")).unwrap(), PartialSettings::default());
        let missing = format!("{:#}", settings.database().unwrap_err());
        assert!(missing.contains(&file.display().to_string()), "{missing}");
        std::fs::write(&file, "postgres://ops:hu sh@db/app").unwrap();
        let wrong = format!("{:#}", settings.database().unwrap_err());
        assert!(wrong.contains("blank") && !wrong.contains("sh@"), "{wrong}");
        std::fs::write(&file, "postgres://ops:hush@db/app\n").unwrap();
        assert_eq!(settings.database().unwrap().unwrap().reveal(), "postgres://ops:hush@db/app");
        let none = Settings::resolve(PartialSettings::default(), PartialSettings::default());
        assert_eq!(none.database().unwrap(), None);
    }

    #[test]
    fn health_is_answered_at_an_address_of_its_own_or_nowhere() {
        let settings = |text: &str| Settings::resolve(parse(text).unwrap(), PartialSettings::default());
        assert_eq!(settings("").health_listen, OptionalListenAddress(None));
        assert_eq!(settings("health-listen = \"\"").health_listen, OptionalListenAddress(None));
        let apart = settings("health-listen = \"127.0.0.1:8401\"");
        apart.check().unwrap();
        assert_eq!(apart.health_listen.to_string(), "127.0.0.1:8401");
        let same = settings("health-listen = \"127.0.0.1:8400\"").check().unwrap_err().to_string();
        assert_eq!(same, "health-listen is 127.0.0.1:8400, and so is listen; give them different ports");
        assert!(parse("health-listen = \"8401\"").unwrap_err().contains("127.0.0.1:8400"));
    }

    #[test]
    fn a_lease_is_neither_a_blink_nor_an_hour() {
        for (lease, is_fine) in [("1s", false), ("2s", true), ("5m", true), ("301s", false)] {
            let settings = Settings::resolve(parse(&format!("lease = {lease:?}")).unwrap(), PartialSettings::default());
            assert_eq!(settings.check().is_ok(), is_fine, "{lease}");
        }
    }

    #[test]
    fn the_portals_host_is_another_than_that_of_the_gateway() {
        for (portal, is_fine) in [("https://webhooks.example.com", true), ("https://hooks.example.com", false)] {
            let file = format!("public-url = \"https://hooks.example.com/a\"\nportal-url = {portal:?}");
            let checked = Settings::resolve(parse(&file).unwrap(), PartialSettings::default()).check();
            assert_eq!(checked.is_ok(), is_fine, "{portal}: {checked:?}");
        }
        assert!(parse("portal-url = \"https://example.com/portal\"").unwrap_err().contains("without a path"));
    }

    #[test]
    fn the_public_url_is_one_that_links_can_begin_with() {
        for (text, kept) in [
            ("", ""),
            ("https://hooks.example.com", "https://hooks.example.com"),
            ("https://example.com/hooks/", "https://example.com/hooks"),
            ("http://127.0.0.1:8400/", "http://127.0.0.1:8400"),
        ] {
            assert_eq!(text.parse::<OptionalPublicUrl>().unwrap().to_string(), kept);
        }
        for text in [
            "example.com",
            "ftp://example.com",
            "https://u:p@example.com",
            "https://example.com/?a",
            "https://e.com/#x",
            "https://e.com/\n",
        ] {
            assert!(text.parse::<OptionalPublicUrl>().unwrap_err().contains("https://hooks.example.com"), "{text}");
        }
    }
}
