//! Who did something, as a page may say it. The operator's pages name everybody; the
//! portal names the tenant's own people, and nobody of the operator's.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::dashboard::api_caller::segment;
use crate::dashboard::context::PageContext;
use crate::model::sign_in::PORTAL_LINK_OF;

/// What the readers of a page may see about who did something.
pub struct Authors {
    /// Ids of the tenant's tokens and sessions in the portal; none on operator's pages.
    own: Option<BTreeSet<String>>,
}

#[derive(Deserialize)]
struct ListedIds {
    data: Vec<ListedId>,
}

#[derive(Deserialize)]
struct ListedId {
    id: String,
}

impl Authors {
    /// Returns what the readers of this page may see.
    pub async fn of(page: &PageContext) -> Self {
        if !page.frame.is_portal() {
            return Self { own: None };
        }
        let tokens = format!("/v1/tokens?limit=500&tenant={}", segment(page.tenant()));
        let sessions = page.tenant_path("/portal-sessions?limit=500");
        // Whoever may not see them is told ids without names.
        let (tokens, sessions) =
            tokio::join!(page.api.get_kept::<ListedIds>(&tokens), page.api.get_kept::<ListedIds>(&sessions));
        let listed = [tokens, sessions].into_iter().flatten();
        Self {
            own: Some(listed.flat_map(|list| list.data.iter().map(|row| row.id.clone()).collect::<Vec<_>>()).collect()),
        }
    }

    /// Whether the page may show what this author left: notes and addresses.
    pub fn is_shown(&self, by: &str) -> bool {
        let (id, name) = split(by);
        self.own.as_ref().is_none_or(|own| own.contains(id) || name.starts_with(PORTAL_LINK_OF))
    }

    /// Returns an author in words: `admin`, or `key_…` with its name.
    pub fn words(&self, by: &str) -> String {
        let (id, name) = split(by);
        if self.own.is_none() {
            return by.to_owned();
        }
        if name.starts_with(PORTAL_LINK_OF) {
            return format!("{id} (by a portal link)");
        }
        match id {
            "admin" => "your provider".to_owned(),
            "unknown" => "somebody without a token".to_owned(),
            _ if self.is_shown(by) => by.to_owned(),
            _ => format!("{id} (your provider's, or ended)"),
        }
    }
}

/// Returns the id of an author and the name in brackets behind it, if there is one.
fn split(by: &str) -> (&str, &str) {
    let (id, name) = by.split_once(' ').unwrap_or((by, ""));
    (id, name.trim_start_matches('('))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_names_the_tenants_own_people_alone() {
        let portal = Authors { own: Some(BTreeSet::from(["key_1".to_owned()])) };
        for (by, words, is_shown) in [
            ("admin", "your provider", false),
            ("unknown", "somebody without a token", false),
            ("key_1 (the shop)", "key_1 (the shop)", true),
            ("key_2 (night shift of ours)", "key_2 (your provider's, or ended)", false),
            ("key_3 (portal link of night shift)", "key_3 (by a portal link)", true),
        ] {
            assert_eq!((portal.words(by).as_str(), portal.is_shown(by)), (words, is_shown), "{by}");
        }
        let operator = Authors { own: None };
        assert_eq!(operator.words("key_2 (night shift)"), "key_2 (night shift)");
        assert!(operator.is_shown("admin"));
    }
}
