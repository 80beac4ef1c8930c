//! Ids, texts and bytes of the model as values of both databases.

use std::error::Error;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rusqlite::types::{FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use tokio_postgres::types::{IsNull, Type};
use uuid::Uuid;

use super::codes::stored_tenant;
use crate::model::event::{EventKey, EventType};
use crate::model::id::{DeliveryId, EndpointId, EventId, JobId, SecretId, TenantId, TokenId};

/// Bytes that are written without being copied first.
#[derive(Debug, Clone, Default)]
pub struct StoredBytes(pub Bytes);

/// A text that is shared, not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredText(pub Arc<str>);

/// A code of [`super::codes`], as the tables hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCode(pub i64);

impl StoredText {
    fn copied(text: &str) -> Self {
        Self(text.into())
    }

    fn as_str(&self) -> &str {
        &self.0
    }
}

impl StoredBytes {
    /// Copies these bytes.
    pub fn copied(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }

    fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// Implements reading and writing types as PostgreSQL reads and writes another.
macro_rules! stored_in_postgres {
    ($as:ty; $($name:ty => $read:expr, $write:expr;)*) => {$(
        impl<'a> tokio_postgres::types::FromSql<'a> for $name {
            fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
                <$as as tokio_postgres::types::FromSql<'_>>::from_sql(ty, raw).map($read)
            }

            fn accepts(ty: &Type) -> bool {
                <$as as tokio_postgres::types::FromSql<'_>>::accepts(ty)
            }
        }

        impl tokio_postgres::types::ToSql for $name {
            fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
                tokio_postgres::types::ToSql::to_sql(&$write(self), ty, out)
            }

            fn accepts(ty: &Type) -> bool {
                <$as as tokio_postgres::types::ToSql>::accepts(ty)
            }

            tokio_postgres::types::to_sql_checked!();
        }
    )*};
}

/// Implements reading and writing types as texts or bytes, in both databases.
macro_rules! stored_as {
    ($as:ty, $value:ident, $kind:ident; $($name:ty => $read:expr, $write:expr;)*) => {
        $(
            impl rusqlite::types::FromSql for $name {
                fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                    value.$value().map($read)
                }
            }

            impl rusqlite::types::ToSql for $name {
                fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                    Ok(ToSqlOutput::Borrowed(ValueRef::$kind($write(self).as_ref())))
                }
            }
        )*
        stored_in_postgres! { $as; $($name => $read, $write;)* }
    };
}
stored_as! { &str, as_str, Text;
    TenantId => stored_tenant, TenantId::as_str;
    EventId => EventId::from_stored, EventId::as_str;
    EventType => EventType::from_stored, EventType::as_str;
    EventKey => EventKey::from_stored, EventKey::as_str;
    StoredText => StoredText::copied, StoredText::as_str;
}
stored_as! { &[u8], as_blob, Blob;
    StoredBytes => StoredBytes::copied, StoredBytes::as_slice;
}

/// Implements reading and writing ids: 16 bytes in SQLite, a `uuid` in
/// PostgreSQL.
macro_rules! stored_id {
    ($($name:ident)*) => {
        $(
            impl rusqlite::types::FromSql for $name {
                fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                    let id = Uuid::from_slice(value.as_blob()?);
                    id.map(Self).map_err(|problem| FromSqlError::Other(Box::new(problem)))
                }
            }

            impl rusqlite::types::ToSql for $name {
                fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                    Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0.as_bytes())))
                }
            }
        )*
        stored_in_postgres! { Uuid; $($name => $name, |id: &$name| id.0;)* }
    };
}
stored_id! { DeliveryId EndpointId JobId SecretId TokenId }

impl rusqlite::types::FromSql for StoredCode {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(Self)
    }
}
stored_in_postgres! { i16; StoredCode => |code: i16| StoredCode(code.into()), |code: &StoredCode| code.0 as i16; }
