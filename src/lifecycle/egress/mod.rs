//! The way out: who may be called, and how they are found.
//!
//! [`target`] reads a URL, [`names`] looks its host up, [`guard`] decides on
//! the addresses by [`address`]'s lists, and [`proxy`] goes through a proxy to
//! them where one is set. The deliverer's connector connects to what
//! [`Egress::resolve_allowed`] returns, and to nothing else.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use url::Url;

use self::guard::{FORBIDDEN, Guard, GuardRefusal, known_addresses};
use self::resolver::NameResolver;
use self::target::{Host, Target};
use super::deliver::failure::failure;
use crate::model::attempt::{AttemptFailure, FailureKind};
use crate::model::egress::ProxyUrl;

pub mod address;
pub mod guard;
pub mod proxy;
pub mod resolver;
pub mod target;

/// How long a name is looked up while somebody waits for their endpoint.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The way out.
pub struct Egress {
    guard: Guard,
    names: Arc<NameResolver>,
    proxy: Option<ProxyUrl>,
}

/// Why an endpoint may not have a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// It cannot be called by anyone.
    #[error("{0}")]
    Invalid(String),
    /// It is not encrypted, and who is called is not this machine.
    #[error("the url is not encrypted; use https, or have the gateway started with --allow-http")]
    Plain,
    /// It may not be called from here. All of these read the same.
    #[error("{FORBIDDEN}")]
    Forbidden(GuardRefusal),
}

impl From<GuardRefusal> for BadUrl {
    fn from(why: GuardRefusal) -> Self {
        match why {
            GuardRefusal::Plain => Self::Plain,
            why => Self::Forbidden(why),
        }
    }
}

impl Egress {
    /// A way out past this guard, with names looked up so, through this proxy
    /// or none.
    pub fn new(guard: Guard, names: NameResolver, proxy: Option<ProxyUrl>) -> Self {
        Self { guard, names: Arc::new(names), proxy }
    }

    /// The proxy that connections go through.
    pub fn proxy(&self) -> Option<&ProxyUrl> {
        self.proxy.as_ref()
    }

    /// Whether a resolver answered when one was last asked.
    pub fn is_resolver_healthy(&self) -> bool {
        self.names.is_healthy()
    }

    /// Checks a URL that an endpoint is to have; returns its canonical form.
    /// A name that has no address yet, or none that is found soon, passes: it
    /// is judged again at every attempt.
    pub async fn check(&self, text: &str) -> Result<Url, BadUrl> {
        let (url, target) = Target::read(text).map_err(BadUrl::Invalid)?;
        self.guard.check(&target)?;
        if let (Host::Name(name), None) = (&target.host, known_addresses(&target.host)) {
            match tokio::time::timeout(CHECK_TIMEOUT, self.names.look_up(name)).await {
                Ok(Ok(addresses)) => self.guard.allowed_addresses(&target, addresses).map(drop)?,
                Ok(Err(_)) | Err(_) => self.guard.check_unknown(&target)?,
            }
        }
        Ok(url)
    }

    /// Checks a URL as far as it can be without looking up its name.
    pub fn check_text(&self, text: &str) -> Result<(), GuardRefusal> {
        match Target::read(text) {
            Ok((_, target)) => self.guard.check(&target),
            // Whoever called this has accepted it before.
            Err(_) => Ok(()),
        }
    }

    /// Finds the addresses of a target, all of which may be called. Why one
    /// may not is told to the operator alone.
    pub async fn resolve_allowed(&self, target: &Target) -> Result<Vec<IpAddr>, AttemptFailure> {
        let forbidden = |why: GuardRefusal| {
            let reason = format!("{} is not called: {why}", target.host);
            warn!(host = %target.host, port = target.port, "{reason}");
            AttemptFailure { refused_target: Some(reason), ..failure(FailureKind::TargetForbidden, FORBIDDEN) }
        };
        self.guard.check(target).map_err(forbidden)?;
        let addresses = match (known_addresses(&target.host), &target.host) {
            (Some(addresses), _) => addresses,
            (None, Host::Name(name)) => self.names.look_up(name).await?,
            (None, Host::Address(address)) => vec![*address],
        };
        if addresses.is_empty() {
            return Err(failure(FailureKind::NoSuchName, format!("the name {} has no address", target.host)));
        }
        self.guard.allowed_addresses(target, addresses).map_err(forbidden)
    }

    /// Whether a connection led to where it was to lead.
    pub fn is_peer(&self, peer: SocketAddr, vetted: SocketAddr) -> bool {
        let is_the_same = peer.ip().to_canonical() == vetted.ip().to_canonical() && peer.port() == vetted.port();
        is_the_same && self.guard.check_address(peer.ip()).is_ok()
    }

    /// Where the proxy is. It is the operator's own choice, and not judged.
    pub async fn find_proxy(&self, proxy: &ProxyUrl) -> Result<Vec<SocketAddr>, AttemptFailure> {
        let addresses = match proxy.host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => match known_addresses(&Host::Name(proxy.host.clone())) {
                Some(addresses) => addresses,
                None => self
                    .names
                    .look_up(&proxy.host)
                    .await
                    .map_err(|problem| proxy::proxy_failure(proxy, &problem.message))?,
            },
        };
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, proxy.port)).collect())
    }
}
