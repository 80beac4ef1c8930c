//! The admin token in force on this node, as its hash.

use aws_lc_rs::digest;
use parking_lot::RwLock;

use crate::model::token::TokenHash;

/// The hash of the admin token in force. A person, or another node, may replace it.
#[derive(Debug)]
pub struct AdminToken(RwLock<TokenHash>);

impl AdminToken {
    /// Makes the token with this hash the admin token.
    pub fn new(hash: TokenHash) -> Self {
        Self(RwLock::new(hash))
    }

    /// Replaces the admin token. Returns whether that changed anything.
    pub fn replace(&self, hash: TokenHash) -> bool {
        let mut current = self.0.write();
        std::mem::replace(&mut *current, hash) != hash
    }

    /// Returns the hash in force.
    pub fn hash(&self) -> TokenHash {
        *self.0.read()
    }

    /// Returns a fingerprint of the admin token in force, which says nothing else
    /// about it. What the token made is over when it is replaced.
    pub fn fingerprint(&self) -> String {
        let hash = digest::digest(&digest::SHA256, &*self.0.read());
        hex::encode(&hash.as_ref()[..16])
    }
}
