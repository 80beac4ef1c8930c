//! Parameters of statements with their PostgreSQL types.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::stored_value::{StoredBytes, StoredCode, StoredText};
use crate::model::event::{EventKey, EventType};
use crate::model::id::{DeliveryId, EndpointId, EventId, JobId, SecretId, TenantId, TokenId};

/// A parameter with its type. Statements are sent with the types of their
/// parameters, so that no prepared statement is needed.
pub type SqlParameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A Rust type that has an SQL type.
pub trait SqlTyped: ToSql + Sync {
    /// Returns the SQL type.
    fn sql() -> Type;
}

macro_rules! sql_types {
    ($($rust:ty => $one:ident, $many:ident);* $(;)?) => {$(
        impl SqlTyped for $rust {
            fn sql() -> Type {
                Type::$one
            }
        }
        impl SqlTyped for Option<$rust> {
            fn sql() -> Type {
                Type::$one
            }
        }
        impl SqlTyped for Vec<$rust> {
            fn sql() -> Type {
                Type::$many
            }
        }
        impl SqlTyped for Vec<Option<$rust>> {
            fn sql() -> Type {
                Type::$many
            }
        }
    )*};
}
sql_types! {
    i64 => INT8, INT8_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i16 => INT2, INT2_ARRAY;
    StoredCode => INT2, INT2_ARRAY;
    bool => BOOL, BOOL_ARRAY;
    f64 => FLOAT8, FLOAT8_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    StoredText => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
    Vec<u8> => BYTEA, BYTEA_ARRAY;
    StoredBytes => BYTEA, BYTEA_ARRAY;
    Uuid => UUID, UUID_ARRAY;
    DeliveryId => UUID, UUID_ARRAY;
    EndpointId => UUID, UUID_ARRAY;
    JobId => UUID, UUID_ARRAY;
    SecretId => UUID, UUID_ARRAY;
    TokenId => UUID, UUID_ARRAY;
    TenantId => TEXT, TEXT_ARRAY;
    EventId => TEXT, TEXT_ARRAY;
    EventType => TEXT, TEXT_ARRAY;
    EventKey => TEXT, TEXT_ARRAY;
}

/// Pairs one parameter with its type.
pub fn bound<T: SqlTyped>(value: &T) -> SqlParameter<'_> {
    (value, T::sql())
}
