//! What a page or an action answers.

use axum::response::Response;
use bytes::Bytes;

/// The answer of a page or an action.
pub enum PageAnswer {
    /// A whole page as HTML.
    Html(String),
    /// Another address, which the browser asks for by GET.
    LeadTo(String),
    /// A picture as PNG.
    Picture(Bytes),
    /// A stylesheet as text.
    Style(String),
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
