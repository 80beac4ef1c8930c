//! Keeps the table of dead letters in step with their deliveries. Triggers of the
//! table keep the counts, in the same commit.

use rusqlite::Connection;

/// Writes the row of a delivery that is dead, with its last answer. A row that is
/// there already gets the answer that it has now.
pub fn write(db: &Connection, no: i64) -> rusqlite::Result<()> {
    delete(db, no)?;
    db.prepare_cached(
        "INSERT INTO dead_letters (no, tenant, endpoint, cause, answer, finished_at)
         SELECT d.no, d.tenant, d.endpoint, d.cause,
                coalesce(CAST(json_extract(a.record, '$.status') AS TEXT), json_extract(a.record, '$.error.kind'), ''),
                d.finished_at
         FROM deliveries d LEFT JOIN attempts a ON a.no = (d.no << 20) + d.attempts
         WHERE d.no = ? AND d.state = 2",
    )?
    .execute([no])?;
    Ok(())
}

/// Deletes the row of a delivery that is no longer dead.
pub fn delete(db: &Connection, no: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM dead_letters WHERE no = ?")?.execute([no])?;
    Ok(())
}
