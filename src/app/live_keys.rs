//! Replaces the master key and the admin token while the gateway runs.
//!
//! A rotation of the master key has these steps; if it is cut off between any two of
//! them, every node still opens everything, a start does too, and the same call
//! goes on with the same new key:
//!
//! 1. the key file has the new key before the old one;
//! 2. every other node has found the new key in its own file and says so;
//! 3. the store's check text is that of the new key, so what is written is sealed under it;
//! 4. everything else is sealed again, a page at a time, until nothing is left;
//! 5. the old key is taken out of the files.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tracing::{info, warn};

use super::admin_token;
use crate::api::keys::{KeyManager, KeyRefusal, RenewedToken};
use crate::config::Settings;
use crate::lifecycle::Gateway;
use crate::lifecycle::node_questions::{NodeQuestion, confirmed_by_others};
use crate::model::audit::{AuditAction, AuditedAction, Initiator};
use crate::model::id::TenantId;
use crate::store::resealing::{ResealCursor, ResealingStore};
use crate::store::seal::{LINK_KEY_NOTE, NEXT_CHECK_NOTE, Seal};

/// Keys of a running installation.
pub struct LiveKeys {
    gateway: Arc<Gateway>,
    store: Arc<dyn ResealingStore>,
    folder: PathBuf,
    /// Held while a key is being replaced.
    turn: Mutex<()>,
}

impl LiveKeys {
    /// Creates the manager of the keys of this gateway.
    pub fn new(settings: &Settings, gateway: Arc<Gateway>, store: Arc<dyn ResealingStore>) -> Self {
        Self { gateway, store, folder: settings.data.0.clone(), turn: Mutex::new(()) }
    }

    async fn rotate(&self, by: &Initiator) -> Result<usize, KeyRefusal> {
        let seal = self.store.seal();
        let file = seal.file().map(PathBuf::from).ok_or_else(|| key_failure("the master key is in no file"))?;
        let begun = Seal::begin_rotation(&file).map_err(|problem| {
            let detail = format!("{problem:#}; write a new key as the first line of that file and the old one as the second, and try again");
            KeyRefusal::NotYet(detail)
        })?;
        let check = begun.check_text();
        if !seal.learn(&check) {
            return Err(key_failure("the new master key could not be read again"));
        }
        let put_next = |value: String| self.gateway.store.put_setting(NEXT_CHECK_NOTE, value);
        put_next(check.clone()).await.map_err(key_failure)?;
        self.confirm_on_all_nodes(&file, &check).await?;
        // Not before: what is refused until here has replaced nothing.
        let audited = AuditedAction::new(AuditAction::MasterKeyRotated, &TenantId::system(), "master-key");
        self.gateway.store.record(by, audited).await.map_err(key_failure)?;
        self.store.use_master_key(check.clone()).await.map_err(key_failure)?;
        let mut count = 0;
        loop {
            let resealed = self.reseal_all().await?;
            count += resealed;
            // What was written while the key changed is found by another pass.
            if resealed == 0 {
                break;
            }
        }
        put_next(String::new()).await.map_err(key_failure)?;
        self.drop_old_key(&file, &check).await;
        info!("the master key was replaced; {count} secrets and settings are sealed under the new one");
        Ok(count)
    }

    /// Makes sure that every other node has the new key.
    async fn confirm_on_all_nodes(&self, file: &std::path::Path, check: &str) -> Result<(), KeyRefusal> {
        let question = NodeQuestion::HoldKey { check: check.to_owned() };
        let (confirmed, others) = confirmed_by_others(&self.gateway, &question).await.map_err(key_failure)?;
        if confirmed >= others {
            return Ok(());
        }
        Err(KeyRefusal::NotYet(format!(
            "{} of {others} other nodes did not find the new master key in their key files; copy {} to each of them, \
             and try again: nothing is sealed under the new key yet",
            others - confirmed,
            file.display()
        )))
    }

    /// Seals everything again that is sealed under another key. Returns how much that
    /// was.
    async fn reseal_all(&self) -> Result<usize, KeyRefusal> {
        let (mut count, mut cursor) = (0, Some(ResealCursor::default()));
        while let Some(at) = cursor {
            let page = self.store.reseal_page(at).await.map_err(key_failure)?;
            count += page.count;
            cursor = page.next;
        }
        let links = self.gateway.store.setting(LINK_KEY_NOTE).await.map_err(key_failure)?;
        if let Some(links) = links.filter(|links| self.store.seal().is_link_key_outdated(links)) {
            let resealed = self.store.seal().reseal_link_key(&links).map_err(key_failure)?;
            self.gateway.store.put_setting(LINK_KEY_NOTE, resealed).await.map_err(key_failure)?;
            count += 1;
        }
        Ok(count)
    }

    /// Takes the old key out of the files, which is no longer needed.
    async fn drop_old_key(&self, file: &std::path::Path, check: &str) {
        if let Err(problem) = Seal::end_rotation_to(file, check) {
            warn!("the old master key could not be taken out of its file, take it out by hand: {problem:#}");
        }
        let question = NodeQuestion::DropOldKey { check: check.to_owned() };
        match confirmed_by_others(&self.gateway, &question).await {
            Ok((confirmed, others)) if confirmed >= others => {}
            _ => warn!("a node did not say that the old master key is out of its file; look into its key file"),
        }
    }

    async fn renew(&self) -> Result<RenewedToken, KeyRefusal> {
        let (hash, token) = admin_token::renew(self.gateway.store.as_ref(), &self.folder)
            .await
            .map_err(|problem| KeyRefusal::Failed(format!("{problem:#}")))?;
        self.gateway.admin.replace(hash);
        let question = NodeQuestion::AdminToken { hash: hex::encode(hash) };
        let (confirmed, others) = confirmed_by_others(&self.gateway, &question).await.unwrap_or((0, 0));
        info!("a new admin token was made; the old one is no longer valid");
        Ok(RenewedToken { token, unconfirmed_nodes: others.saturating_sub(confirmed) })
    }
}

fn key_failure(problem: impl ToString) -> KeyRefusal {
    KeyRefusal::Failed(problem.to_string())
}

#[async_trait]
impl KeyManager for LiveKeys {
    async fn rotate_master_key(&self, by: &Initiator) -> Result<usize, KeyRefusal> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Err(KeyRefusal::NotYet("a key is being replaced already; try again when that is done".into()));
        };
        self.rotate(by).await
    }

    async fn renew_admin_token(&self) -> Result<RenewedToken, KeyRefusal> {
        let _turn = self.turn.lock().await;
        self.renew().await
    }
}
