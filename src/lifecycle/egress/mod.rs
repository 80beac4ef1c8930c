//! Finds the addresses of a target and decides whether they may be called.
//!
//! [`target`] reads a URL, [`resolver`] looks up its host, [`guard`] decides on
//! the addresses by the lists of [`address`], and [`proxy`] connects through a
//! proxy where one is set. The connector of [`super::deliver`] connects to the
//! addresses that [`Egress::resolve_allowed`] returns, and to no others.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tracing::warn;
use url::Url;

use self::guard::{Guard, GuardRefusal, known_addresses};
use self::resolver::NameResolver;
use self::target::{Host, Target};
use crate::model::answer::{AttemptFailure, FailureKind};
use crate::model::egress::ProxyUrl;
use crate::model::source_address::SourceAddresses;

pub mod address;
pub mod guard;
mod lookup_failure;
pub mod proxy;
pub mod resolver;
pub mod target;

/// Longest time of a name lookup when an endpoint is created or changed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Guard, resolver and proxy that every connection to a receiver passes.
pub struct Egress {
    guard: Guard,
    resolver: Arc<NameResolver>,
    proxy: Option<ProxyUrl>,
    sources: SourceAddresses,
    announced: Vec<IpNet>,
}

/// The reason why an endpoint may not have a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// The URL is malformed or incomplete.
    #[error("{0}")]
    Invalid(String),
    /// The URL is not encrypted, and its host is not this machine.
    #[error("the url is not encrypted; use https, or have the gateway started with --allow-http")]
    Plain,
    /// The target may not be called. The message is the same for every reason
    /// that would tell something about the network.
    #[error("{}", .0.for_owner())]
    Forbidden(GuardRefusal),
}

impl From<GuardRefusal> for BadUrl {
    fn from(refusal: GuardRefusal) -> Self {
        match refusal {
            GuardRefusal::Plain => Self::Plain,
            refusal => Self::Forbidden(refusal),
        }
    }
}

impl Egress {
    /// Creates an egress with this guard and resolver, and perhaps a proxy.
    pub fn new(guard: Guard, resolver: NameResolver, proxy: Option<ProxyUrl>) -> Self {
        let sources = SourceAddresses::default();
        Self { guard, resolver: Arc::new(resolver), proxy, sources, announced: Vec::new() }
    }

    /// Returns the same egress with connections from these addresses, and with the
    /// networks that receivers see them come from, if the operator knows those.
    pub fn from_addresses(self, sources: SourceAddresses, announced: Vec<IpNet>) -> Self {
        Self { sources, announced, ..self }
    }

    /// Returns the addresses that connections come from.
    pub fn sources(&self) -> SourceAddresses {
        self.sources
    }

    /// Returns the networks that receivers see this node's connections come from;
    /// none if that is not known.
    pub fn seen_as(&self) -> Vec<IpNet> {
        if self.announced.is_empty() {
            self.sources.all().into_iter().map(IpNet::from).collect()
        } else {
            self.announced.clone()
        }
    }

    /// Returns the proxy that connections go through.
    pub fn proxy(&self) -> Option<&ProxyUrl> {
        self.proxy.as_ref()
    }

    /// Whether the resolver answered when it was last asked.
    pub fn is_resolver_healthy(&self) -> bool {
        self.resolver.is_healthy()
    }

    /// Checks the URL of an endpoint; returns its canonical form. A name that
    /// has no address yet, or is not found in time, passes: it is checked again
    /// at every attempt.
    pub async fn check(&self, text: &str) -> Result<Url, BadUrl> {
        let (url, target) = Target::read(text).map_err(BadUrl::Invalid)?;
        self.guard.check(&target)?;
        if let (Host::Name(name), None) = (&target.host, known_addresses(&target.host)) {
            match tokio::time::timeout(CHECK_TIMEOUT, self.resolver.look_up(name)).await {
                Ok(Ok(addresses)) => self.guard.allowed_addresses(&target, addresses).map(drop)?,
                Ok(Err(_)) | Err(_) => self.guard.check_unknown(&target)?,
            }
        }
        Ok(url)
    }

    /// Looks up a name. Names that mean this machine are not looked up.
    pub async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, AttemptFailure> {
        match known_addresses(&Host::Name(name.to_owned())) {
            Some(addresses) => Ok(addresses),
            None => self.resolver.look_up(name).await,
        }
    }

    /// Checks the addresses that were found for the name of a target.
    pub fn check_found(&self, target: &Target, addresses: Vec<IpAddr>) -> Result<(), GuardRefusal> {
        self.guard.allowed_addresses(target, addresses).map(drop)
    }

    /// Checks a URL as far as possible without looking up its name.
    pub fn check_text(&self, text: &str) -> Result<(), GuardRefusal> {
        match Target::read(text) {
            Ok((_, target)) => self.guard.check(&target),
            // The caller has accepted this URL before, so it can be read.
            Err(_) => Ok(()),
        }
    }

    /// Returns the addresses of a target, all of which may be called. The reason
    /// of a refusal goes to the log only.
    pub async fn resolve_allowed(&self, target: &Target) -> Result<Vec<IpAddr>, AttemptFailure> {
        let forbidden = |refusal: GuardRefusal| {
            let reason = format!("{} is not called: {refusal}", target.host);
            warn!(host = %target.host, port = target.port, "{reason}");
            AttemptFailure {
                refused_target: Some(reason),
                ..AttemptFailure::new(FailureKind::TargetForbidden, refusal.for_owner())
            }
        };
        self.guard.check(target).map_err(forbidden)?;
        let addresses = match (known_addresses(&target.host), &target.host) {
            (Some(addresses), _) => addresses,
            (None, Host::Name(name)) => self.resolver.look_up(name).await?,
            (None, Host::Address(address)) => vec![*address],
        };
        if addresses.is_empty() {
            return Err(AttemptFailure::new(
                FailureKind::NoSuchName,
                format!("the name {} has no address", target.host),
            ));
        }
        let addresses = self.guard.allowed_addresses(target, addresses).map_err(forbidden)?;
        self.reachable_addresses(target, addresses)
    }

    /// Returns the addresses that the source addresses can reach.
    fn reachable_addresses(&self, target: &Target, mut addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, AttemptFailure> {
        addresses.retain(|address| self.sources.reaches(*address));
        if addresses.is_empty() {
            let (has, lacks) = if self.sources.v4.is_some() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
            return Err(AttemptFailure::new(
                FailureKind::Unreachable,
                format!(
                    "{} cannot be reached: it has {lacks} addresses alone, and the gateway calls from an {has} address \
                     alone (--egress-bind)",
                    target.host
                ),
            ));
        }
        Ok(addresses)
    }

    /// Whether the peer of a connection is the address that was checked.
    pub fn is_peer(&self, peer: SocketAddr, checked: SocketAddr) -> bool {
        let is_same = peer.ip().to_canonical() == checked.ip().to_canonical() && peer.port() == checked.port();
        is_same && self.guard.check_address(peer.ip()).is_ok()
    }

    /// Returns the addresses of the proxy. The operator chose it, so the guard
    /// is not asked.
    pub async fn find_proxy(&self, proxy: &ProxyUrl) -> Result<Vec<SocketAddr>, AttemptFailure> {
        let addresses = match proxy.host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => match known_addresses(&Host::Name(proxy.host.clone())) {
                Some(addresses) => addresses,
                None => self
                    .resolver
                    .look_up(&proxy.host)
                    .await
                    .map_err(|problem| proxy::proxy_failure(proxy, &problem.message))?,
            },
        };
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, proxy.port)).collect())
    }
}
