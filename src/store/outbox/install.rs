//! Creates the outbox in a producer's database, and brings it up to date.
//!
//! Everything happens in one transaction under a lock, so several can install
//! at once, and a crash leaves nothing behind. What is run can be printed
//! first, for whoever must review it or runs it by hand.

use anyhow::bail;
use tokio_postgres::Client;

use crate::model::database::DatabaseUrl;
use crate::store::postgres::connect;

/// The steps from one version of the tables to the next; the first creates
/// them. A step that was released never changes.
pub const STEPS: &[&str] = &[include_str!("sql/install_1.sql")];
/// Functions of this version; they are replaced at each installation.
const FUNCTIONS: &str = include_str!("sql/functions.sql");
/// Lock of whoever installs; "phob" and 0.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1885892450, 0)";
/// The oldest server, as `server_version_num` counts.
const SERVER_VERSION_MIN: i32 = 150_000;

/// The roles that get rights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxRoles {
    /// Role that writes events.
    pub producer: Option<String>,
    /// Role that relays them.
    pub relay: Option<String>,
}

/// What an installation has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallResult {
    /// Version of the tables before; 0 if there were none.
    pub from: usize,
    /// Version of the tables now.
    pub to: usize,
    /// Random id that the ids of its events begin with.
    pub install_id: String,
}

/// Returns the SQL that brings an outbox from this version to the present one.
pub fn script(from: usize, roles: &OutboxRoles) -> String {
    format!("BEGIN;\nSET LOCAL lock_timeout = '10s';\n{LOCK};\n\n{}\nCOMMIT;\n", body(from, STEPS, roles))
}

fn body(from: usize, steps: &[&str], roles: &OutboxRoles) -> String {
    let mut sql = String::new();
    for (n, step) in steps.iter().enumerate().skip(from) {
        sql += &format!("{step}\nUPDATE posthaste_outbox.installation SET schema_version = {};\n\n", n + 1);
    }
    format!("{sql}{FUNCTIONS}{}", grants(roles))
}

/// Returns the statements that give these roles their rights, and no more.
pub fn grants(roles: &OutboxRoles) -> String {
    let mut sql = String::new();
    if let Some(role) = roles.producer.as_deref().map(quoted) {
        sql += &format!(
            "\n-- The producer may write events, and nothing else.\n\
             GRANT USAGE ON SCHEMA posthaste_outbox TO {role};\n\
             GRANT EXECUTE ON FUNCTION posthaste_outbox.lock_key(text, text) TO {role};\n\
             GRANT EXECUTE ON FUNCTION posthaste_outbox.send(text, json, text, text, boolean, timestamptz, text, timestamptz, text[]) TO {role};\n\
             GRANT INSERT (tenant, type, key, data, occurred_at, schema_version, expires_at, endpoints) ON posthaste_outbox.outbox TO {role};\n"
        );
    }
    if let Some(role) = roles.relay.as_deref().map(quoted) {
        sql += &format!(
            "\n-- The relay may read and delete rows and set them aside; it can change nothing of what they say.\n\
             GRANT USAGE ON SCHEMA posthaste_outbox TO {role};\n\
             GRANT SELECT ON posthaste_outbox.installation TO {role};\n\
             GRANT SELECT, UPDATE ON posthaste_outbox.relay TO {role};\n\
             GRANT SELECT, DELETE, UPDATE (set_aside_at, refusal_code, refusal) ON posthaste_outbox.outbox TO {role};\n"
        );
    }
    sql
}

/// Installs the outbox or brings it up to date.
pub async fn install(url: &DatabaseUrl, roles: &OutboxRoles) -> anyhow::Result<InstallResult> {
    install_steps(url, STEPS, roles).await
}

/// Installs an outbox with these steps, of which the first ones may have been
/// run before.
pub async fn install_steps(url: &DatabaseUrl, steps: &[&str], roles: &OutboxRoles) -> anyhow::Result<InstallResult> {
    let pool = connect::pool(url.reveal(), 1)?;
    let mut client = connect::take_connection(&pool, url.reveal()).await?;
    check_server(&client).await?;
    let failed = |problem: tokio_postgres::Error| connect::opening_error("cannot install the outbox", &problem);
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.batch_execute(&format!("SET LOCAL lock_timeout = '10s'; {LOCK}")).await.map_err(failed)?;
    let from = version(transaction.client()).await?;
    refuse_newer(from, steps)?;
    transaction.batch_execute(&body(from, steps, roles)).await.map_err(failed)?;
    let sql = "SELECT install_id FROM posthaste_outbox.installation";
    let install_id = transaction.query_one(sql, &[]).await.map_err(failed)?.get(0);
    transaction.commit().await.map_err(failed)?;
    Ok(InstallResult { from, to: steps.len(), install_id })
}

/// Returns the version of the outbox in this database; 0 if there is none. One
/// that is newer than this program is refused, as [`install`] does.
pub async fn upgradable_version(url: &DatabaseUrl) -> anyhow::Result<usize> {
    let pool = connect::pool(url.reveal(), 1)?;
    let client = connect::take_connection(&pool, url.reveal()).await?;
    let from = version(&client).await?;
    refuse_newer(from, STEPS)?;
    Ok(from)
}

/// Refuses an outbox with more steps than these: its functions are newer, too.
fn refuse_newer(from: usize, steps: &[&str]) -> anyhow::Result<()> {
    if from <= steps.len() {
        return Ok(());
    }
    bail!("the outbox has version {from} and this posthaste knows {}; run the posthaste that upgraded it", steps.len())
}

async fn version(client: &Client) -> anyhow::Result<usize> {
    let failed = |problem: tokio_postgres::Error| connect::opening_error("cannot read the outbox", &problem);
    let is_there = "SELECT to_regclass('posthaste_outbox.installation') IS NOT NULL";
    if !client.query_one(is_there, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        return Ok(0);
    }
    let sql = "SELECT schema_version FROM posthaste_outbox.installation";
    let version: i32 = client.query_one(sql, &[]).await.map_err(failed)?.get(0);
    Ok(usize::try_from(version).unwrap_or(0))
}

async fn check_server(client: &Client) -> anyhow::Result<()> {
    let sql = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery()";
    let row = client
        .query_one(sql, &[])
        .await
        .map_err(|problem| connect::opening_error("cannot ask the server", &problem))?;
    let version: i32 = row.get(0);
    if version < SERVER_VERSION_MIN {
        bail!("the server is PostgreSQL {}; the outbox needs 15 or newer", version / 10_000);
    }
    if row.get(1) {
        bail!("the server is a standby, which takes no writes; name its primary");
    }
    Ok(())
}

/// Quotes a name as an identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_sql_has_the_steps_that_are_missing_and_the_rights_that_were_asked_for() {
        let whole = script(0, &OutboxRoles::default());
        assert!(whole.starts_with("BEGIN;\n") && whole.ends_with("COMMIT;\n"));
        assert!(whole.contains("CREATE SCHEMA posthaste_outbox") && !whole.contains("GRANT"));
        let roles = OutboxRoles { producer: Some("app".into()), relay: Some("re\"lay".into()) };
        let upgrade = script(STEPS.len(), &roles);
        assert!(!upgrade.contains("CREATE SCHEMA") && upgrade.contains("CREATE OR REPLACE FUNCTION"));
        assert!(upgrade.contains("TO \"app\";") && upgrade.contains("TO \"re\"\"lay\";"));
    }
}
