//! Replaces the key that a store is sealed under, while the store is in use.
//!
//! Everybody who has the store open has both keys by then. First the store's check
//! text becomes that of the new key, and whatever is written from then on is sealed
//! under it; then what is there is sealed again, a page at a time. A page changes only
//! texts that nobody has changed meanwhile, so a person's change is never undone. The
//! work can be left at any moment, and continues at the beginning.

use async_trait::async_trait;

use super::Result;
use super::seal::Seal;

/// Position at which the next page of sealed texts begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResealCursor {
    /// Index of the column: settings, URLs, secrets.
    pub column: usize,
    /// Number or id of the last row, if there was one.
    pub after: Option<u128>,
}

/// The result of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResealedPage {
    /// Number of texts that were sealed again.
    pub count: usize,
    /// Position at which the next page begins; none after the last.
    pub next: Option<ResealCursor>,
}

impl ResealCursor {
    /// Number of columns with sealed texts.
    pub const COLUMNS: usize = 3;
    /// Rows of a page: few enough that writers hardly wait for it.
    pub const PAGE: usize = 200;

    /// Returns where the page after one with these rows begins.
    pub(super) fn next(self, rows: usize, last: Option<u128>) -> Option<Self> {
        if rows == Self::PAGE {
            return Some(Self { after: last, ..self });
        }
        let column = self.column + 1;
        (column < Self::COLUMNS).then_some(Self { column, after: None })
    }
}

/// A store whose key can be replaced while it is in use.
#[async_trait]
pub trait ResealingStore: Send + Sync {
    /// Returns the seal of this process.
    fn seal(&self) -> &Seal;

    /// Makes the key of this check text the one that everything is sealed under from
    /// now on. Every process that has the store open has the key already.
    async fn use_master_key(&self, check: String) -> Result<()>;

    /// Seals the texts of one page again that are sealed under another key.
    async fn reseal_page(&self, cursor: ResealCursor) -> Result<ResealedPage>;
}
