//! Finds a request's client address and its request id, which say who sent it.

use std::fmt;
use std::net::IpAddr;

use axum::extract::Request;
use http::{Extensions, HeaderMap, HeaderName};
use ipnet::IpNet;
use jiff::Timestamp;

use crate::model::audit::{Caller, CallerIdentity};

/// The address of the connection's peer, which may be a proxy.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// The id of a request; its response, problem and log lines carry it.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

const ID_BYTES_MAX: usize = 128;
const ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-for");

impl RequestId {
    /// Returns the caller's `x-request-id` if it is valid, or else a new id.
    pub fn of(headers: &HeaderMap, random: u64) -> Self {
        let given = headers.get(ID).and_then(|value| value.to_str().ok());
        match given.filter(|text| is_valid(text)) {
            Some(given) => Self(given.to_owned()),
            None => Self(format!("req_{random:016x}")),
        }
    }
}

fn is_valid(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Returns the client address of a request. `X-Forwarded-For` is followed from
/// its end as long as the address before belongs to a trusted proxy.
pub fn of(request: &Request, trusted: &[IpNet]) -> Option<IpAddr> {
    client_of(request.extensions(), request.headers(), trusted)
}

/// Returns the client address of a request whose body was taken apart.
pub fn client_of(extensions: &Extensions, headers: &HeaderMap, trusted: &[IpNet]) -> Option<IpAddr> {
    let Peer(peer) = extensions.get::<Peer>()?;
    Some(client_behind_proxies(peer.to_canonical(), headers, trusted))
}

/// Returns the caller of a request, as the audit log names it.
pub fn caller(request: &Request, trusted: &[IpNet], by: CallerIdentity, at: Timestamp) -> Caller {
    let request_id = request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    Caller { by, from: of(request, trusted), request_id, at }
}

/// The network that is counted as one client: a single IPv4 address, or an IPv6
/// /64, because one client usually holds all addresses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(IpNet);

/// Returns the network of an address.
pub fn network(address: IpAddr) -> Network {
    let address = address.to_canonical();
    let bits = if address.is_ipv4() { 32 } else { 64 };
    Network(IpNet::new(address, bits).expect("the length fits the family").trunc())
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpNet::V4(network) => network.addr().fmt(f),
            IpNet::V6(network) => network.fmt(f),
        }
    }
}

fn client_behind_proxies(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|network| network.contains(address));
    let mut address = peer;
    let lines: Vec<&str> = headers.get_all(FORWARDED).iter().filter_map(|line| line.to_str().ok()).collect();
    for entry in lines.iter().rev().flat_map(|line| line.rsplit(',')) {
        if !is_trusted(&address) {
            break;
        }
        // An entry that is no address ends the chain.
        let Ok(before) = entry.trim().parse::<IpAddr>() else { break };
        address = before.to_canonical();
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_sane_id_is_kept_and_any_other_replaced() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ID, HeaderValue::try_from(text).unwrap());
            RequestId::of(&headers, 7).0
        };
        let long = "a".repeat(128);
        for sane in ["a", "01J-x_y.z:7", &long] {
            assert_eq!(id(sane), sane);
        }
        for odd in ["", "a b", "a\"b", "a/b", "<x>", &"a".repeat(129)] {
            assert_eq!(id(odd), "req_0000000000000007", "{odd}");
        }
        assert_eq!(RequestId::of(&HeaderMap::new(), 1).0, "req_0000000000000001");
    }

    #[test]
    fn an_address_is_counted_as_itself_or_by_its_64_bits() {
        let counted = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(counted("192.0.2.7"), "192.0.2.7");
        assert_eq!(counted("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(network("2001:db8::1".parse().unwrap()), network("2001:db8::ffff:0:0:9".parse().unwrap()));
    }

    #[test]
    fn only_proxies_of_ours_are_believed() {
        let from = |peer: &str, forwarded: &[&str], trusted: &str| {
            let mut headers = HeaderMap::new();
            for line in forwarded {
                headers.append(FORWARDED, line.parse().unwrap());
            }
            let trusted: Vec<IpNet> = trusted.split_whitespace().map(|text| text.parse().unwrap()).collect();
            client_behind_proxies(peer.parse().unwrap(), &headers, &trusted).to_string()
        };
        assert_eq!(from("10.0.0.1", &["1.1.1.1"], ""), "10.0.0.1", "nobody is trusted");
        assert_eq!(from("10.0.0.1", &["1.1.1.1"], "10.0.0.0/8"), "1.1.1.1");
        assert_eq!(from("10.0.0.1", &["9.9.9.9, 1.1.1.1"], "10.0.0.0/8"), "1.1.1.1", "what it was told is hearsay");
        assert_eq!(from("10.0.0.1", &["9.9.9.9", "1.1.1.1, 10.0.0.2"], "10.0.0.0/8"), "1.1.1.1");
        assert_eq!(from("8.8.8.8", &["1.1.1.1"], "10.0.0.0/8"), "8.8.8.8");
        assert_eq!(from("10.0.0.1", &["nonsense"], "10.0.0.0/8"), "10.0.0.1");
        assert_eq!(from("10.0.0.1", &["::ffff:1.1.1.1"], "10.0.0.0/8"), "1.1.1.1");
        assert_eq!(from("10.0.0.1", &[], "10.0.0.0/8"), "10.0.0.1");
    }
}
