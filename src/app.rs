//! Joins the parts, starts them, and stops them in the right order.
//!
//! The only place that names a concrete store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use crate::api::{self, ApiState, auth};
use crate::clock::{Clock, EngineClock, WallSource};
use crate::config::{OptionalMailServer, Settings};
use crate::lifecycle::Gateway;
use crate::lifecycle::cluster;
use crate::lifecycle::deliver::connect::Connector;
use crate::lifecycle::deliver::send::HttpSender;
use crate::lifecycle::disk_space::{self, DiskSpace};
use crate::lifecycle::dispatch::limits::NodeLimits;
use crate::lifecycle::dispatch::{Dispatcher, DispatcherParts};
use crate::lifecycle::egress::Egress;
use crate::lifecycle::egress::guard::Guard;
use crate::lifecycle::egress::resolver::NameResolver;
use crate::lifecycle::expire::{self, ExpirySchedule};
use crate::lifecycle::intake::Intake;
use crate::lifecycle::links::{Links, NoPublicUrl};
use crate::lifecycle::mail::smtp::{SmtpMailer, read_password};
use crate::lifecycle::mail::{MailQueue, Mailer};
use crate::lifecycle::notifier::Notifier;
use crate::lifecycle::publish_status;
use crate::lifecycle::retention::{self, Retention};
use crate::lifecycle::scrub;
use crate::metrics::Metrics;
use crate::model::health::Quarantine;
use crate::model::id::TenantId;
use crate::model::size::Size;
use crate::model::tenant::{EndpointDefaults, Tenant, TenantQuota};
use crate::store::Store;
use crate::store::durable_file::{put_in_place, write_unnamed};
use crate::store::embedded::LOG_BYTES_MAX;
use store_handle::StoreHandle;

mod clock_checkpoints;
pub mod keys;
pub mod move_store;
mod open_files;
mod permissions;
mod startup;
mod store_handle;

const ADMIN_TOKEN_FILE: &str = "admin-token";
const ADMIN_TOKEN_NOTE: &str = "admin_token_sha256";

/// How soon a node hears that another has made a new admin token.
const ADMIN_TOKEN_LOOK: Duration = Duration::from_secs(5);

/// How often the disk is looked at while nobody hands anything in.
const DISK_LOOK: Duration = Duration::from_secs(1);

/// What one start is told besides the settings.
#[derive(Debug, Clone, Default)]
pub struct StartOptions {
    /// Make a new admin token.
    pub is_token_renewed: bool,
    /// Begin with an empty store where there was one before.
    pub is_store_new: bool,
    /// Ends a start that waits for its database.
    pub stop: Arc<Notify>,
}

/// A running gateway.
pub struct App {
    /// The address the API is served on.
    pub address: SocketAddr,
    /// The admin token, when this start made it.
    pub new_token: Option<String>,
    /// Where the master key is, when this start made it.
    pub new_key: Option<PathBuf>,
    /// Where the store is, in words.
    pub store_description: String,
    kept: StoreHandle,
    gateway: Arc<Gateway>,
    api: Arc<ApiState>,
    checkpoints: Option<clock_checkpoints::ClockCheckpointer>,
    stop_serving: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    probes: Option<startup::StartupServer>,
    chores: Vec<JoinHandle<()>>,
    stop_timeout: Duration,
}

impl App {
    /// Opens the store, starts delivering, then opens the door.
    pub async fn start(settings: &Settings, options: StartOptions) -> anyhow::Result<Self> {
        // The address first: a start that fails on it leaves nothing behind.
        let listener = TcpListener::bind(settings.listen.0)
            .await
            .with_context(|| format!("cannot listen on {}; choose another address with --listen", settings.listen))?;
        let address = listener.local_addr()?;
        let asked = api::health::GatewayCell::default();
        let (probed_at, probes) = match settings.health_listen.0 {
            Some(address) => Some(startup::StartupServer::to_probes(address, asked.clone()).await?).unzip(),
            None => (None, None),
        };
        open_files::raise_open_files_limit(settings.max_connections.0 + settings.max_in_flight.0);
        let source = if settings.database()?.is_some() { WallSource::Database } else { WallSource::Machine };
        let engine = Arc::new(EngineClock::new(source));
        let clock: Arc<dyn Clock> = engine.clone();
        let mail = MailQueue::new(mailer(settings, &clock)?, clock.clone());
        let metrics = Arc::new(Metrics::new(clock.wall()));
        let kept = match settings.database()? {
            None => {
                refuse_small_reserve(settings)?;
                StoreHandle::open_embedded(settings, metrics.commits(), options.is_store_new)?
            }
            Some(url) => {
                let waiting = startup::StartupServer::start(&listener, settings.trusted_proxies.0.clone())?;
                let kept = StoreHandle::open_shared(settings, &url, metrics.commits(), &engine, &options.stop).await;
                waiting.end().await;
                kept?
            }
        };
        let checkpoints = clock_checkpoints::resume(&kept, engine).await?;
        ensure_tenants(kept.store().as_ref(), clock.as_ref()).await?;
        let (admin, new_token) = admin_token(kept.store().as_ref(), &settings.data.0, options.is_token_renewed).await?;
        let own = [Some(address), probed_at].into_iter().flatten().collect();
        let egress = Arc::new(egress(settings, own)?);
        let gateway = Arc::new(gateway(settings, &kept, egress.clone(), mail, metrics, clock).await?);
        gateway.mail.count_in(gateway.metrics.clone());
        gateway.notifier.mail_missed(|_| true);
        warn_of_forbidden(gateway.store.as_ref(), &egress);

        let mut chores = start_background_tasks(&gateway, settings);
        let api = Arc::new(ApiState {
            gateway: gateway.clone(),
            egress,
            admin: auth::AdminToken::new(admin),
            failures: api::auth_failures::AuthFailures::default(),
            uses: auth::TokenUses::default(),
            trusted_proxies: settings.trusted_proxies.0.clone(),
            event_bytes_max: bytes(settings.max_event_bytes),
            redacts_payloads: settings.redact_payloads.0,
            stopping: AtomicBool::new(false),
        });
        asked.set(api.clone());
        chores.push(tokio::spawn(auth::write_uses_periodically(api.clone())));
        chores.extend(checkpoints.clone().map(|checkpoints| tokio::spawn(async move { checkpoints.run().await })));
        if kept.is_shared() {
            chores.push(tokio::spawn(reload_admin_token(api.clone())));
        }
        let (stop_serving, stop) = oneshot::channel();
        let body_bytes_max = api::accept::body_bytes_max(bytes(settings.max_event_bytes));
        let limits =
            api::server::ServerLimits { body_bytes_max, ..api::server::ServerLimits::of(settings.max_connections.0) };
        let (router, proxies) = (api::router(api.clone()), settings.trusted_proxies.0.clone());
        let serving = api::server::serve(listener, router, limits, proxies, stop, settings.stop_timeout.0);
        let serving = tokio::spawn(serving);
        Ok(Self {
            address,
            new_token,
            new_key: kept.new_key().map(Path::to_owned),
            store_description: kept.description().to_owned(),
            kept,
            gateway,
            api,
            checkpoints,
            stop_serving,
            serving,
            probes,
            chores,
            stop_timeout: settings.stop_timeout.0,
        })
    }

    /// Not ready, no new attempts, what is in flight finishes, flush, close.
    pub async fn stop(self) {
        self.api.stopping.store(true, Ordering::Relaxed);
        let in_flight = self.gateway.dispatcher.in_flight();
        info!("stopping: no new attempts are started, {in_flight} in flight may finish; a second signal ends them");
        self.gateway.store.retire();
        let left = self.gateway.dispatcher.stop(self.stop_timeout).await;
        if left > 0 {
            warn!("{left} attempts were still in flight at the deadline; they will be made again");
        }
        auth::write_uses(&self.api).await;
        if let Some(checkpoints) = self.checkpoints {
            checkpoints.write().await;
        }
        // Others may go on at once, while the last answers are given here.
        self.kept.leave().await;
        let _ = self.stop_serving.send(());
        let _ = self.serving.await;
        for chore in &self.chores {
            chore.abort();
        }
        for chore in self.chores {
            let _ = chore.await;
        }
        let unsent = self.gateway.mail.close();
        if unsent > 0 {
            warn!("{unsent} mails to owners of endpoints were still waiting to be sent, and are dropped");
        }
        if let Some(probes) = self.probes {
            probes.end().await;
        }
        drop(self.api);
        drop(self.gateway);
        self.kept.close().await;
        info!("stopped");
    }
}

/// What events move through, on this store.
async fn gateway(
    settings: &Settings,
    kept: &StoreHandle,
    egress: Arc<Egress>,
    mail: MailQueue,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Gateway> {
    let store = kept.store();
    let links = Links::new(settings.public_url.0.clone(), &kept.link_key().await?, retention(settings));
    refuse_thin_without_links(store.as_ref(), &links)?;
    let links = Arc::new(links);
    let expiry = Arc::new(ExpirySchedule::new(settings.hold_max));
    let notifier = Notifier::new(store.clone(), mail.clone(), metrics.clone(), clock.clone());
    let means = DispatcherParts {
        store: store.clone(),
        sender: Arc::new(HttpSender::new(Connector::new(egress)?, settings.max_in_flight.0)),
        links: links.clone(),
        expiry: expiry.clone(),
        notifier: notifier.clone(),
        clock: clock.clone(),
    };
    let dispatcher = Dispatcher::new(means, limits(settings), rand::random());
    let space = match kept.is_shared() {
        false => DiskSpace::watching(settings.data.0.clone(), settings.disk_reserve.0),
        // The database's disk is elsewhere; it says itself when it is full.
        true => DiskSpace::endless(),
    };
    let intake = Intake::new(bytes(settings.ingest_memory), settings.ingest_waiting.0);
    Ok(Gateway { store, dispatcher, expiry, clock, space, intake, links, mail, notifier, metrics })
}

/// Below this the store's own log could use up what is kept for outcomes.
fn refuse_small_reserve(settings: &Settings) -> anyhow::Result<()> {
    let least = disk_space::reserve_min(LOG_BYTES_MAX, settings.max_in_flight.0);
    if settings.disk_reserve < least {
        bail!(
            "disk-reserve is {}; use at least {least}: the store's log may grow by {}, and the outcomes of {} requests \
             in flight (max-in-flight) must be written after that",
            settings.disk_reserve,
            Size(LOG_BYTES_MAX),
            settings.max_in_flight
        );
    }
    Ok(())
}

fn limits(settings: &Settings) -> NodeLimits {
    NodeLimits {
        slots: settings.max_in_flight.0,
        per_host: Some(settings.max_in_flight_per_host.0).filter(|most| *most > 0),
        quarantine: Quarantine { refusals: settings.pause_refusals.0, failing_for: settings.pause_failing },
    }
}

/// The way out, for a gateway that listens there.
fn egress(settings: &Settings, own: Vec<SocketAddr>) -> anyhow::Result<Egress> {
    let guard = Guard {
        allowed: settings.allow_egress.0.clone(),
        denied: settings.deny_egress.0.clone(),
        ports: settings.allow_port.0.clone(),
        is_http_allowed: settings.allow_http.0,
        own,
    };
    let proxy = settings.proxy()?;
    if let Some(proxy) = &proxy {
        info!("receivers are called through the proxy {proxy}, by addresses that are looked up and judged here");
    }
    Ok(Egress::new(guard, NameResolver::new(&settings.dns)?, proxy))
}

fn bytes(setting: Size) -> usize {
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

/// What could not be delivered is not even begun with.
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
    let (dispatching, expiring, retaining) = (gateway.clone(), gateway.clone(), gateway.clone());
    let mail = gateway.mail.clone();
    vec![
        tokio::spawn(async move {
            if let Err(problem) = dispatching.dispatcher.run().await {
                error!("nothing is being delivered, because the store could not be read at the start: {problem}");
            }
        }),
        tokio::spawn(expire::run(expiring)),
        tokio::spawn(scrub::run(gateway.clone())),
        tokio::spawn(cluster::run(gateway.clone())),
        tokio::spawn(publish_status::run(gateway.clone())),
        tokio::spawn(async move {
            retention::run(retaining.store.as_ref(), retaining.clock.as_ref(), retention).await;
        }),
        tokio::spawn(async move { mail.run().await }),
        tokio::spawn(watch_disk(gateway.clone())),
    ]
}

/// Looks at the disk now and then, so that its reserve is told of also while
/// nobody hands anything in.
async fn watch_disk(gateway: Arc<Gateway>) {
    while gateway.space.is_watching() {
        gateway.space.is_low(gateway.clock.now());
        tokio::time::sleep(DISK_LOOK).await;
    }
}

/// Where mails are handed over, if anywhere.
fn mailer(settings: &Settings, clock: &Arc<dyn Clock>) -> anyhow::Result<Option<Arc<dyn Mailer>>> {
    let OptionalMailServer::Server(server) = &settings.smtp else { return Ok(None) };
    let password = settings.smtp_password_file.0.as_deref().map(read_password).transpose()?;
    let post = SmtpMailer::new(server.clone(), password, settings.mail_from.0.clone(), clock.clone());
    Ok(Some(Arc::new(post.context("cannot prepare mails for smtp")?)))
}

/// Deliveries to an endpoint that may no longer be called die soon, so a
/// forgotten `--allow-egress` is said aloud at the start.
fn warn_of_forbidden(store: &dyn Store, egress: &Egress) {
    let tenants = store.tenants();
    let endpoints = tenants.iter().flat_map(|tenant| store.endpoints(&tenant.id));
    let refused: Vec<_> = endpoints
        .filter_map(|endpoint| egress.check_text(&endpoint.settings.url).err().map(|why| (endpoint.id, why)))
        .collect();
    if let Some((first, why)) = refused.first() {
        let count = refused.len();
        warn!(endpoint.id = %first, "{count} endpoints may not be called, so their deliveries will die; the first: {why}");
    }
}

/// Several nodes may do this at once: whoever comes later says the same.
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
            created_at: clock.now(),
        };
        store.put_tenant(tenant).await?;
    }
    Ok(())
}

/// The admin token's hash, and the token itself if this start made it. There
/// is one for the whole store: the first start makes it and writes it to its
/// data directory; afterwards only its hash is known.
async fn admin_token(
    store: &dyn Store,
    folder: &Path,
    is_renewed: bool,
) -> anyhow::Result<(auth::TokenHash, Option<String>)> {
    if let Some(hex) = store.setting(ADMIN_TOKEN_NOTE).await?.filter(|_| !is_renewed) {
        return Ok((stored_hash(&hex)?, None));
    }
    let token = auth::new_admin_token(rand::random());
    let hash = auth::hash(&token);
    // On disk before its hash counts, and under its name only if it does:
    // of several first starts at once, the token of one is the token.
    let path = folder.join(ADMIN_TOKEN_FILE);
    let cannot = || format!("cannot write the admin token to {}", path.display());
    let file = write_unnamed(folder, ".admin-token-", &format!("{token}\n")).with_context(cannot)?;
    let text = hex::encode(hash);
    if is_renewed {
        store.put_setting(ADMIN_TOKEN_NOTE, text).await?;
    } else {
        let kept = store.put_setting_once(ADMIN_TOKEN_NOTE, text.clone()).await?;
        if kept != text {
            return Ok((stored_hash(&kept)?, None));
        }
    }
    put_in_place(file, &path).with_context(cannot)?;
    Ok((hash, Some(token)))
}

fn stored_hash(hex: &str) -> anyhow::Result<auth::TokenHash> {
    from_hex(hex).ok_or_else(|| anyhow!("the store holds a damaged admin token; start once with --new-admin-token"))
}

/// Takes over a token that another node has made with `--new-admin-token`.
async fn reload_admin_token(api: Arc<ApiState>) {
    loop {
        tokio::time::sleep(ADMIN_TOKEN_LOOK).await;
        let note = api.gateway.store.setting(ADMIN_TOKEN_NOTE).await;
        if let Some(hash) = note.ok().flatten().and_then(|hex| from_hex(&hex))
            && api.admin.replace(hash)
        {
            info!("another node has made a new admin token; the last one is no longer good here either");
        }
    }
}

fn from_hex(text: &str) -> Option<auth::TokenHash> {
    hex::decode(text).ok()?.try_into().ok()
}
