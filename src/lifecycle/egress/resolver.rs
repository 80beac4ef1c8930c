//! Looks up names, with the gateway's own resolver or with the machine's.
//!
//! The gateway's own resolver treats names as absolute: it tries no search
//! list, so it asks for exactly the name in the URL.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RecordType;
use hickory_resolver::{ResolverBuilder, TokioResolver};

use super::lookup_failure::{lookup_failure, system_lookup_failed};
use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::egress::DnsResolver;

/// Longest wait for one answer of a name server. It is asked twice, and then
/// for the root servers; all of that fits into the usual connect timeout, so
/// that a failure can name the server that did not answer.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Longest time that an address is cached, so that a moved receiver is found.
const CACHED_MAX: Duration = Duration::from_secs(60);
/// Longest time that the absence of a name is cached.
const ABSENCE_CACHED_MAX: Duration = Duration::from_secs(5);
/// Most names in the cache.
const NAMES_CACHED: u64 = 8_192;
/// Most open queries to one name server, so many that names whose own servers
/// are silent do not block others.
const QUERIES_MAX: usize = 1_024;

/// Resolver of host names.
pub struct NameResolver {
    backend: ResolverBackend,
    /// Whether the resolver answered when it was last asked.
    is_healthy: AtomicBool,
}

enum ResolverBackend {
    Own(Box<TokioResolver>),
    System,
}

impl NameResolver {
    /// Creates the resolver; reads the machine's settings if it needs them.
    pub fn new(dns: &DnsResolver) -> anyhow::Result<Self> {
        let backend = match dns {
            DnsResolver::System => ResolverBackend::System,
            DnsResolver::Own => ResolverBackend::Own(build_resolver(
                TokioResolver::builder_tokio().unwrap_or_else(|_| without_settings()),
            )?),
            DnsResolver::Servers(servers) => {
                let servers = servers.iter().copied().map(name_server).collect();
                let config = ResolverConfig::from_name_servers(servers);
                ResolverBackend::Own(build_resolver(TokioResolver::builder_with_config(
                    config,
                    TokioRuntimeProvider::default(),
                ))?)
            }
        };
        Ok(Self { backend, is_healthy: AtomicBool::new(true) })
    }

    /// Whether the resolver answered when it was last asked.
    pub fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Returns all addresses of a name, IPv4 before IPv6.
    pub async fn look_up(self: &Arc<Self>, name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
        // In a task of its own, so that an answer that comes too late for this
        // attempt is cached for the next.
        let (this, name) = (self.clone(), name.to_owned());
        let lookup = tokio::spawn(async move {
            match &this.backend {
                ResolverBackend::Own(resolver) => this.query(resolver, &name).await,
                ResolverBackend::System => system_lookup(&name).await,
            }
        });
        match lookup.await {
            Ok(addresses) => addresses,
            Err(_) => Err(AttemptFailure::new(FailureKind::Ours, "the lookup of a name ended inside the gateway")),
        }
    }

    /// Queries a name's addresses. If there is no answer, queries the root
    /// servers, which every resolver knows: if it answers that, the resolver is
    /// healthy and the name's own servers are not. The result is part of the
    /// failure, and is stored for attempts that time out before they get it.
    async fn query(&self, resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
        let addresses = resolver.lookup_ip(format!("{name}.")).await;
        let is_healthy = match &addresses {
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
        self.is_healthy.store(is_healthy, Ordering::Relaxed);
        match addresses {
            Ok(addresses) => Ok(addresses.iter().collect()),
            Err(problem) => Err(lookup_failure(name, &problem, is_healthy)),
        }
    }
}

fn is_answer(problem: &NetError) -> bool {
    problem.is_nx_domain() || problem.is_no_records_found() || matches!(problem, NetError::Dns(_))
}

/// Looks up a name as the machine does: with its hosts file, its name servers
/// and search list, and whatever else is configured.
async fn system_lookup(name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
    let sockets = tokio::net::lookup_host((name, 0)).await.map_err(|problem| system_lookup_failed(name, &problem))?;
    let mut addresses: Vec<IpAddr> = sockets.map(|socket| socket.ip()).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    Ok(addresses)
}

fn build_resolver(mut builder: ResolverBuilder<TokioRuntimeProvider>) -> anyhow::Result<Box<TokioResolver>> {
    let options: &mut ResolverOpts = builder.options_mut();
    options.timeout = SERVER_TIMEOUT;
    options.attempts = 1;
    // Both kinds are queried, because either may be one that must not be called.
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.cache_size = NAMES_CACHED;
    options.positive_max_ttl = Some(CACHED_MAX);
    options.negative_max_ttl = Some(ABSENCE_CACHED_MAX);
    options.max_active_requests = QUERIES_MAX;
    Ok(Box::new(builder.build()?))
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = address.port());
    server
}

/// Returns a resolver for a machine without resolver settings: every name fails
/// as ours, and URLs with addresses still work.
fn without_settings() -> ResolverBuilder<TokioRuntimeProvider> {
    tracing::warn!(
        "the machine has no readable resolver settings; only addresses can be called, not names, unless --dns names a server"
    );
    TokioResolver::builder_with_config(Default::default(), Default::default())
}
