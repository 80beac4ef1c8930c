//! Serves the stylesheet, the script and the icon of the pages, each under the
//! digest of its content, so that browsers may keep them for ever.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

/// One file that pages load.
pub struct Asset {
    name: &'static str,
    content_type: &'static str,
    content: &'static [u8],
    digest: String,
}

impl Asset {
    fn new(name: &'static str, content_type: &'static str, content: &'static [u8]) -> Self {
        let digest = hex::encode(&digest::digest(&digest::SHA256, content).as_ref()[..8]);
        Self { name, content_type, content, digest }
    }

    /// Returns its path below the root of the pages.
    pub fn path(&self) -> String {
        format!("assets/{}/{}", self.digest, self.name)
    }
}

/// The stylesheet of all pages.
pub static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("pages.css", "text/css; charset=utf-8", STYLE_PARTS.as_bytes()));

/// The parts of the stylesheet: the frame, then what single pages add.
const STYLE_PARTS: &str = concat!(
    include_str!("assets/pages.css"),
    include_str!("assets/endpoints.css"),
    include_str!("assets/deliveries.css"),
    include_str!("assets/recovery.css"),
    include_str!("assets/tools.css"),
);

/// The script of all pages, which they work without.
pub static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("pages.js", "text/javascript; charset=utf-8", include_bytes!("assets/pages.js")));
/// The icon in the browser's tab.
pub static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_bytes!("assets/icon.svg")));

/// Serves an asset by its digest and name.
pub async fn serve(Path((digest, name)): Path<(String, String)>) -> Response {
    let asset = [&*STYLE, &*SCRIPT, &*ICON].into_iter().find(|asset| asset.digest == digest && asset.name == name);
    let Some(asset) = asset else { return StatusCode::NOT_FOUND.into_response() };
    let mut response = asset.content.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_stays_small_and_evaluates_nothing() {
        let script = std::str::from_utf8(SCRIPT.content).unwrap();
        assert!(script.lines().count() <= 500, "{} lines", script.lines().count());
        for word in ["eval(", "innerHTML", "outerHTML =", "document.write", "http://", "https://", "localStorage"] {
            assert!(!script.contains(word), "{word}");
        }
    }
}
