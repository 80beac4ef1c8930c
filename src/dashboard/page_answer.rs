//! What a page or an action answers.

use axum::response::Response;
use bytes::Bytes;

/// The answer of a page or an action.
pub enum PageAnswer {
    /// A whole page as HTML.
    Html(String),
    /// Another address, which the browser asks for by GET.
    LeadTo(String),
    /// A stylesheet or a picture of the portal.
    Asset {
        /// What kind of content it is.
        content_type: &'static str,
        /// Content of the file.
        content: Bytes,
        /// Whether it was asked for by the digest of this content, so that it may be kept.
        is_by_digest: bool,
    },
    /// A stream of the API, passed on as it comes.
    Stream(Response),
    /// A file to keep, as text.
    Download {
        /// Name of the file.
        name: String,
        /// Content of the file.
        content: Bytes,
    },
}
