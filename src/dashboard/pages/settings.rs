//! The settings in force, with where each came from.

use askama::Template;
use serde::Deserialize;

use crate::dashboard::commands;
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;

#[derive(Deserialize)]
struct SettingsResponse {
    data: Vec<SettingResponse>,
}

#[derive(Deserialize)]
struct SettingResponse {
    name: String,
    value: String,
    origin: String,
}

impl SettingResponse {
    fn is_found(&self, words: &str, is_changed_only: bool) -> bool {
        let text = format!("{} {} {}", self.name, self.value, self.origin).to_lowercase();
        let is_meant = !is_changed_only || self.origin != "default";
        is_meant && words.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }

    fn mark(&self) -> &'static str {
        if self.origin == "default" { "off" } else { "calm" }
    }
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    q: String,
    is_changed_only: bool,
    all: usize,
    settings: Vec<SettingResponse>,
    version: &'static str,
}

/// Shows the settings.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let found: SettingsResponse = page.api.get("/v1/settings").await?;
    let (q, is_changed_only) = (page.query.get("q").to_owned(), page.query.has("changed"));
    let all = found.data.len();
    let settings = found.data.into_iter().filter(|setting| setting.is_found(&q, is_changed_only)).collect();
    let version = env!("CARGO_PKG_VERSION");
    PageContext::render(&SettingsPage { frame: page.frame, q, is_changed_only, all, settings, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_any_word_of_theirs() {
        let setting = SettingResponse { name: "--retention".into(), value: "30d".into(), origin: "default".into() };
        assert!(
            setting.is_found("", false) && setting.is_found("RETENT 30d", false) && setting.is_found("default", false)
        );
        assert!(!setting.is_found("listen", false) && !setting.is_found("", true));
    }
}
