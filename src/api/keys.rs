//! Replaces the master key and the admin token while the gateway runs.

use async_trait::async_trait;
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::SharedApiState;
use super::problem::{Problem, ProblemCode, Problems, StateProblems};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::id::TenantId;

/// Replaces the keys of a running installation.
#[async_trait]
pub trait KeyManager: Send + Sync {
    /// Makes a new master key and seals everything under it. Returns how many texts
    /// were sealed again. The audit log says so just before the new key is used.
    async fn rotate_master_key(&self, by: &Initiator) -> Result<usize, KeyRefusal>;

    /// Makes a new admin token, in force on every node that answers.
    async fn renew_admin_token(&self) -> Result<RenewedToken, KeyRefusal>;
}

/// The reason why a key was not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// Something has to be done first; the sentence says what.
    #[error("{0}")]
    NotYet(String),
    /// The store or the disk failed. What was begun is finished by the same call.
    #[error("{0}")]
    Failed(String),
}

impl From<KeyRefusal> for Problem {
    fn from(refusal: KeyRefusal) -> Self {
        let code = match refusal {
            KeyRefusal::NotYet(_) => ProblemCode::WrongState,
            KeyRefusal::Failed(_) => ProblemCode::Unavailable,
        };
        Self::new(code, refusal.to_string())
    }
}

/// A new admin token.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RenewedToken {
    /// The token. It is shown this once, and is in the file `admin-token` of the node that answered.
    pub token: String,
    /// How many other nodes did not confirm in time; there the old token is valid for some seconds more.
    #[schema(value_type = u64)]
    pub unconfirmed_nodes: usize,
}

/// The result of a rotation of the master key.
#[derive(Serialize, ToSchema)]
pub struct RotatedKeyView {
    /// How many secrets and settings were sealed again under the new key.
    #[schema(value_type = u64)]
    resealed: usize,
}

/// Replace the master key
///
/// Makes a new master key in the key file and seals every secret and setting under it, on both stores and with any number of nodes, while events are accepted and delivered. Every node must find the new key in its own key file; if one does not, the answer says so, and nothing is changed. If it is cut off at any moment, the same call finishes it.
#[utoipa::path(
    post, path = "/v1/master-key/rotate", operation_id = "rotate_master_key", tag = "status",
    responses((status = 200, body = RotatedKeyView), Problems, StateProblems),
    security(("token" = ["admin"])),
)]
pub async fn rotate(State(api): State<SharedApiState>, by: Initiator) -> Result<Json<RotatedKeyView>, Problem> {
    let resealed = api.keys.rotate_master_key(&by).await?;
    Ok(Json(RotatedKeyView { resealed }))
}

/// Make a new admin token
///
/// The old one is valid no more, on every node. The store has only its hash.
#[utoipa::path(
    post, path = "/v1/admin-token", operation_id = "renew_admin_token", tag = "tokens",
    responses((status = 201, body = RenewedToken), Problems, StateProblems),
    security(("token" = ["admin"])),
)]
pub async fn renew(
    State(api): State<SharedApiState>,
    by: Initiator,
) -> Result<(StatusCode, Json<RenewedToken>), Problem> {
    let audited = AuditedAction::new(AuditAction::AdminTokenRenewed, &TenantId::system(), "admin-token");
    api.gateway.store.record(&by, audited).await?;
    Ok((StatusCode::CREATED, Json(api.keys.renew_admin_token().await?)))
}
