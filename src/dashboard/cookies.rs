//! The cookies of the pages: one for the session of each site, one for the look.

use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use super::transport::{BrowserTransport, port_of};
use crate::model::sign_in::Site;

/// The cookie that holds a session's secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCookie {
    name: String,
    site: Site,
    transport: BrowserTransport,
}

impl SessionCookie {
    /// Returns the cookie of a site for how this request came. Cookies ignore
    /// ports, so without TLS its name has the port of the gateway.
    pub fn of(site: Site, transport: BrowserTransport, request: &Parts) -> Self {
        let base = match site {
            Site::Operator => "posthaste",
            Site::Portal => "posthaste-portal",
        };
        let name = match transport {
            BrowserTransport::Https => format!("__Host-{base}"),
            BrowserTransport::Loopback | BrowserTransport::Plain => format!("{base}-{}", port_of(request)),
        };
        Self { name, site, transport }
    }

    /// Returns the cookie beside it that has the way back; see [`WayBack`](super::way_back::WayBack).
    pub fn way_back(&self) -> Self {
        Self { name: format!("{}-back", self.name), ..self.clone() }
    }

    /// Returns the session's secret that a request carries; none if it has two.
    pub fn read(&self, headers: &HeaderMap) -> Option<String> {
        let mut values = cookies(headers).filter(|(name, _)| *name == self.name).map(|(_, value)| value.to_owned());
        let first = values.next()?;
        values.next().is_none().then_some(first)
    }

    /// Returns the header that sets it until the browser is closed.
    pub fn set(&self, secret: &str) -> HeaderValue {
        self.header(secret, "")
    }

    /// Returns the header that removes it.
    pub fn remove(&self) -> HeaderValue {
        self.header("", "; Max-Age=0")
    }

    fn header(&self, value: &str, more: &str) -> HeaderValue {
        // A frame on another site gets no cookie that is not SameSite=None, and no
        // third-party cookie that is not partitioned.
        let kind = match (self.site, self.transport) {
            (Site::Operator, BrowserTransport::Https) => "; Secure; SameSite=Strict",
            (Site::Operator, _) => "; SameSite=Strict",
            (Site::Portal, BrowserTransport::Https) => "; Secure; SameSite=None; Partitioned",
            (Site::Portal, _) => "; SameSite=Lax",
        };
        let text = format!("{}={value}; Path=/; HttpOnly{kind}{more}", self.name);
        HeaderValue::try_from(text).expect("names and secrets are plain ASCII")
    }
}

/// Whether pages are light or dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum ThemeChoice {
    /// As the browser says.
    #[default]
    Auto,
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

const LOOK: &str = "posthaste-look";

impl ThemeChoice {
    /// Returns the look that a browser has chosen.
    pub fn of(headers: &HeaderMap) -> Self {
        cookies(headers).find(|(name, _)| *name == LOOK).and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
    }

    /// Returns its name.
    pub fn as_text(self) -> &'static str {
        self.into()
    }

    /// Returns the header that keeps it for a year.
    pub fn set(self, transport: BrowserTransport) -> HeaderValue {
        let secure = if transport == BrowserTransport::Https {
            "; Secure; SameSite=None; Partitioned"
        } else {
            "; SameSite=Lax"
        };
        let text = format!("{LOOK}={}; Path=/; Max-Age=31536000; HttpOnly{secure}", self.as_text());
        HeaderValue::try_from(text).expect("names of looks are plain ASCII")
    }
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str, cookie: &str) -> Parts {
        http::Request::builder().header("host", host).header(COOKIE, cookie).body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_session_is_kept_as_safely_as_the_way_allows() {
        let request = request("h.example.com", "");
        let set = |site, transport| SessionCookie::of(site, transport, &request).set("s").to_str().unwrap().to_owned();
        assert_eq!(
            set(Site::Operator, BrowserTransport::Https),
            "__Host-posthaste=s; Path=/; HttpOnly; Secure; SameSite=Strict"
        );
        assert_eq!(
            set(Site::Portal, BrowserTransport::Https),
            "__Host-posthaste-portal=s; Path=/; HttpOnly; Secure; SameSite=None; Partitioned"
        );
        assert_eq!(
            set(Site::Operator, BrowserTransport::Loopback),
            "posthaste-80=s; Path=/; HttpOnly; SameSite=Strict"
        );
    }

    #[test]
    fn gateways_on_one_machine_do_not_share_a_cookie_and_two_values_are_none() {
        let request = request("127.0.0.1:8400", "posthaste-8400=a; posthaste-8401=b; x=1");
        let cookie = SessionCookie::of(Site::Operator, BrowserTransport::Loopback, &request);
        assert_eq!(cookie.read(&request.headers), Some("a".into()));
        let twice = self::request("127.0.0.1:8400", "posthaste-8400=a; posthaste-8400=b");
        assert_eq!(cookie.read(&twice.headers), None);
    }

    #[test]
    fn a_look_is_one_of_three() {
        let look = |cookie: &str| ThemeChoice::of(&request("h", cookie).headers);
        assert_eq!(look("posthaste-look=dark"), ThemeChoice::Dark);
        assert_eq!(look("posthaste-look=\"><script>"), ThemeChoice::Auto);
        assert_eq!(look(""), ThemeChoice::Auto);
    }
}
