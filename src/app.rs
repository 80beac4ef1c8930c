//! Builds the gateway from its parts, starts it, and stops it in the right order.
//!
//! This module is the only one that names a concrete store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use crate::api::server::Listener;
use crate::api::{self, ApiState, auth};
use crate::clock::{Clock, EngineClock, WallSource};
use crate::config::{OptionalMailServer, Settings};
use crate::lifecycle::Gateway;
use crate::lifecycle::admin_token::AdminToken;
use crate::lifecycle::backups::Backups;
use crate::lifecycle::cluster;
use crate::lifecycle::deliver::DeliveryContext;
use crate::lifecycle::deliver::connect::Connector;
use crate::lifecycle::deliver::self_test_receiver::SelfTestReceiver;
use crate::lifecycle::deliver::send::HttpSender;
use crate::lifecycle::disk_space::{self, DiskSpace};
use crate::lifecycle::dispatch::Dispatcher;
use crate::lifecycle::dispatch::limits::NodeLimits;
use crate::lifecycle::egress::Egress;
use crate::lifecycle::egress::guard::{Guard, is_of_this_machine};
use crate::lifecycle::egress::resolver::NameResolver;
use crate::lifecycle::expire;
use crate::lifecycle::expiry_schedule::ExpirySchedule;
use crate::lifecycle::figures::{self, FigureRecorder};
use crate::lifecycle::intake::Intake;
use crate::lifecycle::jobs;
use crate::lifecycle::links::{Links, NoPublicUrl};
use crate::lifecycle::mail::smtp::{SmtpMailer, read_password};
use crate::lifecycle::mail::{MailQueue, Mailer};
use crate::lifecycle::notifier::Notifier;
use crate::lifecycle::publish_status;
use crate::lifecycle::retention::{self, Retention};
use crate::lifecycle::scrub;
use crate::lifecycle::self_test;
use crate::lifecycle::share_accept_delays;
use crate::lifecycle::shared_answers::SharedAnswers;
use crate::metrics::Metrics;
use crate::model::audit::Initiator;
use crate::model::endpoint::EndpointDefaults;
use crate::model::health::AutoPauseLimits;
use crate::model::id::TenantId;
use crate::model::setting_in_force::SettingInForce;
use crate::model::size::Size;
use crate::model::source_address::SourceAddresses;
use crate::model::tenant::{Tenant, TenantQuota};
use crate::store::Store;
use crate::store::embedded::LOG_BYTES_MAX;
use admin_token::{admin_token, reload_admin_token};
use store_handle::StoreHandle;
pub use store_handle::host_name;
use trace_export::TraceExport;

mod admin_token;
pub mod backup;
mod clock_checkpoints;
pub mod doctor;
mod front_tls;
pub mod keys;
mod live_keys;
pub mod move_store;
mod open_files;
pub mod outboxes;
mod pages;
mod path_prefix;
mod permissions;
mod portal_host;
mod startup;
mod store_handle;
mod trace_export;

/// Interval at which the free disk space is checked while no events come in.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Options of one start besides the settings.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// Whether to make a new admin token.
    pub is_token_renewed: bool,
    /// Whether to begin with an empty store in a data directory that has lost its
    /// own.
    pub is_store_new: bool,
    /// Settings with where they came from, as the API shows them.
    pub settings_in_force: Vec<SettingInForce>,
    /// Notified to end a start that waits for its database.
    pub stop: Arc<Notify>,
}

/// A running gateway.
pub struct App {
    /// Address that the API is served on.
    pub address: SocketAddr,
    /// New admin token, if this start made one.
    pub new_token: Option<String>,
    /// File of the master key, if this start made it.
    pub new_key: Option<PathBuf>,
    /// Location of the store, for people.
    pub store_description: String,
    store: StoreHandle,
    gateway: Arc<Gateway>,
    api: Arc<ApiState>,
    checkpoints: Option<clock_checkpoints::ClockCheckpointer>,
    figures: Arc<FigureRecorder>,
    stop_serving: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    probes: Option<startup::StartupServer>,
    outboxes: outboxes::OutboxRelays,
    traces: Option<TraceExport>,
    tasks: Vec<JoinHandle<()>>,
    stop_timeout: Duration,
}

impl App {
    /// Opens the store, starts delivering, then serves the API.
    pub async fn start(settings: &Settings, options: StartOptions) -> anyhow::Result<Self> {
        // The address is bound first, so that a start that fails on it leaves no files behind.
        let socket = TcpListener::bind(settings.listen.0)
            .await
            .with_context(|| format!("cannot listen on {}; choose another address with --listen", settings.listen))?;
        let address = socket.local_addr()?;
        let pages_listener = pages::bind_pages_address(settings).await?;
        let started = api::health::GatewayCell::default();
        let (probe_address, probes) = match settings.health_listen.0 {
            Some(address) => Some(startup::StartupServer::to_probes(address, started.clone()).await?).unzip(),
            None => (None, None),
        };
        open_files::raise_open_files_limit(settings.max_connections.0 + settings.max_in_flight.0);
        let source = if settings.database()?.is_some() { WallSource::Database } else { WallSource::Machine };
        let engine = Arc::new(EngineClock::new(source));
        let clock: Arc<dyn Clock> = engine.clone();
        let metrics = Arc::new(Metrics::new(clock.wall()));
        let listener = Listener { socket, tls: front_tls::prepare_tls(settings, clock.as_ref(), &metrics)? };
        let mail = MailQueue::new(build_mailer(settings, &clock)?, clock.clone());
        let store = open_store(settings, &options, &listener, &metrics, &engine).await?;
        let checkpoints = clock_checkpoints::resume_clock(&store, engine).await?;
        ensure_tenants(store.store().as_ref(), clock.as_ref()).await?;
        let (admin, new_token) =
            admin_token(store.store().as_ref(), &settings.data.0, options.is_token_renewed).await?;
        let egress = Arc::new(build_egress(settings, [Some(address), probe_address].into_iter().flatten().collect())?);
        let clock_and_admin = (clock, AdminToken::new(admin));
        let gateway = Arc::new(build_gateway(settings, &store, egress.clone(), mail, metrics, clock_and_admin).await?);
        gateway.mail.count_in(gateway.metrics.clone());
        mail_missed(&gateway, &store);
        warn_of_forbidden(gateway.store.as_ref(), &egress);
        let (traces, mut tasks) = (TraceExport::start(settings, &gateway)?, start_background_tasks(&gateway, settings));
        let figures = Arc::new(FigureRecorder::new(gateway.clone(), settings.figures_retention));
        tasks.push(tokio::spawn(figures::run(figures.clone())));
        let api = Arc::new(api_state(settings, options.settings_in_force, gateway.clone(), &store, egress));
        started.set(api.clone());
        tasks.push(tokio::spawn(auth::write_uses_periodically(api.clone())));
        tasks.extend(checkpoints.clone().map(|checkpoints| tokio::spawn(async move { checkpoints.run().await })));
        tasks.extend(store.is_shared().then(|| tokio::spawn(reload_admin_token(gateway.clone()))));
        tasks.extend(front_tls::start_watching(settings, &listener, &gateway));
        let outboxes = outboxes::OutboxRelays::start(settings, &api, address)?;
        let (stop_serving, serving) = pages::start_serving(settings, listener, pages_listener, api.clone())?;
        Ok(Self {
            address,
            new_token,
            new_key: store.new_key().map(Path::to_owned),
            store_description: store.description().to_owned(),
            store,
            gateway,
            api,
            checkpoints,
            figures,
            stop_serving,
            serving,
            probes,
            outboxes,
            traces,
            tasks,
            stop_timeout: settings.stop_timeout.0,
        })
    }

    /// Stops the gateway: it is no longer ready and starts no attempts, attempts in
    /// flight finish until the deadline, then what is in memory is written and the
    /// store is closed.
    pub async fn stop(self) {
        self.api.stopping.store(true, Ordering::Relaxed);
        self.gateway.notifier.tail().close();
        let in_flight = self.gateway.dispatcher.in_flight();
        info!(
            "stopping: no new attempts are started, and {in_flight} in flight may finish; a second signal ends the process at once"
        );
        self.outboxes.stop().await;
        self.api.backups.stop().await;
        self.gateway.store.retire();
        let left = self.gateway.dispatcher.stop(self.stop_timeout).await;
        if left > 0 {
            warn!("{left} attempts still in flight at the deadline were cut off; they will be made again");
        }
        auth::write_uses(&self.api).await;
        if let Some(checkpoints) = self.checkpoints {
            checkpoints.write().await;
        }
        // Other nodes take over the shards at once, while this node sends its last responses.
        self.store.leave().await;
        let _ = self.stop_serving.send(());
        let _ = self.serving.await;
        self.figures.finish().await;
        drop(self.figures);
        if let Some(traces) = self.traces {
            traces.finish().await;
        }
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
        let unsent = self.gateway.mail.close();
        if unsent > 0 {
            warn!("{unsent} unsent mails to owners of endpoints are dropped");
        }
        if let Some(probes) = self.probes {
            probes.stop().await;
        }
        drop(self.api);
        drop(self.gateway);
        self.store.close().await;
        info!("stopped");
    }
}

/// Opens the store that the settings name. While the database of a shared store
/// is away, a server on the listener's socket answers that the gateway is starting.
async fn open_store(
    settings: &Settings,
    options: &StartOptions,
    listener: &Listener,
    metrics: &Metrics,
    clock: &Arc<EngineClock>,
) -> anyhow::Result<StoreHandle> {
    let Some(url) = settings.database()? else {
        refuse_small_reserve(settings)?;
        return StoreHandle::open_embedded(settings, metrics.commit_metrics(), options.is_store_new);
    };
    let startup_server = startup::StartupServer::start(listener, settings.trusted_proxies.0.clone())?;
    let opened = StoreHandle::open_shared(settings, &url, metrics.commit_metrics(), clock, &options.stop).await;
    startup_server.stop().await;
    opened
}

/// Builds the state of the API.
fn api_state(
    settings: &Settings,
    settings_in_force: Vec<SettingInForce>,
    gateway: Arc<Gateway>,
    store: &StoreHandle,
    egress: Arc<Egress>,
) -> ApiState {
    let reserve = (settings.disk_reserve.0, settings.data.0.clone());
    let backups = Backups::new(store.copier(), settings.backup_dir.0.clone(), reserve, gateway.clock.clone());
    ApiState {
        backups: Arc::new(backups),
        settings_in_force,
        examiner: Arc::new(doctor::GatewayExaminer::new(settings, gateway.clone(), egress.clone())),
        keys: Arc::new(live_keys::LiveKeys::new(settings, gateway.clone(), store.resealing())),
        gateway,
        egress,
        failures: api::auth_failures::AuthFailures::default(),
        uses: auth::TokenUses::default(),
        sign_ins: Default::default(),
        portal_url: settings.portal_url.0.clone(),
        portal_origins: settings.portal_origins.0.clone(),
        trusted_proxies: settings.trusted_proxies.0.clone(),
        event_bytes_max: size_in_bytes(settings.max_event_bytes),
        redacts_payloads: settings.redact_payloads.0,
        slo_target: settings.slo_target,
        store_gauges: Default::default(),
        stopping: AtomicBool::new(false),
    }
}

/// Builds the gateway on this store.
async fn build_gateway(
    settings: &Settings,
    handle: &StoreHandle,
    egress: Arc<Egress>,
    mail: MailQueue,
    metrics: Arc<Metrics>,
    (clock, admin): (Arc<dyn Clock>, AdminToken),
) -> anyhow::Result<Gateway> {
    let store = handle.store();
    let links = Links::new(settings.public_url.0.clone(), &handle.link_key().await?, retention(settings));
    refuse_thin_without_links(store.as_ref(), &links)?;
    let expiry = Arc::new(ExpirySchedule::new(settings.hold_max));
    let notifier = Notifier::new(store.clone(), mail.clone(), metrics.clone(), clock.clone());
    let self_tests = SelfTestReceiver::new(store.clone(), clock.clone());
    let called_from = egress.seen_as();
    let sender = Arc::new(HttpSender::new(Connector::new(egress)?, settings.max_in_flight.0, self_tests));
    let mut context = DeliveryContext::new(store, sender, links, expiry, notifier, clock, rand::random());
    context.logged_attempts = settings.log_attempts;
    let context = Arc::new(context);
    let dispatcher = Dispatcher::new(context.clone(), node_limits(settings));
    let space = match handle.event_bytes_in_log() {
        // The database has a disk of its own, and reports itself when that is full.
        None => DiskSpace::endless(),
        Some(in_log) => DiskSpace::watching(settings.data.0.clone(), settings.disk_reserve.0, in_log),
    };
    let intake = Intake::new(size_in_bytes(settings.ingest_memory), settings.ingest_waiting.0);
    let answers = SharedAnswers::default();
    Ok(Gateway { context, dispatcher, space, intake, mail, admin, called_from, answers, metrics })
}

/// Refuses a disk reserve so small that the store's own log could use up the space
/// for the outcomes of attempts.
fn refuse_small_reserve(settings: &Settings) -> anyhow::Result<()> {
    let min = disk_space::reserve_min(LOG_BYTES_MAX, settings.max_in_flight.0);
    if settings.disk_reserve < min {
        bail!(
            "disk-reserve is {}; use at least {min}: the store's log may grow by {}, and the outcomes of {} requests \
             in flight (max-in-flight) must be written after that",
            settings.disk_reserve,
            Size(LOG_BYTES_MAX),
            settings.max_in_flight
        );
    }
    Ok(())
}

fn node_limits(settings: &Settings) -> NodeLimits {
    NodeLimits {
        slots: settings.max_in_flight.0,
        per_host: Some(settings.max_in_flight_per_host.0).filter(|most| *most > 0),
        quarantine: AutoPauseLimits { refusals: settings.pause_refusals.0, failing_for: settings.pause_failing },
    }
}

/// Builds the egress rules; `own` are the addresses that this gateway listens on.
fn build_egress(settings: &Settings, own: Vec<SocketAddr>) -> anyhow::Result<Egress> {
    let guard = Guard {
        allowed: settings.allow_egress.0.clone(),
        denied: settings.deny_egress.0.clone(),
        ports: settings.allow_port.0.clone(),
        is_http_allowed: settings.allow_http.0,
        own,
    };
    let proxy = settings.proxy()?;
    if let Some(proxy) = &proxy {
        info!("receivers are called through proxy {proxy}; the gateway itself resolves and checks their addresses");
    }
    refuse_foreign_sources(settings.egress_bind)?;
    let egress = Egress::new(guard, NameResolver::new(&settings.dns)?, proxy);
    Ok(egress.from_addresses(settings.egress_bind, settings.egress_addresses.0.clone()))
}

/// Refuses source addresses that this machine does not have: nothing could be called.
fn refuse_foreign_sources(sources: SourceAddresses) -> anyhow::Result<()> {
    match sources.all().into_iter().find(|address| !is_of_this_machine(*address)) {
        Some(address) => bail!(
            "egress-bind is {address}, which is no address of this machine; name one that `ip address` shows, or leave \
             it out"
        ),
        None => Ok(()),
    }
}

fn size_in_bytes(setting: Size) -> usize {
    usize::try_from(setting.0).unwrap_or(usize::MAX)
}

fn retention(settings: &Settings) -> Retention {
    Retention {
        finished: settings.retention,
        dead: settings.dead_letter_retention,
        unmatched: settings.unmatched_retention.0.unwrap_or(settings.retention),
        audit: settings.audit_retention,
    }
}

/// Refuses to start if thin endpoints exist and `--public-url` is not set, because
/// their events could not be delivered.
fn refuse_thin_without_links(store: &dyn Store, links: &Links) -> anyhow::Result<()> {
    let tenants = store.tenants();
    let mut endpoints = tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id));
    match endpoints.find(|endpoint| endpoint.settings.may_be_thin() && !links.is_open()) {
        None => Ok(()),
        Some(endpoint) => {
            bail!("endpoint {} of tenant {} is sent thin events: {NoPublicUrl}", endpoint.id, endpoint.tenant)
        }
    }
}

fn start_background_tasks(gateway: &Arc<Gateway>, settings: &Settings) -> Vec<JoinHandle<()>> {
    let retention = retention(settings);
    let (dispatching, expiring) = (gateway.clone(), gateway.clone());
    let mail = gateway.mail.clone();
    let self_test = settings.self_test.0.then(|| tokio::spawn(self_test::run(gateway.clone())));
    let mut tasks = vec![
        tokio::spawn(async move {
            if let Err(problem) = dispatching.dispatcher.run().await {
                error!("no deliveries are made: the dispatcher could not read the store at the start: {problem}");
            }
        }),
        tokio::spawn(expire::run(expiring)),
        tokio::spawn(scrub::run(gateway.clone())),
        tokio::spawn(cluster::run(gateway.clone())),
        tokio::spawn(jobs::run(gateway.clone())),
        tokio::spawn(publish_status::run(gateway.clone())),
        tokio::spawn(share_accept_delays::run(gateway.clone())),
        tokio::spawn(retention::run(gateway.clone(), retention)),
        tokio::spawn(async move { mail.run().await }),
        tokio::spawn(watch_disk(gateway.clone())),
    ];
    tasks.extend(self_test);
    tasks
}

/// Checks the free disk space once a second, so that a reached reserve is reported
/// also while no events come in.
async fn watch_disk(gateway: Arc<Gateway>) {
    while gateway.space.is_watching() {
        gateway.space.is_low(gateway.clock.now());
        tokio::time::sleep(DISK_CHECK_INTERVAL).await;
    }
}

/// Returns the mailer, if a mail server is configured.
fn build_mailer(settings: &Settings, clock: &Arc<dyn Clock>) -> anyhow::Result<Option<Arc<dyn Mailer>>> {
    let OptionalMailServer::Server(server) = &settings.smtp else { return Ok(None) };
    let password = settings.smtp_password_file.0.as_deref().map(read_password).transpose()?;
    let mailer = SmtpMailer::new(server.clone(), password, settings.mail_from.0.clone(), clock.clone());
    Ok(Some(Arc::new(mailer.context("cannot prepare mails for smtp")?)))
}

/// Writes the mails that a stop or a crash kept from being sent. With other nodes,
/// `lifecycle::cluster` does so for each shard that is gained.
fn mail_missed(gateway: &Gateway, store: &StoreHandle) {
    if !store.is_shared() {
        gateway.notifier.mail_missed(|_| true);
    }
}

/// Warns of endpoints that the egress rules forbid: their deliveries would die
/// soon, for example because `--allow-egress` was forgotten.
fn warn_of_forbidden(store: &dyn Store, egress: &Egress) {
    let tenants = store.tenants();
    let endpoints = tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id));
    let forbidden: Vec<_> = endpoints
        .filter_map(|endpoint| egress.check_text(&endpoint.settings.url).err().map(|why| (endpoint.id, why)))
        .collect();
    if let Some((first, why)) = forbidden.first() {
        let count = forbidden.len();
        warn!(endpoint.id = %first, "egress rules forbid {count} endpoints, so their deliveries will die; the first is {first}: {why}");
    }
}

/// Creates the tenants that every installation has. Several nodes may do so at
/// once, because they write the same.
async fn ensure_tenants(store: &dyn Store, clock: &dyn Clock) -> anyhow::Result<()> {
    for (id, name) in [(TenantId::DEFAULT, "Default"), (TenantId::SYSTEM, "About the gateway itself")] {
        let id: TenantId = id.parse()?;
        if store.tenant(&id).is_some() {
            continue;
        }
        let tenant = Tenant {
            id,
            name: name.into(),
            quota: TenantQuota::default(),
            limits: Default::default(),
            defaults: EndpointDefaults::default(),
            retention: Default::default(),
            created_at: clock.now(),
        };
        store.put_tenant(&Initiator::Gateway, tenant).await?;
    }
    Ok(())
}
