//! The admin token: made by the first start, replaced while the gateway runs, and read
//! again when another node has made a new one.
//!
//! A new token is in a file beside the old one before its hash is stored, and takes the
//! old one's place afterwards. If the gateway is killed in between, the next start puts
//! the file in its place whose token the store knows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tracing::{info, warn};

use crate::api::auth;
use crate::lifecycle::Gateway;
use crate::store::durable_file::{put_in_place, write_unnamed};
use crate::store::{ADMIN_TOKEN_NOTE, Store};

/// Name of the file that holds the admin token.
pub const ADMIN_TOKEN_FILE: &str = "admin-token";
/// Name of the file that holds a new admin token until the old one is invalid.
pub const NEXT_TOKEN_FILE: &str = "admin-token.next";

/// Interval at which a node checks whether another has made a new admin token.
const ADMIN_TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Returns the admin token's hash, and the token itself if this start made it.
/// There is one for the whole store: the first start makes it and writes it to its
/// data directory; the store has only the hash.
pub async fn admin_token(
    store: &dyn Store,
    folder: &Path,
    is_renewed: bool,
) -> anyhow::Result<(auth::TokenHash, Option<String>)> {
    if let Some(hex) = store.setting(ADMIN_TOKEN_NOTE).await?.filter(|_| !is_renewed) {
        let hash = stored_hash(&hex)?;
        finish_renewal(folder, &hash);
        if folder.join(ADMIN_TOKEN_FILE).exists()
            && let Some(sentence) = no_valid_token(folder, &hash)
        {
            warn!("{sentence}");
        }
        return Ok((hash, None));
    }
    if is_renewed {
        return renew(store, folder).await.map(|(hash, token)| (hash, Some(token)));
    }
    let token = auth::new_admin_token(rand::random());
    let hash = auth::hash(&token);
    // The token is on disk before its hash is stored, and gets its file name only
    // if its hash is the one stored: of several first starts at once, one wins.
    let path = folder.join(ADMIN_TOKEN_FILE);
    let write_failed = || format!("cannot write the admin token to {}", path.display());
    let file = write_unnamed(folder, ".admin-token-", &format!("{token}\n")).with_context(write_failed)?;
    let text = hex::encode(hash);
    let stored = store.put_setting_once(ADMIN_TOKEN_NOTE, text.clone()).await?;
    if stored != text {
        return Ok((stored_hash(&stored)?, None));
    }
    put_in_place(file, &path).with_context(write_failed)?;
    Ok((hash, Some(token)))
}

/// Makes a new admin token in the place of the one there is. Returns its hash and the
/// token.
pub async fn renew(store: &dyn Store, folder: &Path) -> anyhow::Result<(auth::TokenHash, String)> {
    let token = auth::new_admin_token(rand::random());
    let hash = auth::hash(&token);
    let next = folder.join(NEXT_TOKEN_FILE);
    let failed = |path: &Path| format!("cannot write the admin token to {}", path.display());
    put_token_file(folder, &next, &token).with_context(|| failed(&next))?;
    store.put_setting(ADMIN_TOKEN_NOTE, hex::encode(hash)).await?;
    let path = folder.join(ADMIN_TOKEN_FILE);
    put_token_file(folder, &path, &token).with_context(|| failed(&path))?;
    remove_token_file(&next);
    Ok((hash, token))
}

fn put_token_file(folder: &Path, path: &Path, token: &str) -> std::io::Result<()> {
    put_in_place(write_unnamed(folder, ".admin-token-", &format!("{token}\n"))?, path)
}

/// Returns what to do if no file of a data directory has the admin token that its store
/// knows.
pub fn no_valid_token(folder: &Path, hash: &auth::TokenHash) -> Option<String> {
    let is_valid = |text: String| auth::hash(text.trim()) == *hash;
    let has_valid = |name: &&str| std::fs::read_to_string(folder.join(name)).is_ok_and(is_valid);
    if [ADMIN_TOKEN_FILE, NEXT_TOKEN_FILE].iter().any(has_valid) {
        return None;
    }
    let path = folder.join(ADMIN_TOKEN_FILE);
    let what = if path.exists() {
        format!("the admin token in {} is not valid", path.display())
    } else {
        format!("there is no admin token in {}", folder.display())
    };
    Some(format!(
        "{what}: the store knows another one, such as that of the time of a backup that was restored, or one that another \
         node made; use that one, or start once with --new-admin-token"
    ))
}

/// Reads the hash of an admin token, as the store has it.
pub fn from_hex(text: &str) -> Option<auth::TokenHash> {
    hex::decode(text).ok()?.try_into().ok()
}

/// Finishes a renewal that was cut off: the token of this hash gets its place.
fn finish_renewal(folder: &Path, hash: &auth::TokenHash) {
    let (path, next): (PathBuf, PathBuf) = (folder.join(ADMIN_TOKEN_FILE), folder.join(NEXT_TOKEN_FILE));
    let Ok(token) = std::fs::read_to_string(&next) else { return };
    if auth::hash(token.trim()) != *hash {
        return;
    }
    match put_token_file(folder, &path, token.trim()) {
        Ok(()) => remove_token_file(&next),
        Err(problem) => warn!("the admin token in {} could not be put into its place: {problem}", next.display()),
    }
}

fn remove_token_file(file: &Path) {
    if let Err(problem) = std::fs::remove_file(file) {
        warn!("{} could not be removed: {problem}", file.display());
    }
}

fn stored_hash(hex: &str) -> anyhow::Result<auth::TokenHash> {
    from_hex(hex).ok_or_else(|| anyhow!("the store holds a damaged admin token; start once with --new-admin-token"))
}

/// Puts an admin token in force that another node has made.
pub async fn reload_admin_token(gateway: Arc<Gateway>) {
    loop {
        tokio::time::sleep(ADMIN_TOKEN_CHECK_INTERVAL).await;
        let setting = gateway.store.setting(ADMIN_TOKEN_NOTE).await;
        if let Some(hash) = setting.ok().flatten().and_then(|hex| from_hex(&hex))
            && gateway.admin.replace(hash)
        {
            info!("another node made a new admin token; the old one is no longer valid on this node either");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_was_cut_off_is_finished_with_the_token_that_the_store_knows() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        std::fs::write(folder.path().join(ADMIN_TOKEN_FILE), "pha_old\n").unwrap();
        std::fs::write(folder.path().join(NEXT_TOKEN_FILE), "pha_new\n").unwrap();
        finish_renewal(folder.path(), &auth::hash("pha_old"));
        assert_eq!(read(ADMIN_TOKEN_FILE).as_deref(), Some("pha_old\n"), "the new one never was valid");
        finish_renewal(folder.path(), &auth::hash("pha_new"));
        assert_eq!((read(ADMIN_TOKEN_FILE).as_deref(), read(NEXT_TOKEN_FILE)), (Some("pha_new\n"), None));
    }
}
