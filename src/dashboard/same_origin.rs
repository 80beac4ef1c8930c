//! Refuses actions that another site asks for in the name of a person who is
//! signed in.
//!
//! Browsers say where a request comes from: `Sec-Fetch-Site` over TLS and on
//! loopback, else `Origin`. In a frame cookies are sent whatever site holds it, so
//! a form also carries a token that only our own pages can know.

use aws_lc_rs::{constant_time, hmac};
use http::StatusCode;
use http::header::ORIGIN;
use http::request::Parts;

use super::page_error::PageError;
use super::transport::{BrowserTransport, host_of};

/// Name of the form's field with the token.
pub const FORM_TOKEN: &str = "form_token";

/// Refuses a request that a page of another origin has made.
pub fn check(request: &Parts, transport: BrowserTransport) -> Result<(), PageError> {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = match header("sec-fetch-site") {
        Some(site) => site == "same-origin",
        None => {
            let own = host_of(&request.headers).map(|host| format!("{}://{host}", transport.scheme()));
            own.is_some() && header(ORIGIN.as_str()).map(str::to_owned) == own
        }
    };
    if is_own {
        return Ok(());
    }
    Err(PageError::new(
        StatusCode::FORBIDDEN,
        "this form was sent from another site, and nothing was changed; open the page here and try again",
    ))
}

/// Returns the token that the forms of a session carry.
pub fn form_token(session_secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, session_secret.as_bytes());
    hex::encode(hmac::sign(&key, b"form"))
}

/// Refuses a form whose token is missing or another session's.
pub fn check_form_token(session_secret: &str, given: Option<&str>) -> Result<(), PageError> {
    let expected = form_token(session_secret);
    let is_own = given
        .is_some_and(|given| constant_time::verify_slices_are_equal(given.as_bytes(), expected.as_bytes()).is_ok());
    if is_own {
        return Ok(());
    }
    Err(PageError::new(
        StatusCode::FORBIDDEN,
        "this form belongs to another sign-in, and nothing was changed; load the page again and repeat it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_own(headers: &[(&str, &str)], transport: BrowserTransport) -> bool {
        let mut request = http::Request::builder().header("host", "h.example.com");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0, transport).is_ok()
    }

    #[test]
    fn only_our_own_pages_may_ask() {
        use BrowserTransport::{Https, Plain};
        assert!(is_own(&[("sec-fetch-site", "same-origin")], Https));
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!is_own(&[("sec-fetch-site", site), ("origin", "https://h.example.com")], Https), "{site}");
        }
        assert!(is_own(&[("origin", "https://h.example.com")], Https));
        for origin in ["https://evil.example.com", "http://h.example.com", "null", "https://h.example.com:444"] {
            assert!(!is_own(&[("origin", origin)], Https), "{origin}");
        }
        assert!(!is_own(&[], Https), "a browser always says where it comes from");
        assert!(is_own(&[("origin", "http://h.example.com")], Plain));
    }

    #[test]
    fn a_form_belongs_to_its_sign_in() {
        let token = form_token("phs_a");
        assert!(check_form_token("phs_a", Some(&token)).is_ok());
        for given in [None, Some(""), Some("x"), Some(form_token("phs_b").as_str())] {
            assert!(check_form_token("phs_a", given).is_err(), "{given:?}");
        }
    }
}
