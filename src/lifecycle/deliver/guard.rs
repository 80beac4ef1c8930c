//! Decides which addresses may be called.
//!
//! URLs come from strangers, so nothing inside our own network may be behind
//! one. The same rule is asked when an endpoint is created and, on the
//! address actually connected to, at every connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

/// Which addresses may be called.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Networks that the operator has opened.
    allowed: Vec<IpNet>,
}

/// Why a URL is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// It cannot be called by anyone.
    #[error("{0}")]
    Invalid(String),
    /// It may not be called from here.
    #[error(
        "url points at {0}, which is loopback, private, link-local or otherwise not public; start the gateway with --allow-egress {1} to allow it"
    )]
    Forbidden(String, String),
}

const URL_BYTES_MAX: usize = 2_048;

const IPV4_FORBIDDEN: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
];
const IPV6_PUBLIC: &str = "2000::/3";
const IPV6_FORBIDDEN: &[&str] = &["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];

impl Guard {
    /// A guard that lets these networks through besides the public ones.
    pub fn allowing(allowed: Vec<IpNet>) -> Self {
        Self { allowed }
    }

    /// Whether an address may be called.
    pub fn permits(&self, address: IpAddr) -> bool {
        // A mapped address is the IPv4 address it stands for.
        let address = address.to_canonical();
        self.allowed.iter().any(|net| net.contains(&address)) || is_public(address)
    }

    /// Checks a URL as far as it can be without looking up its name.
    pub fn check(&self, text: &str) -> Result<Url, BadUrl> {
        let url = parse(text)?;
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(name)) if is_loopback_name(name) => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Some(Host::Domain(_)) | None => None,
        };
        match address {
            Some(address) if !self.permits(address) => Err(BadUrl::Forbidden(address.to_string(), way_out(address))),
            _ => Ok(url),
        }
    }
}

/// The network to open for an address: all of loopback, or just this one.
pub fn way_out(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() => "127.0.0.0/8".into(),
        IpAddr::V4(address) => format!("{address}/32"),
        IpAddr::V6(address) => format!("{address}/128"),
    }
}

fn parse(text: &str) -> Result<Url, BadUrl> {
    let invalid = |message: String| Err(BadUrl::Invalid(message));
    if text.len() > URL_BYTES_MAX {
        return invalid(format!("url is {} bytes long; use at most {URL_BYTES_MAX}", text.len()));
    }
    // The parser drops tabs and newlines silently; what was meant is unknown.
    if let Some(at) = text.bytes().position(|byte| byte <= b' ' || byte == 0x7f) {
        return invalid(format!("url has a space or control character at byte {at}; remove or encode it"));
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(problem) => return invalid(format!("url {text:?} cannot be read ({problem}); use https://host/path")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return invalid(format!("url has the scheme {:?}; use http or https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid("url holds a user name or password; put credentials into headers instead".into());
    }
    if url.fragment().is_some() {
        return invalid("url has a fragment (#…), which is never sent; remove it".into());
    }
    if url.host_str().is_none_or(str::is_empty) || url.port() == Some(0) {
        return invalid(format!("url {text:?} names no host and port that can be called"));
    }
    Ok(url)
}

fn is_loopback_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !IPV4_FORBIDDEN.iter().any(|net| v4(net).contains(&address)),
        IpAddr::V6(address) => {
            v6(IPV6_PUBLIC).contains(&address) && !IPV6_FORBIDDEN.iter().any(|net| v6(net).contains(&address))
        }
    }
}

fn v4(net: &str) -> Ipv4Net {
    net.parse().expect("the list holds IPv4 networks")
}

fn v6(net: &str) -> Ipv6Net {
    net.parse().expect("the list holds IPv6 networks")
}

/// The address a loopback name stands for; such names are never looked up.
pub fn loopback_addresses(name: &str) -> Option<[IpAddr; 2]> {
    is_loopback_name(name).then_some([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_public_addresses_may_be_called() {
        let guard = Guard::default();
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "168.63.129.16",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::7f00:1]",
            "[fe80::1]",
            "[fd00:ec2::254]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[2001::1]",
            "[ff02::1]",
        ] {
            let refused = guard.check(&format!("http://{host}/x"));
            assert!(matches!(refused, Err(BadUrl::Forbidden(..))), "{host}: {refused:?}");
        }
        for host in ["93.184.216.34", "[2606:2800:220:1::1]", "example.com"] {
            assert!(guard.check(&format!("https://{host}/x")).is_ok(), "{host}");
        }
    }

    #[test]
    fn the_refusal_names_the_flag_that_opens_it() {
        let refused = Guard::default().check("http://127.0.0.1:9000/").unwrap_err().to_string();
        assert!(refused.contains("--allow-egress 127.0.0.0/8"), "{refused}");
        let opened = Guard::allowing(vec!["127.0.0.0/8".parse().unwrap()]);
        assert!(opened.check("http://127.0.0.1:9000/").is_ok());
        assert!(opened.check("http://[::ffff:127.0.0.1]:9000/").is_ok());
        assert!(opened.check("http://10.0.0.1/").is_err());
    }

    #[test]
    fn urls_that_cannot_be_meant_are_refused() {
        for text in [
            "",
            "example.com",
            "ftp://example.com/",
            "http://",
            "http:///x\t",
            "https://user:pw@example.com/",
            "https://example.com/#x",
            "https://example.com:0/",
            "https://exa mple.com/",
            "https://example.com/\n",
        ] {
            assert!(matches!(Guard::default().check(text), Err(BadUrl::Invalid(_))), "{text:?}");
        }
    }
}
