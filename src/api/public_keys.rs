//! Serves the public keys of endpoints to receivers, who have no token.
//!
//! It shows nothing else. Whatever has no keys to show is answered alike: an
//! unknown tenant, an unknown endpoint, and one that does not sign with a private key.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::CACHE_CONTROL;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::problem::{Problem, ProblemCode, PublicKeyProblems};
use crate::lifecycle::deliver::keys::{public_key_bytes, public_key_text};
use crate::model::id::{EndpointId, TenantId};
use crate::model::signing::Signing;

/// The public keys that verify the `v1a` signatures of an endpoint's deliveries, as a JSON Web Key Set.
#[derive(Serialize, ToSchema)]
pub struct PublicKeysView {
    /// The keys in use, newest first. A delivery is signed with each of them.
    keys: Vec<PublicKeyView>,
}

/// A public key.
#[derive(Serialize, ToSchema)]
pub struct PublicKeyView {
    /// `whpk_` and the key in base64, as the verifier libraries take it.
    public_key: String,
    /// The kind of key: always `OKP`.
    kty: &'static str,
    /// The curve: always `Ed25519`.
    crv: &'static str,
    /// What it is used for: always `sig`.
    #[serde(rename = "use")]
    usage: &'static str,
    /// The key in base64url, as a JSON Web Key has it.
    x: String,
}

/// Fetch the public keys of an endpoint
///
/// For receivers that verify `v1a` signatures; they need no token. The path ends in the endpoint's id and `.json`. Keys may be cached for five minutes; after a signature that no cached key verifies, fetch them again.
#[utoipa::path(
    get, path = "/keys/{tenant}/{file}", operation_id = "fetch_public_keys", tag = "receivers",
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("file" = String, Path, description = "The endpoint's id and `.json`"),
    ),
    responses((status = 200, body = PublicKeysView), PublicKeyProblems),
    security(()),
)]
pub async fn fetch(
    State(api): State<SharedApiState>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let found = path.ok().and_then(|Path((tenant, file))| keys_of(&api, &tenant, &file));
    let view = found.ok_or_else(|| {
        Problem::new(ProblemCode::NotFound, "there are no public keys here; check the tenant's and the endpoint's id")
    })?;
    Ok(([(CACHE_CONTROL, "public, max-age=300")], Json(view)).into_response())
}

fn keys_of(api: &SharedApiState, tenant: &str, file: &str) -> Option<PublicKeysView> {
    let tenant: TenantId = tenant.parse().ok()?;
    let id: EndpointId = file.strip_suffix(".json")?.parse().ok()?;
    let endpoint = api.gateway.store.endpoint(&tenant, id)?;
    if endpoint.settings.signing != Signing::Ed25519 {
        return None;
    }
    let now = api.gateway.clock.wall();
    let active = endpoint.secrets.iter().filter(|secret| secret.is_active(now));
    let keys: Vec<PublicKeyView> = active.filter_map(|secret| Some(view(&public_key_bytes(&secret.key)?))).collect();
    (!keys.is_empty()).then_some(PublicKeysView { keys })
}

fn view(bytes: &[u8]) -> PublicKeyView {
    let (public_key, x) = (public_key_text(bytes), URL_SAFE_NO_PAD.encode(bytes));
    PublicKeyView { public_key, kty: "OKP", crv: "Ed25519", usage: "sig", x }
}
