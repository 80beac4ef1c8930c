//! The headers of every page: what it may load, who may frame it, that nothing
//! keeps a copy.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderName};

use crate::model::sign_in::Site;

/// Adds the headers of a page to an answer.
pub fn add(headers: &mut HeaderMap, site: Site, portal_origins: &[String]) {
    let ancestors = match site {
        Site::Portal if !portal_origins.is_empty() => portal_origins.join(" "),
        Site::Operator | Site::Portal => "'none'".to_owned(),
    };
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}; \
         require-trusted-types-for 'script'; trusted-types pages"
    );
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).expect("origins are plain ASCII"));
    if ancestors == "'none'" {
        headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // With no-referrer a browser would send `Origin: null` with forms.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("Cookie"));
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    headers.insert(
        HeaderName::from_static("permissions-policy"),
        HeaderValue::from_static("camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    );
}

/// Confines a file with the words of strangers: a browser that shows it all the same
/// runs nothing of it, and not in our name.
pub fn confine(headers: &mut HeaderMap) {
    let policy = HeaderValue::from_static("default-src 'none'; sandbox; frame-ancestors 'none'");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
}
