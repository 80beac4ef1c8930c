//! Serves the stylesheet, the script and the icon of the pages, each under the
//! digest of its content, so that browsers may keep them for ever.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

/// What an answer says that is kept for ever, since its address has the digest of its content.
pub const KEPT_FOR_EVER: &str = "public, max-age=31536000, immutable";
/// The same for what only one person may see.
pub const KEPT_BY_ONE_BROWSER: &str = "private, max-age=31536000, immutable";

/// Returns the digest that stands for a content in its address.
pub fn content_digest(content: &[u8]) -> String {
    hex::encode(&digest::digest(&digest::SHA256, content).as_ref()[..8])
}

/// One file that pages load.
pub struct Asset {
    name: &'static str,
    content_type: &'static str,
    content: &'static [u8],
    digest: String,
}

impl Asset {
    fn new(name: &'static str, content_type: &'static str, content: &'static [u8]) -> Self {
        Self { name, content_type, content, digest: content_digest(content) }
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
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(KEPT_FOR_EVER));
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

    #[test]
    fn a_region_that_is_refreshed_is_on_its_page_also_while_it_has_nothing_to_show() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard/templates");
        let mut regions = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let template = std::fs::read_to_string(&path).unwrap();
            let ids = conditional_regions(&template);
            for id in &ids {
                let count = ids.iter().filter(|other| *other == id).count();
                assert!(count > 1, "{}: #{id} is left out, and a page that is open keeps or misses it", path.display());
            }
            regions += template.matches(" data-live").count();
        }
        assert!(regions > 30, "{regions}");
    }

    /// Returns the ids of regions of a template that depend on something else than who is signed in.
    fn conditional_regions(template: &str) -> Vec<String> {
        let (mut conditions, mut ids) = (Vec::new(), Vec::new());
        for (number, part) in template.split("{%").enumerate() {
            let (tag, html) = if number == 0 { ("", part) } else { part.split_once("%}").unwrap() };
            let tag = tag.trim_matches(['-', ' ']);
            match tag.split(' ').next().unwrap_or_default() {
                "if" | "for" | "match" => conditions.push(tag.strip_prefix("if frame.").is_some()),
                "endif" | "endfor" | "endmatch" => drop(conditions.pop()),
                _ => {}
            }
            let elements = html.split('<').filter(|element| element.contains(" data-live"));
            let found = elements.filter_map(|element| element.split("id=\"").nth(1)?.split('"').next());
            if conditions.contains(&false) {
                ids.extend(found.map(str::to_owned));
            }
        }
        ids
    }
}
