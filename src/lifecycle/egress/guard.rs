//! Decides which targets may be called.
//!
//! URLs come from strangers, so a URL must not lead into our own network. The
//! same rules apply when an endpoint is created, when it is tested and, on the
//! addresses actually connected to, at every connection.
//!
//! The owner of a URL gets the same message for every target that may not be
//! called, so that the gateway cannot be used to explore a network. The reason
//! goes to the operator.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ipnet::IpNet;

use super::address::{embedded_ipv4, is_public};
use super::target::{Host, Target};

/// The rules about which targets may be called.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Networks that are open besides the public ones, as
    /// [`read_network`](crate::model::egress::read_network) reads them.
    pub allowed: Vec<IpNet>,
    /// Networks that are closed, even if `allowed` has them.
    pub denied: Vec<IpNet>,
    /// Ports that are open although other services usually use them.
    pub ports: Vec<u16>,
    /// Whether hosts other than this machine may be called without encryption.
    pub is_http_allowed: bool,
    /// Addresses the gateway itself listens on.
    pub own: Vec<SocketAddr>,
}

/// Message to the owner of a URL whose target may not be called.
pub const FORBIDDEN: &str = "the url points where this gateway may not call; its log says why, and its operator can open it with --allow-egress";

/// Ports of services that speak other protocols and may obey lines in a request.
const SERVICE_PORTS: [u16; 24] = [
    0, 22, 23, 25, 53, 110, 111, 135, 139, 143, 445, 465, 587, 993, 995, 1433, 2375, 2379, 3306, 5432, 6379, 9200,
    11211, 27017,
];

/// Names that mean this machine or its network, on every machine.
const LOCAL_NAMES: [&str; 5] = ["localhost", "localdomain", "local", "internal", "home.arpa"];

/// The reason why a target may not be called, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardRefusal {
    /// The address is not public.
    #[error(
        "{0} is loopback, private, link-local or otherwise not public; --allow-egress {net} opens it", net = network_to_allow(*.0)
    )]
    NotPublic(IpAddr),
    /// A translator or tunnel may lead to an address that is not public.
    #[error("{0} leads to {1}, which is not public; --allow-egress {net} opens it", net = network_to_allow((*.1).into()))]
    LeadsTo(IpAddr, std::net::Ipv4Addr),
    /// The address is `0.0.0.0` or `::`, or leads there. A connection to it
    /// ends at this machine, and no network can be opened for that.
    #[error("{0} is the unspecified address, or leads to it; it is never called")]
    Unspecified(IpAddr),
    /// The operator has closed the address.
    #[error("{0} is in {1}, which --deny-egress closes")]
    Denied(IpAddr, IpNet),
    /// The gateway itself listens on the address.
    #[error("{0} is where the gateway itself listens")]
    Own(SocketAddr),
    /// The port belongs to another service.
    #[error("port {0} belongs to another service; {way}", way = match .0 { 0 => "nothing listens there".to_owned(), port => format!("--allow-port {port} opens it") })]
    Port(u16),
    /// The name means this machine or its network.
    #[error("{0} is a name for this machine or its network; it is called once --allow-egress opens all its addresses")]
    Local(String),
    /// The target would be called without encryption.
    #[error("it would be called without encryption; write https, or start with --allow-http")]
    Plain,
}

impl GuardRefusal {
    /// Returns the message to the owner of the URL. It tells apart only what the
    /// text of the URL shows, or what is open but for the gateway itself.
    pub fn for_owner(&self) -> String {
        match self {
            Self::Port(0) => "port 0 cannot be called; use another port".to_owned(),
            Self::Port(port) => format!(
                "port {port} belongs to another service, so this gateway does not call it; use another port, or have \
                 its operator open it with --allow-port {port}"
            ),
            Self::Own(_) => "the url points at this gateway itself, which is never called; use another url".to_owned(),
            Self::Unspecified(_) => {
                "the url points at 0.0.0.0 or ::, or leads there, which is never called; use another url".to_owned()
            }
            Self::NotPublic(_) | Self::LeadsTo(..) | Self::Denied(..) | Self::Local(_) | Self::Plain => {
                FORBIDDEN.to_owned()
            }
        }
    }
}

impl Guard {
    /// Checks a target as far as possible without looking up its name.
    pub fn check(&self, target: &Target) -> Result<(), GuardRefusal> {
        match known_addresses(&target.host) {
            Some(addresses) => self.allowed_addresses(target, addresses).map(drop),
            None if self.allowed.is_empty() && is_local(&target.host) => {
                Err(GuardRefusal::Local(target.host.to_string()))
            }
            None => self.check_port(target.port),
        }
    }

    /// Checks a target whose name has no address yet.
    pub fn check_unknown(&self, target: &Target) -> Result<(), GuardRefusal> {
        self.check(target)?;
        if is_local(&target.host) {
            return Err(GuardRefusal::Local(target.host.to_string()));
        }
        if !target.is_tls && !self.is_http_allowed {
            return Err(GuardRefusal::Plain);
        }
        Ok(())
    }

    /// Returns the addresses to connect to, of all that the target has. One
    /// forbidden address refuses the target, because the owner of the name
    /// chose to mix it in. Names for this machine are an exception: they have
    /// two addresses, of which only one may be open.
    pub fn allowed_addresses(&self, target: &Target, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, GuardRefusal> {
        self.check_port(target.port)?;
        let mut addresses: Vec<IpAddr> = addresses.into_iter().map(|address| address.to_canonical()).collect();
        if is_this_machine(&target.host) {
            let is_open = |address: &IpAddr| self.check_address(*address).is_ok();
            if !addresses.iter().any(is_open) {
                return Err(GuardRefusal::NotPublic(
                    addresses.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1])),
                ));
            }
            addresses.retain(is_open);
        }
        for address in &addresses {
            self.check_address(*address)?;
            self.check_own_machine(*address, target.port)?;
        }
        if is_local(&target.host) && !addresses.iter().all(|address| self.is_opened(*address)) {
            return Err(GuardRefusal::Local(target.host.to_string()));
        }
        let is_loopback = addresses.iter().all(IpAddr::is_loopback);
        if target.is_tls || self.is_http_allowed || is_loopback { Ok(addresses) } else { Err(GuardRefusal::Plain) }
    }

    /// Checks whether an address, and each IPv4 address inside it, may be called.
    pub fn check_address(&self, address: IpAddr) -> Result<(), GuardRefusal> {
        let address = address.to_canonical();
        let embedded = embedded_ipv4(address);
        let all = || std::iter::once(address).chain(embedded.iter().map(|inner| IpAddr::V4(*inner)));
        if all().any(|one| one.is_unspecified()) {
            return Err(GuardRefusal::Unspecified(address));
        }
        if let Some((denied, net)) =
            all().find_map(|one| Some((one, self.denied.iter().find(|net| net.contains(&one))?)))
        {
            return Err(GuardRefusal::Denied(denied, *net));
        }
        if let Some(inner) =
            embedded.iter().find(|inner| !self.is_opened((**inner).into()) && !is_public((**inner).into()))
        {
            return Err(GuardRefusal::LeadsTo(address, *inner));
        }
        if self.is_opened(address) || is_public(address) { Ok(()) } else { Err(GuardRefusal::NotPublic(address)) }
    }

    fn is_opened(&self, address: IpAddr) -> bool {
        self.allowed.iter().any(|net| net.contains(&address))
    }

    fn check_port(&self, port: u16) -> Result<(), GuardRefusal> {
        let is_closed = port == 0 || SERVICE_PORTS.contains(&port) && !self.ports.contains(&port);
        if is_closed { Err(GuardRefusal::Port(port)) } else { Ok(()) }
    }

    /// Refuses the gateway's own addresses, whatever is open.
    fn check_own_machine(&self, address: IpAddr, port: u16) -> Result<(), GuardRefusal> {
        let mut own = self.own.iter().filter(|own| own.port() == port);
        let listens_there = own.any(|own| match own.ip().to_canonical() {
            wildcard if wildcard.is_unspecified() => is_of_this_machine(address),
            one => one == address,
        });
        if listens_there { Err(GuardRefusal::Own(SocketAddr::new(address, port))) } else { Ok(()) }
    }
}

/// Returns the addresses of a host that needs no lookup: an address, or a name
/// that means this machine. Such names are never looked up.
pub fn known_addresses(host: &Host) -> Option<Vec<IpAddr>> {
    match host {
        Host::Address(address) => Some(vec![*address]),
        Host::Name(_) if is_this_machine(host) => {
            Some(vec![IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)])
        }
        Host::Name(_) => None,
    }
}

/// Whether a host is `localhost` or a name below it.
fn is_this_machine(host: &Host) -> bool {
    matches!(host, Host::Name(name) if is_below(name, "localhost"))
}

fn is_local(host: &Host) -> bool {
    matches!(host, Host::Name(name) if LOCAL_NAMES.iter().any(|zone| is_below(name, zone)))
}

fn is_below(name: &str, zone: &str) -> bool {
    name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether an address belongs to this machine. A socket can be bound to such
/// addresses only, and binding sends nothing.
pub fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Returns the network to open for an address: all of loopback, or the address
/// alone.
fn network_to_allow(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) if address.is_loopback() => "127.0.0.0/8".into(),
        IpAddr::V4(address) => format!("{address}/32"),
        IpAddr::V6(address) => format!("{address}/128"),
    }
}

#[cfg(test)]
mod tests;
