//! Looks up names, with a resolver of our own or with the machine's.
//!
//! For our own, names are absolute: no search list is tried, so that what is
//! asked for is what stands in the URL.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RecordType;
use hickory_resolver::{ResolverBuilder, TokioResolver};

use crate::lifecycle::deliver::failure::{failure, unknown_to_the_machine, unresolved};
use crate::model::attempt::{AttemptFailure, FailureKind};
use crate::model::egress::DnsResolver;

/// How long a name server may take to answer once; it is asked twice, and then
/// for something else. All of it before the usual deadline for a connection,
/// so that it is known who did not answer.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Addresses move; nobody waits longer for that than a minute.
const KEPT_MAX: Duration = Duration::from_secs(60);
/// A name that is not there may be a moment later.
const ABSENCE_KEPT_MAX: Duration = Duration::from_secs(5);
/// How many names are kept.
const NAMES_KEPT: u64 = 8_192;
/// How many questions may be open to one name server. Names whose own servers
/// are silent must not keep others from being asked for.
const QUESTIONS_MAX: usize = 1_024;

/// Looks up names.
pub struct NameResolver {
    backend: ResolverBackend,
    /// Whether a resolver answered when one was last asked.
    is_well: AtomicBool,
}

enum ResolverBackend {
    Own(Box<TokioResolver>),
    System,
}

impl NameResolver {
    /// Prepares the resolver; reads the machine's settings where it needs them.
    pub fn new(dns: &DnsResolver) -> anyhow::Result<Self> {
        let way = match dns {
            DnsResolver::System => ResolverBackend::System,
            DnsResolver::Own => {
                ResolverBackend::Own(build(TokioResolver::builder_tokio().unwrap_or_else(|_| without_settings()))?)
            }
            DnsResolver::Servers(servers) => {
                let servers = servers.iter().copied().map(name_server).collect();
                let config = ResolverConfig::from_name_servers(servers);
                ResolverBackend::Own(build(TokioResolver::builder_with_config(
                    config,
                    TokioRuntimeProvider::default(),
                ))?)
            }
        };
        Ok(Self { backend: way, is_well: AtomicBool::new(true) })
    }

    /// Whether a resolver answered when one was last asked.
    pub fn is_healthy(&self) -> bool {
        self.is_well.load(Ordering::Relaxed)
    }

    /// All addresses of a name, of both kinds, IPv4 first.
    pub async fn look_up(self: &Arc<Self>, name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
        // On its own, so that an answer that comes too late for this attempt is
        // known to the next.
        let (names, name) = (self.clone(), name.to_owned());
        let asking = tokio::spawn(async move {
            match &names.backend {
                ResolverBackend::Own(resolver) => names.ask(resolver, &name).await,
                ResolverBackend::System => system_lookup(&name).await,
            }
        });
        match asking.await {
            Ok(found) => found,
            Err(_) => Err(failure(FailureKind::Ours, "the lookup of a name ended inside the gateway")),
        }
    }

    /// Asks for a name's addresses. If there is no answer, asks for what every
    /// resolver knows: one that answers that is well, and the name's own
    /// servers are not. Which it was is told with the problem, and kept for
    /// those whose time is over before they hear of it.
    async fn ask(&self, resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
        let found = resolver.lookup_ip(format!("{name}.")).await;
        let is_well = match &found {
            Ok(_) => true,
            Err(problem) if is_answer(problem) => true,
            Err(_) => {
                let root = resolver.lookup(".", RecordType::NS);
                match tokio::time::timeout(SERVER_TIMEOUT, root).await {
                    Ok(Ok(_)) => true,
                    Ok(Err(problem)) => is_answer(&problem),
                    Err(_) => false,
                }
            }
        };
        self.is_well.store(is_well, Ordering::Relaxed);
        match found {
            Ok(found) => Ok(found.iter().collect()),
            Err(problem) => Err(unresolved(name, &problem, is_well)),
        }
    }
}

fn is_answer(problem: &NetError) -> bool {
    problem.is_nx_domain() || problem.is_no_records_found() || matches!(problem, NetError::Dns(_))
}

/// The machine's own way: its hosts file, its name servers and search list,
/// and whatever else it was told to ask.
async fn system_lookup(name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
    let found = tokio::net::lookup_host((name, 0)).await;
    let mut found: Vec<IpAddr> =
        found.map_err(|problem| unknown_to_the_machine(name, &problem))?.map(|address| address.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    Ok(found)
}

fn build(mut builder: ResolverBuilder<TokioRuntimeProvider>) -> anyhow::Result<Box<TokioResolver>> {
    let options: &mut ResolverOpts = builder.options_mut();
    options.timeout = SERVER_TIMEOUT;
    options.attempts = 1;
    // Both kinds are looked at: one of them may be what must not be called.
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.cache_size = NAMES_KEPT;
    options.positive_max_ttl = Some(KEPT_MAX);
    options.negative_max_ttl = Some(ABSENCE_KEPT_MAX);
    options.max_active_requests = QUESTIONS_MAX;
    Ok(Box::new(builder.build()?))
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = address.port());
    server
}

/// Without resolver settings every name fails as our own trouble, and
/// addresses still work.
fn without_settings() -> ResolverBuilder<TokioRuntimeProvider> {
    tracing::warn!(
        "the machine has no readable resolver settings; only addresses can be called, not names, unless --dns names a server"
    );
    TokioResolver::builder_with_config(Default::default(), Default::default())
}
