//! Checks a request that somebody received against an endpoint's secrets, in words.
//!
//! Nothing of the request is stored or logged, and no word of the answer has a
//! secret or an expected signature.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use jiff::Timestamp;
use posthaste_receiver::Profile;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SharedApiState;
use super::endpoints::find;
use super::input::{NamedEndpoint, TenantPath, document_from_json, read_body};
use super::problem::{InputProblems, Problem, ProblemCode, Problems};
use crate::lifecycle::deliver::keys::public_key;
use crate::lifecycle::signature_check::{ProfileCheck, SavedRequest, parse_headers};
use crate::model::endpoint::Endpoint;
use crate::model::id::SecretId;

/// Largest request to check, in bytes: an event and its headers, in base64.
const REQUEST_BYTES_MAX: usize = 2 * 1_024 * 1_024;

/// A request as somebody received it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PastedRequest {
    /// The headers, one `name: value` per line. The request line before them may be there.
    headers: String,
    /// The body, byte for byte as it arrived, if it is text.
    body: Option<String>,
    /// The body in base64, if it is not.
    body_base64: Option<String>,
    /// A secret or public key to check with, instead of those of the endpoint.
    secret: Option<String>,
    /// Check this signature profile alone; otherwise every one that the headers have.
    profile: Option<String>,
}

/// What came of the checks.
#[derive(Serialize, ToSchema)]
pub struct SignatureReport {
    /// Whether a receiver that checks this would take the request.
    is_passed: bool,
    /// The result in one sentence.
    summary: String,
    /// The checks of each signature profile.
    checks: Vec<ProfileReport>,
}

/// The checks of one signature profile.
#[derive(Serialize, ToSchema)]
pub struct ProfileReport {
    /// The signature profile.
    profile: String,
    /// Whether both checks passed.
    is_passed: bool,
    /// What came of the check of the signature, in words.
    signature: String,
    /// What came of the check of the time, in words.
    time: String,
    /// The endpoint's secret that fits; null if none does, or one was given.
    #[schema(value_type = Option<String>)]
    secret_id: Option<SecretId>,
}

/// The secrets that a request is checked with, and their ids where they are the
/// endpoint's.
struct CheckedSecrets {
    texts: Vec<String>,
    ids: Vec<Option<SecretId>>,
}

impl CheckedSecrets {
    fn of_endpoint(endpoint: &Endpoint, profile: Profile, now: Timestamp) -> Self {
        let (mut texts, mut ids) = (Vec::new(), Vec::new());
        for secret in endpoint.secrets.iter().filter(|secret| secret.is_active(now)) {
            // Only one profile has signatures that a public key verifies.
            let public = public_key(&secret.key).filter(|_| profile == Profile::Standard);
            for text in [Some(secret.text.clone()), public].into_iter().flatten() {
                texts.push(text);
                ids.push(Some(secret.id));
            }
        }
        Self { texts, ids }
    }

    fn from_given(secret: &str) -> Self {
        Self { texts: vec![secret.trim().to_owned()], ids: vec![None] }
    }

    fn secret_name(&self, secret: usize) -> String {
        match self.ids.get(secret).copied().flatten() {
            Some(id) => format!("secret {id}"),
            None => "the secret".to_owned(),
        }
    }
}

/// Say which checks of a received request pass
///
/// Takes a request as somebody received it, and checks its signature and its time with the endpoint's secrets, or with one that is given, as the receiver kit does. Nothing of it is stored or logged, and the answer has no secret.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{endpoint}/verify", operation_id = "verify_received_request", tag = "endpoints",
    params(("tenant" = String, Path, description = "The tenant's id"), ("endpoint" = String, Path, description = "The endpoint's id")),
    request_body = PastedRequest,
    responses((status = 200, body = SignatureReport), Problems, InputProblems),
    security(("token" = ["read"])),
)]
pub async fn verify(
    State(api): State<SharedApiState>,
    TenantPath(tenant): TenantPath,
    NamedEndpoint(id): NamedEndpoint,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SignatureReport>, Problem> {
    let body = read_body(&headers, body, REQUEST_BYTES_MAX).await?;
    let endpoint = find(&api, &tenant, id)?;
    let received: PastedRequest = document_from_json(&body)?;
    check_signatures(&endpoint, &received, api.gateway.clock.wall()).map(Json)
}

fn invalid_field(pointer: &str, detail: impl Into<String>) -> Problem {
    Problem::field(ProblemCode::InvalidField, pointer, detail)
}

fn check_signatures(endpoint: &Endpoint, received: &PastedRequest, now: Timestamp) -> Result<SignatureReport, Problem> {
    let headers = parse_headers(&received.headers).map_err(|detail| invalid_field("/headers", detail))?;
    let body = body_of(received)?;
    let asked = received.profile.as_deref().map(str::parse::<Profile>).transpose();
    let asked = asked.map_err(|problem| invalid_field("/profile", problem.to_string()))?;
    let request = SavedRequest { headers: &headers, body: &body };
    let mut checks = Vec::new();
    for profile in asked.map_or(Profile::ALL.to_vec(), |profile| vec![profile]) {
        let secrets = match &received.secret {
            Some(secret) => CheckedSecrets::from_given(secret),
            None => CheckedSecrets::of_endpoint(endpoint, profile, now),
        };
        let pointer = if received.secret.is_some() { "/secret" } else { "" };
        let check = request.check(profile, &secrets.texts, now.into());
        match check.map_err(|problem| invalid_field(pointer, problem.to_string())) {
            // A profile that was not asked for is left out if it is not there, or cannot have this secret.
            Ok(check) if check.is_absent() && asked.is_none() => {}
            Err(_) if asked.is_none() && profile != Profile::Standard => {}
            check => checks.push(profile_report(&check?, &secrets)),
        }
    }
    let is_passed = !checks.is_empty() && checks.iter().all(|check| check.is_passed);
    let summary = match (checks.is_empty(), is_passed) {
        (true, _) => "no header of any signature profile is there",
        (false, true) => "every check passes; a receiver would take the request",
        (false, false) => "a receiver that checks this would refuse the request",
    };
    Ok(SignatureReport { is_passed, summary: summary.to_owned(), checks })
}

fn profile_report(check: &ProfileCheck, secrets: &CheckedSecrets) -> ProfileReport {
    ProfileReport {
        profile: check.profile.to_string(),
        is_passed: check.is_passed(),
        signature: check.signature_words(|secret| secrets.secret_name(secret)),
        time: check.time_words(|at| format!("signed at {at:.0}")),
        secret_id: check.signature.as_ref().ok().and_then(|secret| secrets.ids.get(*secret).copied().flatten()),
    }
}

fn body_of(received: &PastedRequest) -> Result<Vec<u8>, Problem> {
    match (&received.body, &received.body_base64) {
        (Some(text), None) => Ok(text.clone().into_bytes()),
        (None, Some(text)) => STANDARD.decode(text.trim()).map_err(|_| {
            invalid_field("/body_base64", "body_base64 is not base64; write it with padding, or give body as text")
        }),
        (None, None) => Err(invalid_field("/body", "body is missing; give it as text, or body_base64")),
        (Some(_), Some(_)) => {
            Err(invalid_field("/body_base64", "body and body_base64 are both there; give one of them"))
        }
    }
}
