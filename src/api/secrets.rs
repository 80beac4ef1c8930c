//! Lists and rotates the secrets that an endpoint's deliveries are signed with.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SharedApiState;
use super::endpoints::find;
use super::input::{DOCUMENT_BYTES_MAX, NamedEndpoint, TenantPath, document_from_json, read_body};
use super::page::Page;
use super::problem::{InputProblems, Problem, ProblemCode, Problems, StateProblems};
use super::provided_keys::ProvidedKeys;
use crate::lifecycle::change;
use crate::lifecycle::deliver::keys::public_key;
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::endpoint::Secret;
use crate::model::id::SecretId;
use crate::model::span::Span;
use crate::store::EndpointChange;

/// Time for which old secrets go on signing, if a rotation does not say.
pub const OVERLAP_DEFAULT: Span = Span::secs(24 * 3_600);
const OVERLAP_MAX: Span = Span::secs(7 * 86_400);

/// A secret as it is shown to those who may see it.
#[derive(Serialize, ToSchema)]
pub struct SecretView {
    /// The secret's id.
    #[schema(value_type = String)]
    id: SecretId,
    /// `whsec_` and the shared key in base64.
    secret: String,
    /// `whpk_` and the public key in base64, which verifies `v1a` signatures. Its private half is never shown.
    public_key: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it stops signing, once it was replaced.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// A new secret.
#[derive(Serialize, ToSchema)]
pub struct RotatedView {
    /// The secret's id.
    #[schema(value_type = String)]
    id: SecretId,
    /// `whsec_` and the shared key in base64.
    secret: String,
    /// `whpk_` and the public key in base64, which verifies `v1a` signatures.
    public_key: Option<String>,
}

/// List an endpoint's secrets, newest first
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/secrets", operation_id = "list_endpoint_secrets", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    responses((status = 200, body = Page<SecretView>), Problems),
    security(("token" = ["manage"])),
    extensions(("x-shows-secrets" = json!(true))),
)]
pub async fn list(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
) -> Result<Json<Page<SecretView>>, Problem> {
    let endpoint = find(&api, &tenant, id)?;
    // The audit entry is written before the secrets are shown.
    api.gateway.store.record(&by, AuditedAction::new(AuditAction::SecretsShown, &tenant, id)).await?;
    let now = api.gateway.clock.wall();
    let active = endpoint.secrets.iter().filter(|secret| secret.is_active(now));
    let show = |secret: &Secret| SecretView {
        id: secret.id,
        secret: secret.text.clone(),
        public_key: public_key(&secret.key),
        created_at: secret.created_at,
        expires_at: secret.expires_at,
    };
    Ok(Json(Page::whole(active.map(show).collect())))
}

/// Options of a rotation.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// How long the old secrets go on signing beside the new one: 0s to 7d, 24h if not said.
    #[schema(value_type = Option<String>, example = "24h")]
    overlap: Option<Span>,
    /// The new secret, `whsec_` and 24 to 64 bytes in base64; one is made if it is left out.
    secret: Option<String>,
    /// The new Ed25519 key, `whsk_` and 64 bytes in base64; one is made if it is left out.
    private_key: Option<String>,
}

/// Give an endpoint a new secret
///
/// The old ones go on signing beside it for a while, so receivers can change over without a gap.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/secrets/rotate", operation_id = "rotate_endpoint_secret", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body = Option<Rotation>,
    responses((status = 201, body = RotatedView), Problems, InputProblems, StateProblems),
    security(("token" = ["manage"])),
)]
pub async fn rotate(
    State(api): State<SharedApiState>,
    by: Initiator,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<RotatedView>), Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let rotation: Rotation =
        if body.trim_ascii().is_empty() { Rotation::default() } else { document_from_json(&body)? };
    let overlap = rotation.overlap.unwrap_or(OVERLAP_DEFAULT);
    if overlap > OVERLAP_MAX {
        return Err(Problem::field(
            ProblemCode::InvalidField,
            "/overlap",
            format!("overlap is {overlap}; use 0s to {OVERLAP_MAX}"),
        ));
    }
    let keys = ProvidedKeys { secret: rotation.secret, private_key: rotation.private_key };
    let secret = keys.mint(api.gateway.clock.wall())?;
    let view = RotatedView { id: secret.id, secret: secret.text.clone(), public_key: public_key(&secret.key) };
    let change = EndpointChange::Rotate { secret, overlap: overlap.0 };
    change::change_endpoint(&api.gateway, &by, &tenant, id, change).await?;
    Ok((StatusCode::CREATED, Json(view)))
}
