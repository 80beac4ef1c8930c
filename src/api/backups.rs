//! Makes and lists backups of the running gateway's store.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SharedApiState;
use super::input::{DOCUMENT_BYTES_MAX, document_from_json, read_body};
use super::page::Page;
use super::problem::{InputProblems, Problem, ProblemCode, Problems, StateProblems};
use crate::lifecycle::backups::{BackupRecord, BackupRefusal, BackupState};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::backup::StoreCounts;
use crate::model::id::TenantId;

/// A backup to be made.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewBackup {
    /// The name of its folder: up to 100 letters, digits, dots, dashes and underscores. `posthaste-` and the time, if it is left out.
    #[schema(max_length = 100)]
    name: Option<String>,
}

/// The state of a backup, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackupStateName {
    /// Pages are being copied.
    Copying,
    /// The copy is complete and is being checked.
    Checking,
    /// It is complete, checked and on disk.
    Finished,
    /// It failed; nothing of it is left.
    Failed,
}

/// A backup of the store.
#[derive(Debug, Serialize, ToSchema)]
pub struct BackupView {
    /// The name of the backup.
    name: String,
    /// Its folder on the gateway's machine.
    folder: String,
    /// What is being done, or was.
    state: BackupStateName,
    /// When it was begun.
    #[schema(value_type = String, format = DateTime)]
    began_at: Timestamp,
    /// The moment that it shows: everything that was acknowledged before is in it. Null until it is complete.
    #[schema(value_type = Option<String>, format = DateTime)]
    taken_at: Option<Timestamp>,
    /// When it was complete and checked.
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
    /// How many bytes are copied.
    copied_bytes: u64,
    /// How many bytes the store has.
    total_bytes: u64,
    /// SHA-256 of the copy's file, hexadecimal.
    sha256: Option<String>,
    /// How many of what are in it.
    counts: Option<StoreCounts>,
    /// What its checks found wrong in the store itself, in words.
    problems: Vec<String>,
    /// Where the master key is not, in words.
    master_key: Option<String>,
    /// Why it failed.
    error: Option<String>,
}

impl From<BackupRecord> for BackupView {
    fn from(record: BackupRecord) -> Self {
        let manifest = record.manifest.as_ref();
        Self {
            state: match record.state {
                BackupState::Copying => BackupStateName::Copying,
                BackupState::Checking => BackupStateName::Checking,
                BackupState::Finished => BackupStateName::Finished,
                BackupState::Failed => BackupStateName::Failed,
            },
            name: record.name,
            folder: record.folder.display().to_string(),
            began_at: record.began_at,
            taken_at: manifest.map(|manifest| manifest.taken_at),
            finished_at: manifest.map(|manifest| manifest.finished_at),
            copied_bytes: record.bytes.0,
            total_bytes: record.bytes.1,
            sha256: manifest.map(|manifest| manifest.sha256.clone()),
            counts: manifest.map(|manifest| manifest.counts),
            problems: manifest.map(|manifest| manifest.problems.clone()).unwrap_or_default(),
            master_key: manifest.map(|manifest| manifest.master_key.clone()),
            error: record.error,
        }
    }
}

/// A refusal is a matter of how the gateway is set up, of the name, or of the moment.
impl From<BackupRefusal> for Problem {
    fn from(refusal: BackupRefusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            BackupRefusal::Shared | BackupRefusal::NoFolder => Self::new(ProblemCode::WrongState, detail),
            BackupRefusal::Unwritable { .. } => Self::new(ProblemCode::WrongState, detail),
            BackupRefusal::Running(_) | BackupRefusal::Exists(_) => Self::new(ProblemCode::WrongState, detail),
            BackupRefusal::Name(_) => Self::field(ProblemCode::InvalidField, "/name", detail),
            BackupRefusal::NoSpace { .. } => Self::new(ProblemCode::StorageFull, detail),
            BackupRefusal::Unavailable(_) => Self::new(ProblemCode::Unavailable, detail),
        }
    }
}

/// Begin a backup of the store
///
/// The embedded store is copied while the gateway goes on, into a folder below `--backup-dir`, then checked, and given its name when it is complete. Ask for it by its name until it is `finished` or `failed`. The master key is not in it. With PostgreSQL this is 409: it is backed up with its own tools.
#[utoipa::path(
    post, path = "/v1/backups", operation_id = "create_backup", tag = "backups",
    request_body = NewBackup,
    responses((status = 202, body = BackupView), Problems, InputProblems, StateProblems),
    security(("token" = ["admin"])),
)]
pub async fn create(
    State(api): State<SharedApiState>,
    by: Initiator,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<BackupView>), Problem> {
    let body = read_body(&headers, body, DOCUMENT_BYTES_MAX).await?;
    let new: NewBackup = if body.is_empty() { NewBackup::default() } else { document_from_json(&body)? };
    let name = api.backups.check(new.name).await?;
    let tenant: TenantId = TenantId::SYSTEM.parse().expect("a reserved id is an id");
    api.gateway.store.record(&by, AuditedAction::new(AuditAction::BackupStarted, &tenant, &name)).await?;
    let record = api.backups.begin(name)?;
    Ok((StatusCode::ACCEPTED, Json(record.into())))
}

/// List the backups
///
/// Those that are complete and still in the folder, newest first, and the last one that this process began.
#[utoipa::path(
    get, path = "/v1/backups", operation_id = "list_backups", tag = "backups",
    responses((status = 200, body = Page<BackupView>), Problems, StateProblems),
    security(("token" = ["admin"])),
)]
pub async fn list(State(api): State<SharedApiState>) -> Result<Json<Page<BackupView>>, Problem> {
    Ok(Json(Page::whole(api.backups.list()?.into_iter().map(BackupView::from).collect())))
}

/// Show a backup
#[utoipa::path(
    get, path = "/v1/backups/{name}", operation_id = "get_backup", tag = "backups",
    params(("name" = String, Path, description = "The backup's name")),
    responses((status = 200, body = BackupView), Problems, StateProblems),
    security(("token" = ["admin"])),
)]
pub async fn show(State(api): State<SharedApiState>, Path(name): Path<String>) -> Result<Json<BackupView>, Problem> {
    let found = api.backups.find(&name)?;
    let missing = || Problem::new(ProblemCode::NotFound, format!("there is no backup {name:?}"));
    found.map(|record| Json(record.into())).ok_or_else(missing)
}
