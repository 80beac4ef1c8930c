//! The audit log: who changed what, when, and from which address.
//!
//! An entry names resources and fields, and holds none of their values, so that
//! no secret or payload can get into it.

use crate::model::named_enum::NamedEnum;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::id::{AuditId, TenantId, TokenId};
use super::job::Job;

/// Who makes a change. Every store verb that the audit log records takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Initiator {
    /// The gateway by itself; such a change is not recorded.
    Gateway,
    /// A caller of the API, in whose name the change is recorded.
    Caller(Arc<Caller>),
}

impl Initiator {
    /// Returns the caller that an entry names, if the change is to be recorded.
    pub fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Gateway => None,
            Self::Caller(caller) => Some(caller),
        }
    }
}

/// Who sent a request, from which address, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Identity of the caller.
    pub by: CallerIdentity,
    /// Address of the caller, if it is known.
    pub from: Option<IpAddr>,
    /// Id of the request.
    pub request_id: String,
    /// Time of the request.
    pub at: Timestamp,
}

/// The identity of a caller, by its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerIdentity {
    /// The caller has the admin token.
    Admin,
    /// The caller has another token.
    Token {
        /// Id of the token.
        id: TokenId,
        /// Name of the token; may be empty.
        name: String,
    },
    /// The caller has no valid token.
    Unknown,
}

impl fmt::Display for CallerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("admin"),
            Self::Token { id, name } if name.is_empty() => id.fmt(f),
            Self::Token { id, name } => write!(f, "{id} ({name})"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// A kind of action that the audit log records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantArray)]
pub enum AuditAction {
    /// A tenant was created.
    #[serde(rename = "tenant.created")]
    #[strum(serialize = "tenant.created")]
    TenantCreated,
    /// A tenant's fields were changed.
    #[serde(rename = "tenant.changed")]
    #[strum(serialize = "tenant.changed")]
    TenantChanged,
    /// A tenant was deleted with its endpoints and tokens.
    #[serde(rename = "tenant.deleted")]
    #[strum(serialize = "tenant.deleted")]
    TenantDeleted,
    /// The purge of a tenant was begun: from then on it is gone for everybody.
    #[serde(rename = "tenant.purge_started")]
    #[strum(serialize = "tenant.purge_started")]
    TenantPurgeStarted,
    /// A tenant was purged: nothing of it is stored any more.
    #[serde(rename = "tenant.purged")]
    #[strum(serialize = "tenant.purged")]
    TenantPurged,
    /// An endpoint was created.
    #[serde(rename = "endpoint.created")]
    #[strum(serialize = "endpoint.created")]
    EndpointCreated,
    /// An endpoint's settings were changed.
    #[serde(rename = "endpoint.changed")]
    #[strum(serialize = "endpoint.changed")]
    EndpointChanged,
    /// An endpoint was paused.
    #[serde(rename = "endpoint.paused")]
    #[strum(serialize = "endpoint.paused")]
    EndpointPaused,
    /// An endpoint was disabled.
    #[serde(rename = "endpoint.disabled")]
    #[strum(serialize = "endpoint.disabled")]
    EndpointDisabled,
    /// An endpoint was resumed.
    #[serde(rename = "endpoint.resumed")]
    #[strum(serialize = "endpoint.resumed")]
    EndpointResumed,
    /// An endpoint was deleted.
    #[serde(rename = "endpoint.deleted")]
    #[strum(serialize = "endpoint.deleted")]
    EndpointDeleted,
    /// A test event was sent to an endpoint.
    #[serde(rename = "endpoint.tested")]
    #[strum(serialize = "endpoint.tested")]
    EndpointTested,
    /// An endpoint's breaker was opened.
    #[serde(rename = "breaker.opened")]
    #[strum(serialize = "breaker.opened")]
    BreakerOpened,
    /// An endpoint's breaker was closed.
    #[serde(rename = "breaker.closed")]
    #[strum(serialize = "breaker.closed")]
    BreakerClosed,
    /// An endpoint was given a new secret.
    #[serde(rename = "secret.rotated")]
    #[strum(serialize = "secret.rotated")]
    SecretRotated,
    /// An endpoint's secrets were read.
    #[serde(rename = "secrets.shown")]
    #[strum(serialize = "secrets.shown")]
    SecretsShown,
    /// A waiting delivery was made due at once.
    #[serde(rename = "delivery.retried")]
    #[strum(serialize = "delivery.retried")]
    DeliveryRetried,
    /// A waiting delivery was cancelled.
    #[serde(rename = "delivery.cancelled")]
    #[strum(serialize = "delivery.cancelled")]
    DeliveryCancelled,
    /// A finished delivery was put back to waiting.
    #[serde(rename = "delivery.replayed")]
    #[strum(serialize = "delivery.replayed")]
    DeliveryReplayed,
    /// A dead letter was discarded.
    #[serde(rename = "delivery.discarded")]
    #[strum(serialize = "delivery.discarded")]
    DeliveryDiscarded,
    /// A job was started.
    #[serde(rename = "job.started")]
    #[strum(serialize = "job.started")]
    JobStarted,
    /// A job was paused.
    #[serde(rename = "job.paused")]
    #[strum(serialize = "job.paused")]
    JobPaused,
    /// A paused job was resumed.
    #[serde(rename = "job.resumed")]
    #[strum(serialize = "job.resumed")]
    JobResumed,
    /// A job was cancelled before its end.
    #[serde(rename = "job.cancelled")]
    #[strum(serialize = "job.cancelled")]
    JobCancelled,
    /// An event's data was expunged.
    #[serde(rename = "event.expunged")]
    #[strum(serialize = "event.expunged")]
    EventExpunged,
    /// A token was created.
    #[serde(rename = "token.created")]
    #[strum(serialize = "token.created")]
    TokenCreated,
    /// A token was revoked.
    #[serde(rename = "token.revoked")]
    #[strum(serialize = "token.revoked")]
    TokenRevoked,
    /// A link to sign in with was made.
    #[serde(rename = "link.created")]
    #[strum(serialize = "link.created")]
    LinkCreated,
    /// A link was revoked, with the session that it began, if it did.
    #[serde(rename = "link.revoked")]
    #[strum(serialize = "link.revoked")]
    LinkRevoked,
    /// A person signed in to the pages.
    #[serde(rename = "session.started")]
    #[strum(serialize = "session.started")]
    SessionStarted,
    /// A person signed out.
    #[serde(rename = "session.ended")]
    #[strum(serialize = "session.ended")]
    SessionEnded,
    /// A session was revoked, or all of a tenant.
    #[serde(rename = "session.revoked")]
    #[strum(serialize = "session.revoked")]
    SessionRevoked,
    /// A backup of the store was begun.
    #[serde(rename = "backup.started")]
    #[strum(serialize = "backup.started")]
    BackupStarted,
    /// The admin token was replaced.
    #[serde(rename = "admin_token.renewed")]
    #[strum(serialize = "admin_token.renewed")]
    AdminTokenRenewed,
    /// The master key was replaced.
    #[serde(rename = "master_key.rotated")]
    #[strum(serialize = "master_key.rotated")]
    MasterKeyRotated,
    /// Requests from one address failed authentication again and again.
    #[serde(rename = "auth.repeated")]
    #[strum(serialize = "auth.repeated")]
    AuthRepeated,
}

impl PartialSchema for AuditAction {
    fn schema() -> RefOr<Schema> {
        let names = Self::ALL.iter().map(|action| action.as_str());
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).into()
    }
}

impl ToSchema for AuditAction {
    fn name() -> std::borrow::Cow<'static, str> {
        "AuditAction".into()
    }
}

/// An action on a resource, without the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedAction {
    /// Kind of the action.
    pub action: AuditAction,
    /// Tenant that the resource belongs to.
    pub tenant: TenantId,
    /// Id of the resource.
    pub resource: String,
    /// Names of the fields that changed.
    pub fields: Vec<String>,
}

impl AuditedAction {
    /// Returns an action that changes no fields.
    pub fn new(action: AuditAction, tenant: &TenantId, resource: impl fmt::Display) -> Self {
        Self { action, tenant: tenant.clone(), resource: resource.to_string(), fields: Vec::new() }
    }

    /// Returns the same action with the names of the changed fields.
    pub fn with_changed_fields(self, fields: Vec<String>) -> Self {
        Self { fields, ..self }
    }
}

/// One entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Id of the entry, which begins with its time.
    pub id: AuditId,
    /// The stored record.
    pub record: AuditRecord,
}

/// The stored part of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Time of the action.
    pub at: Timestamp,
    /// Caller: `admin`, the id of a token with its name in brackets, or `unknown`.
    /// Entries of older versions have the id alone.
    pub by: String,
    /// Address of the caller, if it is known.
    pub from: Option<IpAddr>,
    /// Id of the request.
    pub request_id: String,
    /// Kind of the action.
    pub action: AuditAction,
    /// Tenant that the resource belongs to.
    pub tenant: TenantId,
    /// Id of the resource.
    pub resource: String,
    /// Names of the fields that changed.
    pub fields: Vec<String>,
    /// Number of rows that a purge deleted, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
}

impl AuditEntry {
    /// Returns the entry that a tenant was purged, by whoever began the purge.
    pub fn of_purge(purge: &Job, tenant: &TenantId, at: Timestamp, random: u128) -> Self {
        let record = AuditRecord {
            at,
            by: purge.spec.by.clone(),
            from: None,
            request_id: purge.id.to_string(),
            action: AuditAction::TenantPurged,
            tenant: TenantId::system(),
            resource: tenant.to_string(),
            fields: Vec::new(),
            counts: purge.counts().purge.map(|progress| progress.rows).unwrap_or_default(),
        };
        Self { id: AuditId::mint(at, random), record }
    }

    /// Returns the entry for an action of a caller.
    pub fn of(caller: &Caller, audited: &AuditedAction, random: u128) -> Self {
        let record = AuditRecord {
            at: caller.at,
            by: caller.by.to_string(),
            from: caller.from,
            request_id: caller.request_id.clone(),
            action: audited.action,
            tenant: audited.tenant.clone(),
            resource: audited.resource.clone(),
            fields: audited.fields.clone(),
            counts: BTreeMap::new(),
        };
        Self { id: AuditId::mint(caller.at, random), record }
    }
}

/// Returns the names of the fields in which two values differ.
pub fn differing_fields(before: &impl Serialize, after: &impl Serialize) -> Vec<String> {
    let fields = |json: Result<Value, _>| match json {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let (before, after) = (fields(serde_json::to_value(before)), fields(serde_json::to_value(after)));
    let removed = before.keys().filter(|name| !after.contains_key(*name));
    let changed = after.iter().filter(|(name, value)| before.get(*name) != Some(value)).map(|(name, _)| name);
    let mut names: Vec<String> = removed.chain(changed).cloned().collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_differs_is_told_by_name_and_never_by_value() {
        let before = json!({"url": "a", "headers": {"x": "hush"}, "rate": 1, "old": 0});
        let after = json!({"url": "b", "headers": {"x": "hush hush"}, "rate": 1, "new": 0});
        assert_eq!(differing_fields(&before, &after), ["headers", "new", "old", "url"]);
        assert!(differing_fields(&before, &before).is_empty());
    }

    #[test]
    fn what_is_recorded_is_read_back_as_it_was() {
        for action in AuditAction::ALL {
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
        }
        let caller = Caller {
            by: CallerIdentity::Admin,
            from: Some([127, 0, 0, 1].into()),
            request_id: "req_1".into(),
            at: Timestamp::from_second(7).unwrap(),
        };
        let audited = AuditedAction::new(AuditAction::EndpointChanged, &"acme".parse().unwrap(), "ep_1")
            .with_changed_fields(vec!["url".into()]);
        let entry = AuditEntry::of(&caller, &audited, 9);
        let text = serde_json::to_string(&entry.record).unwrap();
        assert_eq!(serde_json::from_str::<AuditRecord>(&text).unwrap(), entry.record);
        assert_eq!((entry.record.by.as_str(), entry.record.from), ("admin", caller.from));
    }

    #[test]
    fn a_token_is_told_by_its_id_and_name() {
        let id = TokenId::mint(Timestamp::UNIX_EPOCH, 1);
        let by = |name: &str| CallerIdentity::Token { id, name: name.into() }.to_string();
        assert_eq!((by(""), by("the office")), (id.to_string(), format!("{id} (the office)")));
    }
}
