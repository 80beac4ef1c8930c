//! Addresses of web pages that people give: where to return to, and who may frame
//! the portal.

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;
use http::header::HOST;
use url::{Host, Url};

/// Longest address, in bytes.
const ADDRESS_BYTES_MAX: usize = 2_048;

/// Whether a host is this machine, where no encryption is needed.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Reads an address that a browser may be sent to: https, or http on this machine,
/// without a user in it.
fn safe_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok().filter(|_| text.len() <= ADDRESS_BYTES_MAX)?;
    let is_plain = url.username().is_empty() && url.password().is_none() && !text.chars().any(char::is_control);
    let is_safe = match url.scheme() {
        "https" => url.has_host(),
        "http" => is_loopback(&url),
        _ => false,
    };
    (is_plain && is_safe).then_some(url)
}

/// Returns the address of a page to return to, as it is stored, or why it cannot
/// be one.
pub fn return_url(text: &str) -> Result<String, String> {
    safe_url(text).map(String::from).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        format!(
            "return_url is {shown:?}; use an https address of at most {ADDRESS_BYTES_MAX} bytes without a user in it (http only for localhost)"
        )
    })
}

/// An origin that may show the portal in a frame, such as `https://app.example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameOrigin(String);

impl FrameOrigin {
    /// Returns the origin as `frame-ancestors` has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FrameOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let origin = safe_url(text).filter(|url| {
            matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none() && !text.contains('*')
        });
        origin.map(|url| Self(url.origin().ascii_serialization())).ok_or_else(|| {
            format!("{text:?} is not an origin; write https://host or https://host:port (http only for localhost)")
        })
    }
}

impl fmt::Display for FrameOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address of the portal on a host of its own, such as `https://webhooks.example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortalUrl(FrameOrigin);

impl PortalUrl {
    /// Returns the address, without a slash at its end.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether a request is for the portal's host: by its headers, or by the host of a whole
    /// address before them. The port does not count, since proxies choose by the name alone,
    /// and pass on whatever port was given.
    pub fn is_asked(&self, headers: &HeaderMap, address_host: Option<&str>) -> bool {
        let named = headers.get_all(HOST).iter().filter_map(|host| host.to_str().ok());
        named.chain(address_host).any(|host| self.has_name(host))
    }

    /// Whether this host, perhaps with a port, has the name of the portal's.
    pub fn has_name(&self, given: &str) -> bool {
        let own = self.as_str().split_once("://").map_or("", |(_, host)| host);
        name_of(given) == name_of(own)
    }

    /// Whether this is the portal's host and port.
    pub fn is_host(&self, given: &str) -> bool {
        let (scheme, own) = self.as_str().split_once("://").unwrap_or_default();
        let usual = if scheme == "https" { ":443" } else { ":80" };
        let given = given.to_ascii_lowercase();
        let given = given.strip_suffix(usual).unwrap_or(&given);
        // A name may end in a dot, before its port.
        let (name, port) = given.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).unwrap_or((given, ""));
        let name = name.strip_suffix('.').unwrap_or(name);
        if port.is_empty() { name == own } else { own == format!("{name}:{port}") }
    }
}

/// Returns the name of a host in lower case, without a port and the dot that may end it.
fn name_of(host: &str) -> String {
    let name = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map_or(host, |(name, _)| name);
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

impl FromStr for PortalUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!("{text:?} is not the address of a portal; write https://webhooks.example.com, without a path")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_sent_back_to_https_alone() {
        for fine in
            ["https://app.example.com/hooks?tab=1#x", "http://localhost:3000/", "http://127.0.0.1/", "http://[::1]/"]
        {
            assert!(return_url(fine).is_ok(), "{fine}");
        }
        let long = format!("https://a.example/{}", "x".repeat(2_048));
        for odd in [
            "",
            "app.example.com",
            "/portal",
            "//evil.example",
            "http://app.example.com/",
            "javascript:alert(1)",
            "data:text/html,x",
            "https://user@app.example.com/",
            "https://user:pass@app.example.com/",
            "http://localhost.evil.example/",
            "https://a.example/\n",
            &long,
        ] {
            assert!(return_url(odd).unwrap_err().starts_with("return_url is "), "{odd}");
        }
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        let origin = |text: &str| text.parse::<FrameOrigin>().map(|origin| origin.to_string());
        assert_eq!(origin("https://App.example.com/").as_deref(), Ok("https://app.example.com"));
        assert_eq!(origin("https://app.example.com:8443").as_deref(), Ok("https://app.example.com:8443"));
        assert_eq!(origin("http://localhost:3000").as_deref(), Ok("http://localhost:3000"));
        for odd in [
            "*",
            "https://*.example.com",
            "https://a.example/x",
            "https://a.example?x",
            "http://a.example",
            "'none'",
            "",
        ] {
            assert!(origin(odd).unwrap_err().contains("is not an origin"), "{odd}");
        }
    }

    #[test]
    fn a_host_is_the_portals_however_it_is_written() {
        let is_host = |url: &str, given: &str| url.parse::<PortalUrl>().unwrap().is_host(given);
        for given in ["a.example", "A.example", "a.example:443", "a.example.", "a.example.:443"] {
            assert!(is_host("https://a.example/", given), "{given}");
        }
        for given in ["", "b.example", "a.example:80", "a.example.b.example", "x.a.example", "a.example:8443"] {
            assert!(!is_host("https://a.example", given), "{given}");
        }
        assert!(is_host("http://portal.localhost:8400", "portal.localhost:8400"));
        assert!(is_host("http://portal.localhost:8400", "portal.localhost.:8400"));
        assert!(!is_host("http://portal.localhost:8400", "portal.localhost"));
        assert!(is_host("http://[::1]:8400", "[::1]:8400") && is_host("http://[::1]", "[::1]"));
        let portal: PortalUrl = "https://a.example.".parse().unwrap();
        for given in ["a.example", "A.Example.", "a.example:443", "a.example:1", "a.example.:80"] {
            assert!(portal.has_name(given), "{given}");
        }
        for given in ["", "b.example", "a.example.b.example", "x.a.example", "[::1]:443"] {
            assert!(!portal.has_name(given), "{given}");
        }
        for odd in ["https://a.example/portal", "http://a.example", "a.example", ""] {
            assert!(odd.parse::<PortalUrl>().unwrap_err().contains("without a path"), "{odd}");
        }
    }
}
