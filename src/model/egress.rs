//! Parses the egress settings: networks, the DNS resolver, and the proxy.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::Url;

use super::mail::percent_decode;
use super::parse_fault::url_fault;

/// The network of IPv4-mapped IPv6 addresses. They are judged as IPv4.
const IPV4_MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);

/// Parses a network or a single address into the form in which addresses are
/// judged: an IPv4-mapped one becomes IPv4. An IPv6 network that contains all
/// mapped addresses, such as `::/0`, means IPv6 alone.
pub fn read_network(text: &str) -> Result<IpNet, String> {
    let single = || text.parse::<IpAddr>().map(IpNet::from).ok();
    let network = text.parse().ok().or_else(single);
    let network: IpNet = network.ok_or_else(|| format!("{text:?} is not a network; write it like 127.0.0.0/8"))?;
    let IpNet::V6(six) = network else { return Ok(network) };
    match (IPV4_MAPPED.contains(&six.addr()), six.prefix_len().checked_sub(IPV4_MAPPED.prefix_len())) {
        (false, _) => Ok(network),
        (true, Some(prefix)) => {
            let four = six.addr().to_ipv4_mapped().expect("it is in the network of mapped addresses");
            Ok(Ipv4Net::new_assert(four, prefix).into())
        }
        (true, None) => Err(format!(
            "{text:?} begins with IPv4 addresses and reaches beyond them; write the IPv4 networks as such, like 127.0.0.0/8"
        )),
    }
}

/// The resolver that looks up the names of receivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsResolver {
    /// The gateway's own resolver, with the machine's name servers.
    Own,
    /// The resolver of the machine.
    System,
    /// The gateway's own resolver, with these name servers.
    Servers(Vec<SocketAddr>),
}

impl FromStr for DnsResolver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let server = |part: &str| {
            let address = part.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
            address.or_else(|_| part.parse()).map_err(|_| {
                format!("{part:?} is no way to look up names; use own, system, or name servers like 9.9.9.9 or 127.0.0.1:5353")
            })
        };
        match text.trim() {
            "own" => Ok(Self::Own),
            "system" => Ok(Self::System),
            servers => servers.split(',').map(str::trim).map(server).collect::<Result<_, _>>().map(Self::Servers),
        }
    }
}

impl fmt::Display for DnsResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::System => f.write_str("system"),
            Self::Servers(servers) => {
                let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
                f.write_str(&servers.join(","))
            }
        }
    }
}

/// A proxy URL, written like `http://user:password@proxy.example.com:3128`. It is
/// never displayed with its login.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// Protocol of the proxy.
    pub kind: ProxyKind,
    /// Name or address of the proxy, without brackets.
    pub host: String,
    /// Port of the proxy.
    pub port: u16,
    /// User and password, if the proxy needs them.
    pub login: Option<(String, String)>,
}

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyKind {
    /// HTTP with the CONNECT method.
    Connect,
    /// SOCKS version 5.
    Socks5,
}

const EXAMPLE: &str = "write it like http://proxy.example.com:3128 or socks5://proxy.example.com:1080";

impl FromStr for ProxyUrl {
    type Err = String;

    /// Parses the URL. An error repeats nothing of the text, which may hold a
    /// password.
    fn from_str(text: &str) -> Result<Self, String> {
        let url: Url = text.parse().map_err(|problem| format!("it is not a URL: {}; {EXAMPLE}", url_fault(problem)))?;
        let (kind, usual_port) = match url.scheme() {
            "http" => (ProxyKind::Connect, 80),
            "socks5" | "socks5h" => (ProxyKind::Socks5, 1080),
            _ => return Err(format!("it is neither an http nor a socks5 proxy; {EXAMPLE}")),
        };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        if host.is_empty() || !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(format!("it must be a host, with a port and a login where they are needed; {EXAMPLE}"));
        }
        let decode = |text: &str| percent_decode(text).filter(|part| part.len() <= 255);
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some(
                decode(user)
                    .zip(decode(password.unwrap_or_default()))
                    .ok_or("its login is not text of at most 255 bytes; write special characters like %40")?,
            ),
        };
        Ok(Self { kind, host, port: url.port().unwrap_or(usual_port), login })
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            ProxyKind::Connect => "http",
            ProxyKind::Socks5 => "socks5",
        };
        let login = if self.login.is_some() { "***@" } else { "" };
        if self.host.contains(':') {
            write!(f, "{scheme}://{login}[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{login}{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_mapped_addresses_is_the_ipv4_network_it_stands_for() {
        for (text, network) in [
            ("::ffff:127.0.0.0/104", "127.0.0.0/8"),
            ("::FFFF:7f00:0/104", "127.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
            ("::ffff:10.1.2.3/128", "10.1.2.3/32"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::/0", "::/0"),
            ("::/8", "::/8"),
            ("::ffff:0:127.0.0.1", "::ffff:0:7f00:1/128"),
            ("64:ff9b::127.0.0.0/104", "64:ff9b::7f00:0/104"),
        ] {
            assert_eq!(read_network(text).unwrap().to_string(), network, "{text}");
        }
        for text in ["::ffff:127.0.0.1/95", "::ffff:0:0/80", "::ffff:0:0/0"] {
            assert!(read_network(text).unwrap_err().contains("write the IPv4 networks as such"), "{text}");
        }
        for text in ["", "here", "127.0.0.1/33", "::ffff:127.0.0.1/129", "127.0.0.0/"] {
            assert!(read_network(text).unwrap_err().contains("127.0.0.0/8"), "{text}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["own", "system", "9.9.9.9:53", "127.0.0.1:5353,[::1]:53"] {
            assert_eq!(text.parse::<DnsResolver>().unwrap().to_string(), text);
        }
        assert_eq!("9.9.9.9, ::1".parse::<DnsResolver>().unwrap().to_string(), "9.9.9.9:53,[::1]:53");
        for text in ["", "dns.example", "9.9.9.9:", "udp://9.9.9.9", "9.9.9.9,own"] {
            assert!(text.parse::<DnsResolver>().unwrap_err().contains("own, system"), "{text}");
        }
        for text in ["http://proxy.example:3128", "socks5://[::1]:1080"] {
            assert_eq!(text.parse::<ProxyUrl>().unwrap().to_string(), text);
        }
        let usual: ProxyUrl = "socks5://Proxy.example".parse().unwrap();
        assert_eq!((usual.host.as_str(), usual.port), ("proxy.example", 1080));
    }

    #[test]
    fn a_proxys_password_is_never_shown() {
        let proxy: ProxyUrl = "http://me:s%40cret@proxy.example:3128".parse().unwrap();
        assert_eq!(proxy.login, Some(("me".into(), "s@cret".into())));
        assert_eq!(format!("{proxy} {proxy:?}").matches("cret").count(), 0);
        for text in
            ["ftp://me:s3cret@x", "http://me:s3cret@", "http://me:s3cret@x/path", "s3cret", "http://me:s3cret@x:y"]
        {
            let why = text.parse::<ProxyUrl>().unwrap_err();
            assert!(!why.contains("s3cret") && why.contains("socks5://"), "{why}");
        }
    }
}
