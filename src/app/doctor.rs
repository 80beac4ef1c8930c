//! Examines an installation: the machine, the files, the store, and what the endpoints
//! need.
//!
//! A running gateway examines itself, for `GET /v1/doctor`. Of a stopped one the same is
//! examined from its settings and its data directory, as far as that can be told.
//! Nothing is changed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::store_handle::refuse_unusable;
use crate::api::doctor::{Examiner, SeenProxy};
use crate::clock::{Clock, ClockCheckpoint, SystemClock};
use crate::config::Settings;
use crate::lifecycle::Gateway;
use crate::lifecycle::attention;
use crate::lifecycle::egress::Egress;
use crate::model::attention::{AttentionItem, OutboxFacts, Severity, of_outbox};
use crate::model::database::DatabaseUrl;
use crate::model::finding::DoctorFinding;
use crate::store::embedded::inspect::{self, StoreInspection};
use crate::store::postgres::inspect::{self as database, DatabaseInspection};
use crate::store::seal::Seal;
use crate::store::{PageRequest, TokenScope};
use catalog::CatalogFacts;
use machine::ClockChanges;

mod backup_folder;
mod catalog;
mod files;
mod machine;
mod retention;

/// What ends within this time is warned of.
const SOON: Duration = Duration::from_secs(14 * 86_400);
/// Most tokens that are looked at.
const TOKENS_MAX: usize = 1_000;

fn ends_soon(end: Timestamp, now: Timestamp) -> bool {
    end.duration_since(now).as_secs() < SOON.as_secs() as i64
}

/// A running gateway that examines itself.
pub struct GatewayExaminer {
    settings: Settings,
    gateway: Arc<Gateway>,
    egress: Arc<Egress>,
}

impl GatewayExaminer {
    /// Creates the examiner of a gateway with these settings.
    pub fn new(settings: &Settings, gateway: Arc<Gateway>, egress: Arc<Egress>) -> Self {
        Self { settings: settings.clone(), gateway, egress }
    }

    async fn catalog(&self) -> CatalogFacts {
        let store = &self.gateway.store;
        let endpoints = store.tenants().iter().flat_map(|tenant| store.endpoints(&tenant.id)).collect();
        let page = PageRequest { cursor: None, limit: TOKENS_MAX };
        let tokens = store.tokens(TokenScope::All, page).await.map(|page| page.data).unwrap_or_default();
        CatalogFacts { endpoints, tokens: tokens.into_iter().map(Arc::new).collect() }
    }

    /// Judges what the gateway itself reports, and its self-test.
    async fn operation(&self) -> Vec<DoctorFinding> {
        let collected = attention::collect(&self.gateway, None).await;
        let count = |severity: Severity| collected.items.iter().filter(|item| item.severity == severity).count();
        let (critical, warnings) = (count(Severity::Critical), count(Severity::Warning));
        let detail = format!("{critical} critical matters and {warnings} warnings need attention");
        let way_out = "`posthaste status` lists them, with the command that helps";
        let attention = match (critical, warnings) {
            (0, 0) => DoctorFinding::ok("attention", "nothing needs attention"),
            (0, _) => DoctorFinding::warning("attention", detail, way_out),
            _ => DoctorFinding::problem("attention", detail, way_out),
        };
        let mut findings = vec![attention];
        findings.extend(outboxes(&self.gateway.metrics.outbox_facts()));
        if self.settings.self_test.0 {
            let age = self.gateway.metrics.self_test_age(self.gateway.clock.now());
            findings.push(judge_self_test(age));
        }
        findings
    }
}

fn judge_self_test(age: Option<Duration>) -> DoctorFinding {
    match age {
        Some(age) if age > Duration::from_secs(300) => DoctorFinding::problem(
            "self_test",
            format!("no event that the gateway sent itself has arrived for {} seconds", age.as_secs()),
            "see the log: nothing may be delivered",
        ),
        Some(age) => {
            DoctorFinding::ok("self_test", format!("an event came all the way through {} seconds ago", age.as_secs()))
        }
        None => DoctorFinding::ok("self_test", "the first is still to come"),
    }
}

#[async_trait]
impl Examiner for GatewayExaminer {
    async fn examine(&self, seen: SeenProxy) -> Vec<DoctorFinding> {
        let (settings, now) = (&self.settings, self.gateway.clock.wall());
        let mut findings = vec![DoctorFinding::ok("gateway", "it runs, and examined itself")];
        let installation = Installation { settings, now, is_running: true, clock_jumps: self.gateway.clock.jumps() };
        let (stored, _) = installation.examine(Some(seen)).await;
        findings.extend(stored);
        findings.extend(catalog::of_catalog(&self.catalog().await, settings, &self.egress, now).await);
        findings.push(files::mail(settings, self.gateway.clock.clone()).await);
        findings.extend(self.operation().await);
        findings
    }
}

/// Examines a stopped installation from its settings and its data directory.
pub async fn examine_stopped(settings: &Settings) -> Vec<DoctorFinding> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let now = clock.wall();
    if let Err(problem) = settings.check() {
        return vec![DoctorFinding::of_failure("settings", &format!("{problem:#}"))];
    }
    let mut findings = vec![DoctorFinding::ok("settings", "every setting can be used")];
    let installation = Installation { settings, now, is_running: false, clock_jumps: 0 };
    let (stored, catalog) = installation.examine(None).await;
    findings.extend(stored);
    match super::build_egress(settings, Vec::new()) {
        Err(problem) => findings.push(DoctorFinding::of_failure("egress_rules", &format!("{problem:#}"))),
        Ok(egress) => findings.extend(installation.catalog(catalog, &egress).await),
    }
    findings.push(files::mail(settings, clock).await);
    findings
}

/// The endpoints and tokens of a stopped installation.
enum StoredCatalog {
    /// There is no store yet.
    None,
    /// The catalog cannot be read with the settings and keys at hand.
    Unreadable,
    /// The catalog is in the data directory, and the key fits.
    InFolder(Seal),
    /// The catalog is in a database, and the key fits.
    InDatabase(DatabaseUrl, Seal),
}

/// An installation as its settings describe it.
struct Installation<'a> {
    settings: &'a Settings,
    now: Timestamp,
    is_running: bool,
    /// How often the wall clock was set since the gateway started.
    clock_jumps: u64,
}

impl Installation<'_> {
    /// Examines machine, files and store. Returns where the catalog is.
    async fn examine(&self, seen: Option<SeenProxy>) -> (Vec<DoctorFinding>, StoredCatalog) {
        let settings = self.settings;
        let mut findings =
            vec![files::permissions(settings), files::listening(settings, self.now), files::proxies(settings, seen)];
        findings.extend(machine::of_process(settings));
        let database = settings.database();
        let (stored, catalog) = match database {
            Err(problem) => {
                let failure = DoctorFinding::of_failure("database", &format!("{problem:#}"));
                (vec![failure], StoredCatalog::Unreadable)
            }
            Ok(Some(url)) => self.database(url).await,
            Ok(None) => self.embedded(),
        };
        findings.extend(stored);
        (findings, catalog)
    }

    fn embedded(&self) -> (Vec<DoctorFinding>, StoredCatalog) {
        let folder = &self.settings.data.0;
        let mut findings = Vec::new();
        if !folder.exists() {
            let detail = format!("there is no data directory {}; the first start makes it", folder.display());
            findings.push(DoctorFinding::warning(
                "store",
                detail,
                "name the one that is there with --data, if there is one",
            ));
            return (findings, StoredCatalog::None);
        }
        if !self.is_running && inspect::is_in_use(folder) {
            findings.push(DoctorFinding::problem(
                "store",
                format!("a gateway runs on {}, and could not be asked", folder.display()),
                "name its address with --server and its admin token with --token-file",
            ));
        }
        findings.extend(machine::of_data_directory(self.settings, false));
        if let Err(problem) = refuse_unusable(folder) {
            findings.push(DoctorFinding::of_failure("store", &format!("{problem:#}")));
            return (findings, StoredCatalog::Unreadable);
        }
        let inspected = inspect::inspect(folder);
        findings.push(machine::clock(self.settings, self.now, &self.clock_changes(inspected.as_ref().ok())));
        let bytes = inspected.as_ref().ok().and_then(Option::as_ref).map_or(0, |seen| seen.bytes);
        findings.push(backup_folder::examine(self.settings, bytes));
        match inspected {
            Err(problem) => {
                let way_out = "restore a backup (docs/backup.md)";
                findings.push(DoctorFinding::problem("store", format!("{problem:#}"), way_out));
                (findings, StoredCatalog::Unreadable)
            }
            Ok(None) => {
                findings.push(DoctorFinding::ok("store", format!("there is none in {} yet", folder.display())));
                findings.push(files::master_key(self.settings, None).0);
                (findings, StoredCatalog::None)
            }
            Ok(Some(seen)) => {
                findings.push(judge_schema(seen.version, seen.known_version));
                findings.extend(self.retention(&seen));
                let (key, seal) = files::master_key(self.settings, seen.key_check.as_deref());
                findings.push(key);
                let seal = seal.filter(|_| seen.version == seen.known_version);
                (findings, seal.map_or(StoredCatalog::Unreadable, StoredCatalog::InFolder))
            }
        }
    }

    /// Returns what the gateway, or the checkpoint of a stopped one, tells of the clock.
    fn clock_changes(&self, inspected: Option<&Option<StoreInspection>>) -> ClockChanges {
        let note = inspected.and_then(Option::as_ref).and_then(|seen| seen.clock.as_deref());
        let checkpoint = note.and_then(|note| serde_json::from_str::<ClockCheckpoint>(note).ok());
        ClockChanges {
            jumps: self.clock_jumps,
            since_stop_ms: checkpoint.filter(|_| !self.is_running).and_then(|checkpoint| checkpoint.wall_step_ms()),
        }
    }

    fn retention(&self, seen: &StoreInspection) -> Option<DoctorFinding> {
        let kept_for = self.now.duration_since(seen.oldest_event_at?).unsigned_abs();
        retention::examine(self.settings, seen, kept_for)
    }

    async fn database(&self, url: DatabaseUrl) -> (Vec<DoctorFinding>, StoredCatalog) {
        let seen = match database::inspect(&url).await {
            Ok(seen) => seen,
            Err(problem) => {
                let way_out = "start the database, or mend --database-url";
                let problem = DoctorFinding::problem("database", format!("{problem:#}"), way_out);
                return (vec![problem], StoredCatalog::Unreadable);
            }
        };
        let mut findings = vec![judge_database(&seen), judge_round_trip(seen.round_trip)];
        findings.extend(seen.warnings.iter().map(|warning| DoctorFinding::of_failure("database_settings", warning)));
        if seen.warnings.is_empty() {
            findings.push(DoctorFinding::ok("database_settings", "what the database confirms is on its disk"));
        }
        findings.push(machine::judge_clock_of_database(self.now.duration_since(seen.now).as_millis() as i64));
        findings.push(match seen.version {
            Some(version) => judge_schema(version, seen.known_version),
            None => DoctorFinding::ok("schema", "there is none yet; the first start makes it"),
        });
        let (key, seal) = files::master_key(self.settings, seen.key_check.as_deref());
        findings.push(key);
        let catalog = match (seen.version, seal) {
            (None, _) => StoredCatalog::None,
            (Some(version), Some(seal)) if version == seen.known_version => StoredCatalog::InDatabase(url, seal),
            (Some(_), _) => StoredCatalog::Unreadable,
        };
        (findings, catalog)
    }

    /// Examines what endpoints and tokens need, if they can be read without a gateway.
    async fn catalog(&self, catalog: StoredCatalog, egress: &Egress) -> Vec<DoctorFinding> {
        let read = match catalog {
            StoredCatalog::None => return Vec::new(),
            StoredCatalog::Unreadable => Err(anyhow::anyhow!("see the problems above")),
            StoredCatalog::InFolder(seal) => inspect::catalog_of(&self.settings.data.0, &seal),
            StoredCatalog::InDatabase(url, seal) => database::catalog_of(&url, &seal).await,
        };
        match read {
            Ok((endpoints, tokens)) => {
                catalog::of_catalog(&CatalogFacts { endpoints, tokens }, self.settings, egress, self.now).await
            }
            Err(problem) => vec![DoctorFinding::warning(
                "endpoints",
                format!("the endpoints of this store cannot be read: {problem:#}"),
                "start the gateway, and run `posthaste doctor` again",
            )],
        }
    }
}

fn judge_schema(version: usize, known: usize) -> DoctorFinding {
    match version.cmp(&known) {
        std::cmp::Ordering::Equal => {
            DoctorFinding::ok("schema", format!("version {version}, the newest that is known"))
        }
        std::cmp::Ordering::Less => DoctorFinding::warning(
            "schema",
            format!("version {version}, of an older posthaste; the next start of this one makes it version {known}"),
            "make a backup before that, since an older posthaste cannot read it afterwards: of a stopped gateway with \
             `posthaste backup FOLDER --data DIR`, of PostgreSQL with pg_dump",
        ),
        std::cmp::Ordering::Greater => DoctorFinding::problem(
            "schema",
            format!("version {version}, of a newer posthaste; this one knows version {known}"),
            "run the newer posthaste, or restore a backup from before",
        ),
    }
}

fn judge_database(seen: &DatabaseInspection) -> DoctorFinding {
    let server = format!("PostgreSQL {}", seen.server);
    if !seen.is_supported {
        DoctorFinding::problem("database", server, "posthaste needs PostgreSQL 15 or newer")
    } else if seen.is_standby {
        DoctorFinding::problem("database", format!("{server} takes no writes"), "name the primary in --database-url")
    } else if seen.max_connections < 40 * seen.nodes.max(1) {
        let detail = format!("{server} takes {} connections for {} nodes", seen.max_connections, seen.nodes);
        DoctorFinding::warning("database", detail, "raise max_connections (docs/scale.md), or put a pooler before it")
    } else {
        DoctorFinding::ok("database", format!("{server}, with {} nodes at present", seen.nodes))
    }
}

fn judge_round_trip(median: Duration) -> DoctorFinding {
    let detail = format!("a round trip to the database takes {:.1} ms", median.as_secs_f64() * 1_000.0);
    match median.as_millis() {
        0..10 => DoctorFinding::ok("database_latency", detail),
        _ => DoctorFinding::warning("database_latency", detail, "put gateway and database into the same place"),
    }
}

/// Examines the outboxes that this node relays, or would; nothing if there is none.
fn outboxes(known: &[OutboxFacts]) -> Vec<DoctorFinding> {
    if known.is_empty() {
        return Vec::new();
    }
    let found: Vec<DoctorFinding> = known.iter().flat_map(outbox_findings).collect();
    if found.is_empty() {
        let detail = format!("{} relayed, and no row was refused or has waited for a minute", known.len());
        return vec![DoctorFinding::ok("outboxes", detail)];
    }
    found
}

/// Returns what is not well about an outbox. Whoever asks is told at once that it
/// cannot be reached, and attention only after a while.
fn outbox_findings(facts: &OutboxFacts) -> Vec<DoctorFinding> {
    let found: Vec<DoctorFinding> = of_outbox(facts).into_iter().map(outbox_finding).collect();
    match &facts.failure {
        Some(failure) if found.is_empty() => {
            let detail = format!("the outbox at {} cannot be relayed at this moment: {failure}", facts.description);
            vec![DoctorFinding::warning("outboxes", detail, "posthaste outbox status")]
        }
        Some(_) | None => found,
    }
}

fn outbox_finding(item: AttentionItem) -> DoctorFinding {
    match item.severity {
        Severity::Critical => DoctorFinding::problem("outboxes", item.reason, item.command),
        Severity::Warning => DoctorFinding::warning("outboxes", item.reason, item.command),
    }
}
