//! Decides how a browser reaches the pages: over TLS, on this machine, or in the
//! clear, where nobody is signed in.
//!
//! The scheme is never guessed from the socket: a proxy may have ended TLS.

use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;
use ipnet::IpNet;

use crate::api::origin::Peer;
use crate::model::page_address::PortalUrl;

/// How people reach the pages, as the settings say it.
#[derive(Debug, Clone, Default)]
pub struct TransportSettings {
    /// The public URL, without a slash at its end.
    pub public_url: Option<String>,
    /// The address of the portal, if it has a host of its own.
    pub portal_url: Option<PortalUrl>,
    /// Networks of trusted proxies.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether the listener of the pages speaks TLS itself.
    pub is_tls: bool,
}

/// How one request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrowserTransport {
    /// The browser speaks TLS.
    Https,
    /// The browser runs on this machine, without TLS.
    Loopback,
    /// The browser speaks plain HTTP over a network.
    Plain,
}

impl BrowserTransport {
    /// Returns the scheme of the browser's address.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Loopback | Self::Plain => "http",
        }
    }
}

impl TransportSettings {
    /// Returns how this request came.
    pub fn of(&self, request: &Parts) -> BrowserTransport {
        let peer = request.extensions.get::<Peer>().map(|peer| peer.0.to_canonical());
        let is_proxy = peer.is_some_and(|peer| self.trusted_proxies.iter().any(|network| network.contains(&peer)));
        let host = host_of(&request.headers);
        let public = self.public_url.as_deref().and_then(|url| url.strip_prefix("https://"));
        let public_host = public.map(|rest| rest.split('/').next().unwrap_or_default());
        if self.is_tls
            || (is_proxy && forwarded_scheme(&request.headers) == Some("https"))
            || (public_host.is_some() && public_host == host)
            || host.is_some_and(|host| self.is_portal_over_tls(host))
        {
            return BrowserTransport::Https;
        }
        let is_local_peer = peer.is_some_and(|peer| peer.is_loopback());
        if is_local_peer && host.is_some_and(is_loopback_host) {
            BrowserTransport::Loopback
        } else {
            BrowserTransport::Plain
        }
    }

    fn is_portal_over_tls(&self, host: &str) -> bool {
        let portal = self.portal_url.as_ref().filter(|portal| portal.as_str().starts_with("https://"));
        portal.is_some_and(|portal| portal.is_host(host))
    }

    /// Returns the path below which the public URL serves, such as `/hooks`; empty
    /// for none.
    pub fn prefix(&self) -> &str {
        let Some((_, rest)) = self.public_url.as_deref().and_then(|url| url.split_once("://")) else { return "" };
        rest.find('/').map_or("", |slash| &rest[slash..])
    }
}

/// Returns the host and port that a request names.
pub fn host_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

/// Returns the port that a request names, for the names of cookies.
pub fn port_of(request: &Parts) -> u16 {
    let host = host_of(&request.headers).unwrap_or_default();
    host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(80)
}

fn forwarded_scheme(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-forwarded-proto").and_then(|scheme| scheme.to_str().ok())
}

fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(reach: &TransportSettings, peer: &str, host: &str, proto: Option<&str>) -> BrowserTransport {
        let mut request = http::Request::builder().header(HOST, host).body(()).unwrap();
        if let Some(proto) = proto {
            request.headers_mut().insert("x-forwarded-proto", proto.parse().unwrap());
        }
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        reach.of(&request.into_parts().0)
    }

    #[test]
    fn plain_http_is_for_this_machine_alone() {
        let reach = TransportSettings::default();
        for host in ["127.0.0.1:8400", "localhost:8400", "[::1]:8400", "dash.localhost"] {
            assert_eq!(came(&reach, "127.0.0.1", host, None), BrowserTransport::Loopback, "{host}");
            assert_eq!(came(&reach, "192.0.2.1", host, None), BrowserTransport::Plain, "{host} from another machine");
        }
        assert_eq!(came(&reach, "127.0.0.1", "hooks.example.com", None), BrowserTransport::Plain);
        assert_eq!(came(&reach, "127.0.0.1", "localhost.example.com", None), BrowserTransport::Plain);
        assert_eq!(
            came(&reach, "127.0.0.1", "hooks.example.com", Some("https")),
            BrowserTransport::Plain,
            "no trusted proxy"
        );
    }

    #[test]
    fn tls_is_known_from_settings_and_trusted_proxies() {
        let proxied =
            TransportSettings { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ..TransportSettings::default() };
        assert_eq!(came(&proxied, "10.1.2.3", "h.example.com", Some("https")), BrowserTransport::Https);
        assert_eq!(came(&proxied, "10.1.2.3", "h.example.com", Some("http")), BrowserTransport::Plain);
        let public = TransportSettings {
            public_url: Some("https://h.example.com/hooks".into()),
            ..TransportSettings::default()
        };
        assert_eq!(came(&public, "127.0.0.1", "h.example.com", None), BrowserTransport::Https);
        assert_eq!(came(&public, "127.0.0.1", "127.0.0.1:8400", None), BrowserTransport::Loopback);
        let portal = TransportSettings {
            portal_url: Some("https://portal.example.com".parse().unwrap()),
            ..TransportSettings::default()
        };
        assert_eq!(came(&portal, "127.0.0.1", "portal.example.com", None), BrowserTransport::Https);
        assert_eq!((public.prefix(), TransportSettings::default().prefix()), ("/hooks", ""));
        assert_eq!(
            came(&TransportSettings { is_tls: true, ..TransportSettings::default() }, "192.0.2.1", "x", None),
            BrowserTransport::Https
        );
    }
}
