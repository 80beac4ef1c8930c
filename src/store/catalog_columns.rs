//! The columns of tenants, endpoints, secrets and tokens that both stores read
//! alike, and what is built from them. The tables are called `t`, `p`, `s` and
//! `k` in every query.

use super::access::known_rights;
use super::codes::{at, token_kind_of};
use super::row::row;
use super::row_error::RowError;
use super::seal::{Seal, SealError, about_secret, about_settings, about_urls};
use super::stored_json::{UnreadableRecord, from_json};
use crate::model::endpoint::{Endpoint, EndpointCeiling, EndpointSettings, Secret};
use crate::model::health::EndpointHealth;
use crate::model::id::{EndpointId, SecretId, TenantId, TokenId};
use crate::model::tenant::Tenant;
use crate::model::token::Token;
use crate::model::url_versions::UrlVersions;

row! {
    /// The row of a tenant.
    pub both struct TenantColumns {
        /// Number of the tenant.
        no: i64 = "t.no",
        /// Id of the tenant.
        id: TenantId = "t.id",
        /// Name for people.
        name: String = "t.name",
        /// Defaults of its endpoints, as JSON.
        defaults: String = "t.defaults",
        /// Quota of the tenant, as JSON.
        quota: String = "t.quota",
        /// Limits of the tenant, as JSON.
        limits: String = "t.limits",
        /// How long its records are kept, as JSON.
        retention: String = "t.retention",
        /// Time of creation.
        created_at: i64 = "t.created_at",
    }
}

impl TenantColumns {
    /// Returns the tenant.
    pub fn tenant(self) -> Result<Tenant, UnreadableRecord> {
        let (tenant, unreadable) = self.tenant_or(None);
        match unreadable {
            Some(problem) => Err(problem),
            None => Ok(tenant),
        }
    }

    /// Returns the tenant, and the first of its values that only a newer version
    /// can read, if there is one. Such a value is that of the tenant as it is
    /// known already, or else the default.
    pub fn tenant_or(self, known: Option<&Tenant>) -> (Tenant, Option<UnreadableRecord>) {
        let defaults = from_json("tenants.defaults", &self.defaults);
        let quota = from_json("tenants.quota", &self.quota);
        let limits = from_json("tenants.limits", &self.limits);
        let retention = from_json("tenants.retention", &self.retention);
        let problems = [defaults.as_ref().err(), quota.as_ref().err(), limits.as_ref().err(), retention.as_ref().err()];
        let unreadable = problems.into_iter().flatten().next().cloned();
        let tenant = Tenant {
            id: self.id,
            name: self.name,
            defaults: defaults.unwrap_or_else(|_| known.map(|known| known.defaults.clone()).unwrap_or_default()),
            quota: quota.unwrap_or_else(|_| known.map(|known| known.quota).unwrap_or_default()),
            limits: limits.unwrap_or_else(|_| known.map(|known| known.limits.clone()).unwrap_or_default()),
            retention: retention.unwrap_or_else(|_| known.map(|known| known.retention).unwrap_or_default()),
            created_at: at(self.created_at),
        };
        (tenant, unreadable)
    }
}

row! {
    /// The row of an endpoint. The stores keep its health in different tables.
    pub both struct EndpointColumns {
        /// Number of the endpoint.
        no: i64 = "p.no",
        /// Id of the endpoint.
        id: EndpointId = "p.id",
        /// Settings of the endpoint, sealed.
        settings: Vec<u8> = "p.settings",
        /// Status of the endpoint, as JSON.
        status: String = "p.status",
        /// Time until which its receiver asked for no requests.
        backpressure_until: Option<i64> = "p.backpressure_until",
        /// Time of the last mail about it.
        mailed_at: Option<i64> = "p.mailed_at",
        /// Time of creation.
        created_at: i64 = "p.created_at",
        /// Time of the last change.
        updated_at: i64 = "p.updated_at",
        /// Sealed URLs that it has had; older versions stored none.
        urls: Option<Vec<u8>> = "p.urls",
    }
}

impl EndpointColumns {
    /// Returns the endpoint without its secrets, with its health from JSON. Fails
    /// if it was sealed under another key, or if only a newer version can read it.
    pub fn endpoint(self, seal: &Seal, tenant: TenantId, health: Option<&str>) -> Result<Endpoint, RowError> {
        let id = self.id;
        let seal_error = || SealError(format!("what is kept of endpoint {id}"));
        let settings = seal.open(&about_settings(id), &self.settings).ok_or_else(seal_error)?;
        let settings: EndpointSettings = from_json("endpoints.settings", &settings)?;
        let urls = match self.urls {
            None => UrlVersions::first(&settings.url),
            Some(sealed) => {
                let urls = seal.open(&about_urls(id), &sealed).ok_or_else(seal_error)?;
                from_json::<UrlVersions>("endpoints.urls", &urls)?.with(&settings.url)
            }
        };
        let health: Option<EndpointHealth> = health.map(|text| from_json("endpoints.health", text)).transpose()?;
        Ok(Endpoint {
            id,
            tenant,
            urls,
            ceiling: EndpointCeiling::default(),
            policy: settings.retry.fill_defaults(),
            settings,
            status: from_json("endpoints.status", &self.status)?,
            secrets: Vec::new(),
            created_at: at(self.created_at),
            updated_at: at(self.updated_at),
            backpressure_until: self.backpressure_until.map(at),
            health: health.unwrap_or_default(),
            mailed_at: self.mailed_at.map(at),
        })
    }
}

row! {
    /// The row of a secret.
    pub both struct SecretColumns {
        /// Number of its endpoint.
        endpoint: i64 = "s.endpoint",
        /// Id of the secret.
        id: SecretId = "s.id",
        /// Both keys, sealed.
        sealed: Vec<u8> = "s.sealed",
        /// Time of creation.
        created_at: i64 = "s.created_at",
        /// Time at which it stops signing.
        expires_at: Option<i64> = "s.expires_at",
    }
}

impl SecretColumns {
    /// Returns the secret of this endpoint. Fails if it was sealed under
    /// another key.
    pub fn secret(&self, seal: &Seal, endpoint: EndpointId) -> Result<Secret, SealError> {
        let text = seal.open(&about_secret(endpoint), &self.sealed);
        let text = text.ok_or_else(|| SealError(format!("secret {} of endpoint {endpoint}", self.id)))?;
        Ok(Secret::from_stored(self.id, &text, at(self.created_at), self.expires_at.map(at)))
    }
}

row! {
    /// The row of a token, with the id of its tenant.
    pub both struct TokenColumns {
        /// Id of the token.
        id: TokenId = "k.id",
        /// Code of what it is for.
        kind: i16 = "k.kind",
        /// What a code or a session has besides, as JSON.
        sign_in: Option<String> = "k.sign_in",
        /// Tenant that it belongs to, unless it is the gateway's.
        tenant: Option<TenantId> = "t.id",
        /// Name for people.
        name: String = "k.name",
        /// Rights of the token, as JSON.
        rights: String = "k.rights",
        /// Hash of the token.
        hash: Vec<u8> = "k.hash",
        /// Time of creation.
        created_at: i64 = "k.created_at",
        /// Time at which it expires.
        expires_at: Option<i64> = "k.expires_at",
        /// Time of its last use.
        used_at: Option<i64> = "k.used_at",
    }
}

impl TokenColumns {
    /// Returns the token.
    pub fn token(self) -> Token {
        // What only a newer version can read is left out, and accepted nowhere.
        let sign_in = self.sign_in.and_then(|text| from_json("tokens.sign_in", &text).ok());
        Token {
            id: self.id,
            kind: token_kind_of(self.kind),
            sign_in,
            tenant: self.tenant,
            name: self.name,
            rights: known_rights(&self.rights),
            hash: self.hash.try_into().expect("a stored hash has 32 bytes"),
            created_at: at(self.created_at),
            expires_at: self.expires_at.map(at),
            used_at: self.used_at.map(at),
        }
    }
}
