//! Who is asking? Bearer tokens, of which only hashes are kept.

use std::sync::RwLock;

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

/// The hash of the admin token in force. Another node may replace it.
#[derive(Debug)]
pub struct Admin(RwLock<TokenHash>);

impl Admin {
    /// With this hash.
    pub fn new(hash: TokenHash) -> Self {
        Self(RwLock::new(hash))
    }

    /// Puts another token in force, and the last one out of it. Tells whether
    /// that changed anything.
    pub fn replace(&self, hash: TokenHash) -> bool {
        let mut kept = self.0.write().expect("nothing panics while it is held");
        std::mem::replace(&mut *kept, hash) != hash
    }

    fn is(&self, token: &str) -> bool {
        let kept = *self.0.read().expect("nothing panics while it is held");
        constant_time::verify_slices_are_equal(&hash(token), &kept).is_ok()
    }
}

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
    match bearer(request.headers()).is_some_and(|token| api.admin.is(token)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_in_force_at_a_time() {
        let admin = Admin::new(hash("old"));
        assert!(admin.is("old") && !admin.is("new"));
        assert!(admin.replace(hash("new")) && !admin.replace(hash("new")));
        assert!(admin.is("new") && !admin.is("old"));
    }
}
