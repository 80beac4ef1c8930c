//! What stands in the place of a list of one tenant until the tenant is named.

use askama::Template;
use serde::Deserialize;

use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::ListedPage;

/// Names of the query that are not passed on: the cursor is that of the tenants.
const OWN: [&str; 3] = ["tenant", "cursor", "done"];

#[derive(Deserialize)]
struct ListedTenant {
    id: String,
}

/// A tenant with the query that leads to its page.
struct TenantLink {
    id: String,
    query: String,
}

#[derive(Template)]
#[template(path = "tenant_choice.html")]
struct TenantChoice {
    frame: Frame,
    title: String,
    tenants: Vec<TenantLink>,
    /// Values of the query that the form passes on.
    kept: Vec<(String, String)>,
    next: String,
}

/// Lists the tenants, each with a link to the page that was asked for.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let asked = [("limit", "100".to_owned()), ("cursor", page.query.get("cursor").to_owned())];
    let listed: ListedPage<ListedTenant> = page.api.get(&format!("/v1/tenants{}", commands::query_of(&asked))).await?;
    let kept = page.query.besides(&OWN);
    let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
    let with = |name: &str, value: &str| page.query.query_with(&names, &[(name, value)]);
    let tenants = listed.data.into_iter().map(|tenant| TenantLink { query: with("tenant", &tenant.id), id: tenant.id });
    let tenants = tenants.collect();
    let next = listed.next.as_deref().map(|next| with("cursor", next)).unwrap_or_default();
    let title = title(&page.frame.section);
    PageContext::render(&TenantChoice { frame: page.frame, title, tenants, kept, next })
}

/// Returns the title of a part of the navigation: `Dead letters`.
fn title(section: &str) -> String {
    let mut characters = section.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect::<String>().replace('-', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_is_that_of_the_list() {
        assert_eq!(title("dead-letters"), "Dead letters");
        assert_eq!(title(""), "");
    }
}
