//! Reads an embedded store that is to be moved elsewhere. The store is locked
//! and migrated to its newest schema, and not changed otherwise.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rusqlite::types::{Value as SqliteValue, ValueRef};
use rusqlite::{Connection, params_from_iter};
use serde_json::{Map, Value};

use super::{Durability, FolderLock, lock, migrate, prepare};
use crate::store::seal::Seal;

/// A row by the names of its columns. Bytes are hexadecimal, as in PostgreSQL.
pub type SourceRow = Map<String, Value>;

/// The store in a data directory, locked until this is dropped.
pub struct StoreSource {
    db: Connection,
    folder: PathBuf,
    _lock: FolderLock,
}

impl StoreSource {
    /// Locks a data directory and opens the store in it.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("posthaste.db");
        if !path.exists() {
            bail!("there is no store in {}; name the data directory that holds posthaste.db", folder.display());
        }
        let lock = lock(folder).context("the gateway must be stopped while its store is moved")?;
        let db = Connection::open(&path).with_context(|| format!("cannot open the store {}", path.display()))?;
        prepare(&db, Durability::Synced).with_context(|| format!("cannot prepare the store {}", path.display()))?;
        migrate(&db, &path)?;
        Ok(Self { db, folder: folder.to_owned(), _lock: lock })
    }

    /// Returns the seal with the key that the store's secrets are sealed under,
    /// if that key is in `seal`.
    pub fn matching_key(&self, seal: &Seal) -> anyhow::Result<Seal> {
        super::check_master_key(&self.db, seal)
    }

    /// Returns the data directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the number that a query selects.
    pub fn count(&self, sql: &str) -> anyhow::Result<u64> {
        let count: i64 = self.db.query_row(sql, [], |row| row.get(0))?;
        Ok(u64::try_from(count)?)
    }

    /// Returns rows of a query, in its order: at most `limit`, and no more once
    /// they hold `bytes_max` bytes. The query's parameters are `after`, where
    /// the last rows ended, and then the limit.
    pub fn rows(&self, sql: &str, after: &[Value], limit: usize, bytes_max: usize) -> anyhow::Result<Vec<SourceRow>> {
        let mut bound: Vec<SqliteValue> = after.iter().map(sqlite_value).collect();
        bound.push(SqliteValue::Integer(i64::try_from(limit)?));
        let mut statement = self.db.prepare_cached(sql)?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut cursor = statement.query(params_from_iter(bound))?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some(row) = cursor.next()? {
            let mut values = SourceRow::new();
            for (n, name) in names.iter().enumerate() {
                let value = row.get_ref(n)?;
                bytes += size(value);
                values.insert(name.clone(), json_value(value)?);
            }
            rows.push(values);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(rows)
    }
}

fn sqlite_value(value: &Value) -> SqliteValue {
    match value {
        Value::Number(number) => SqliteValue::Integer(number.as_i64().unwrap_or_default()),
        Value::String(text) => SqliteValue::Text(text.clone()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => SqliteValue::Null,
    }
}

fn json_value(value: ValueRef<'_>) -> anyhow::Result<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        // PostgreSQL's text cannot hold a NUL. Fields that are checked on
        // arrival have none; an error message of a receiver might.
        ValueRef::Text(text) => std::str::from_utf8(text)?.replace('\0', "\u{fffd}").into(),
        ValueRef::Blob(bytes) => format!("\\x{}", hex::encode(bytes)).into(),
    })
}

fn size(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::embedded::EmbeddedStore;

    #[tokio::test]
    async fn a_store_is_read_page_by_page_and_only_while_nobody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(StoreSource::open(folder.path()).is_err_and(|why| why.to_string().contains("no store in")));
        let store = EmbeddedStore::open(folder.path(), Durability::Unsynced).unwrap();
        let why = format!("{:#}", StoreSource::open(folder.path()).map(|_| ()).unwrap_err());
        assert!(why.contains("must be stopped") && why.contains("in use by another posthaste"), "{why}");
        store.close().await;
        let source = StoreSource::open(folder.path()).unwrap();
        assert!(EmbeddedStore::open(folder.path(), Durability::Unsynced).is_err(), "it is kept locked");
        source.db.execute_batch("CREATE TABLE t (a, b)").unwrap();
        for n in 1..=5 {
            source.db.execute("INSERT INTO t VALUES (?, ?)", (n, [n as u8, 255].as_slice())).unwrap();
        }
        let sql = "SELECT a, b, 'x' || char(0) AS c, NULL AS d FROM t WHERE a > ? ORDER BY a LIMIT ?";
        let page = source.rows(sql, &[json!(2)], 2, 1_000).unwrap();
        assert_eq!(json!(page)[0], json!({"a": 3, "b": "\\x03ff", "c": "x\u{fffd}", "d": null}));
        assert_eq!((page.len(), &page[1]["a"]), (2, &json!(4)));
        assert_eq!(source.rows(sql, &[json!(0)], 9, 20).unwrap().len(), 1, "bytes end a page, too");
        assert_eq!(source.count("SELECT count(*) FROM t").unwrap(), 5);
    }
}
