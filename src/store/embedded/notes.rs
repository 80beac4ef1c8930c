//! Reads and writes notes: small facts about the installation, by name.
//!
//! Each note has a checksum, which is compared at every start: a flipped digit
//! in the clock's note would move all times, and one in the hash of the admin
//! token would lock everybody out.

use rusqlite::{Connection, OptionalExtension, params};

use crate::model::checksum::Checksum;

/// Reads a note, if it exists.
pub fn read(db: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    db.query_row("SELECT value FROM notes WHERE name = ?", [name], |row| row.get(0)).optional()
}

/// Writes a note.
pub fn write(db: &Connection, name: &str, value: &str) -> rusqlite::Result<()> {
    let sql = "INSERT INTO notes (name, value, checksum) VALUES (?, ?, ?)
               ON CONFLICT (name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum";
    db.execute(sql, params![name, value, checksum(name, value)]).map(|_| ())
}

/// Writes a note unless one of that name exists. Returns the stored value.
pub fn write_once(db: &Connection, name: &str, value: &str) -> rusqlite::Result<String> {
    let sql = "INSERT INTO notes (name, value, checksum) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING";
    db.execute(sql, params![name, value, checksum(name, value)])?;
    db.query_row("SELECT value FROM notes WHERE name = ?", [name], |row| row.get(0))
}

/// Returns the name of a note that differs from its checksum, if there is one.
/// Older versions wrote no checksums.
pub fn find_damaged_note(db: &Connection) -> rusqlite::Result<Option<String>> {
    let mut statement = db.prepare("SELECT name, value, checksum FROM notes WHERE checksum IS NOT NULL")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (name, value, stored): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if checksum(&name, &value) != stored {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn checksum(name: &str, value: &str) -> i64 {
    Checksum::default().text(Some(name)).text(Some(value)).finish()
}
