//! Reads the host and the port from a URL.
//!
//! The URL parser is as lenient as browsers are: it drops tabs and line breaks,
//! turns backslashes into slashes, and reads `http:example.com` as a host. Such
//! a URL is likely an attack on parsers that disagree, so the text itself is
//! checked first.

use std::net::IpAddr;

use http::Uri;
use url::Url;

use crate::model::parse_fault::url_fault;

/// Most bytes of a URL.
const URL_BYTES_MAX: usize = 2_048;
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// The host, port and encryption that a URL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host of the URL.
    pub host: Host,
    /// Port of the URL, or the default of its scheme.
    pub port: u16,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}

/// A host, as a name or as an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// Name in lower case ASCII, without a dot at its end.
    Name(String),
    /// IP address, in whatever form it was written.
    Address(IpAddr),
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl Target {
    /// Reads a URL that a person wrote; returns its canonical form and its
    /// target, or what is wrong with it.
    pub fn read(text: &str) -> Result<(Url, Self), String> {
        let authority = parse_authority(text)?;
        let mut url = Url::parse(text)
            .map_err(|problem| format!("url {text:?} cannot be read: {}; use https://host/path", url_fault(problem)))?;
        if authority.contains('@') {
            return Err("url holds a user name or password; put credentials into headers instead".into());
        }
        if authority.contains('%') {
            return Err(
                "url has a % in its host, as zones and encoded names do; write the plain name or address".into()
            );
        }
        if url.fragment().is_some() {
            return Err("url has a fragment (#…), which is never sent; remove it".into());
        }
        let nowhere = || format!("url {text:?} names no host and port that can be called; use https://host/path");
        let host = parse_host(url.host().ok_or_else(nowhere)?.to_owned())?;
        if let Host::Name(name) = &host {
            url.set_host(Some(name)).map_err(|_| nowhere())?;
        }
        if url.as_str().len() > URL_BYTES_MAX {
            let length = url.as_str().len();
            return Err(format!("url is {length} bytes long once it is encoded; use at most {URL_BYTES_MAX}"));
        }
        let port = url.port_or_known_default().ok_or_else(nowhere)?;
        let is_tls = url.scheme() == "https";
        Ok((url, Self { host, port, is_tls }))
    }

    /// Returns the target of a request's URI, or nothing if it is ambiguous.
    pub fn of(uri: &Uri) -> Option<Self> {
        let is_tls = uri.scheme_str()? == "https";
        let host = parse_host(url::Host::parse(uri.host()?).ok()?).ok()?;
        Some(Self { host, port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }), is_tls })
    }
}

/// Returns the part between scheme and path, after checking the whole text for
/// what a lenient parser would accept.
fn parse_authority(text: &str) -> Result<&str, String> {
    if text.len() > URL_BYTES_MAX {
        return Err(format!("url is {} bytes long; use at most {URL_BYTES_MAX}", text.len()));
    }
    if let Some(at) = text.find(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(format!("url has a space or control character at byte {at}; remove or encode it"));
    }
    if let Some(at) = text.find('\\') {
        return Err(format!("url has a backslash at byte {at}; write / or %5C"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("url {text:?} cannot be read; use https://host/path"));
    };
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(format!("url has the scheme {scheme:?}; use http or https"));
    }
    match rest.split(['/', '?', '#']).next() {
        Some("") | None => Err(format!("url {text:?} names no host and port that can be called")),
        Some(authority) => Ok(authority),
    }
}

fn parse_host(host: url::Host<String>) -> Result<Host, String> {
    let name = match host {
        url::Host::Ipv4(address) => return Ok(Host::Address(address.into())),
        url::Host::Ipv6(address) => return Ok(Host::Address(IpAddr::from(address).to_canonical())),
        url::Host::Domain(name) => name,
    };
    let name = name.strip_suffix('.').unwrap_or(&name).to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_plain = label.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'));
        let has_outer_hyphen = label.starts_with('-') || label.ends_with('-');
        (1..=LABEL_BYTES_MAX).contains(&label.len()) && is_plain && !has_outer_hyphen
    };
    if name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label) {
        return Ok(Host::Name(name));
    }
    Err(format!(
        "url names the host {name:?}, which is no name; use letters, digits and hyphens between dots, at most 63 in a row"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, String, u16) {
        let (url, target) = Target::read(text).unwrap_or_else(|problem| panic!("{text:?}: {problem}"));
        (url.to_string(), target.host.to_string(), target.port)
    }

    #[test]
    fn what_is_kept_is_the_canonical_form() {
        for (text, url, host, port) in [
            ("https://example.com", "https://example.com/", "example.com", 443),
            ("HTTPS://Example.COM:443/A?b=c", "https://example.com/A?b=c", "example.com", 443),
            ("http://example.com.:8080/x", "http://example.com:8080/x", "example.com", 8080),
            ("https://bücher.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
            ("https://a_b.example/ü", "https://a_b.example/%C3%BC", "a_b.example", 443),
            ("https://0x5d.0270.55330/", "https://93.184.216.34/", "93.184.216.34", 443),
            ("https://[2606:2800:0:0::1]/", "https://[2606:2800::1]/", "2606:2800::1", 443),
            ("https://[::ffff:93.184.216.34]/", "https://[::ffff:5db8:d822]/", "93.184.216.34", 443),
        ] {
            assert_eq!(read(text), (url.to_owned(), host.to_owned(), port), "{text}");
        }
    }

    #[test]
    fn a_host_that_is_no_name_is_refused() {
        for host in ["-", "-a.example", "a-.example", "a..example", "a b", &"a".repeat(64)] {
            assert!(Target::read(&format!("https://{host}/")).is_err(), "{host}");
        }
        read("https://a-b.example/");
    }

    #[test]
    fn what_is_kept_is_no_longer_than_what_can_be_read() {
        let long = |letter: &str, count| Target::read(&format!("https://a.example/{}", letter.repeat(count)));
        assert!(long("x", URL_BYTES_MAX - 18).is_ok() && long("x", URL_BYTES_MAX - 17).is_err());
        // An ü takes two bytes, and six once it is encoded.
        assert!(long("ü", 338).is_ok() && long("ü", 339).unwrap_err().contains("2052 bytes"));
    }

    #[test]
    fn what_a_request_is_sent_to_is_what_was_read() {
        for text in ["https://example.com/", "http://127.0.0.1:9000/x", "https://[::1]:8443/", "http://a.example:80/"] {
            let (url, target) = Target::read(text).unwrap();
            assert_eq!(Target::of(&url.as_str().parse().unwrap()), Some(target), "{text}");
        }
        let written = Target::of(&"http://2130706433./".parse().unwrap()).unwrap();
        assert_eq!(written.host, Host::Address([127, 0, 0, 1].into()), "also one that nobody had read");
        assert_eq!(Target::of(&"/relative".parse().unwrap()), None);
    }
}
