//! Who is asking? Bearer tokens, of which only hashes are kept.

use aws_lc_rs::{constant_time, digest};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::Api;
use super::problem::{Code, Problem};

/// What every admin token begins with, so that scanners can find lost ones.
const ADMIN_PREFIX: &str = "pha_";

/// The hash of a token, as kept.
pub type TokenHash = [u8; 32];

/// A fresh admin token.
pub fn new_admin_token(random: [u8; 32]) -> String {
    format!("{ADMIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random))
}

/// The hash to keep of a token. It has 256 random bits, so a fast hash is enough.
pub fn hash(token: &str) -> TokenHash {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Lets a request through that carries a valid token.
pub async fn require_token(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Problem> {
    let is_valid = bearer(request.headers())
        .is_some_and(|token| constant_time::verify_slices_are_equal(&hash(token), &api.admin).is_ok());
    match is_valid {
        true => Ok(next.run(request).await),
        false => Err(Problem::new(
            Code::Unauthenticated,
            "a valid token is needed: send `Authorization: Bearer <token>`; the first start wrote one to admin-token in the data directory",
        )),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
