//! The look of a portal: its accent colour as a stylesheet, and its logo.

use serde::Deserialize;

use crate::dashboard::context::PageContext;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::model::portal_theme::{Colour, DARK_BACKGROUND, LIGHT_BACKGROUND};

/// Puts the logo in the place of our mark.
const LOGO_STYLE: &str = ".brand .mark { display: none; }\n\
                          .brand::before { content: \"\"; width: 1.75rem; height: 1.75rem; flex: none; \
                          background: url(logo) center / contain no-repeat; }\n";

#[derive(Deserialize)]
struct PortalLook {
    has_logo: bool,
}

/// Answers with the stylesheet of the session's theme.
pub async fn style(page: PageContext) -> Result<PageAnswer, PageError> {
    let accent = page.session.theme().and_then(|theme| theme.accent);
    let mut style = accent.map(accent_style).unwrap_or_default();
    let portal: PortalLook = page.api.get(&page.tenant_path("/portal")).await?;
    if portal.has_logo {
        style.push_str(LOGO_STYLE);
    }
    Ok(PageAnswer::Style(style))
}

/// Answers with the tenant's logo.
pub async fn logo(page: PageContext) -> Result<PageAnswer, PageError> {
    let content = page.api.bytes(&page.tenant_path("/portal/logo")).await?;
    Ok(PageAnswer::Picture(content))
}

/// Writes the accent in a shade that can be read in both looks.
fn accent_style(accent: Colour) -> String {
    let (light, dark) = (accent.readable_on(LIGHT_BACKGROUND), accent.readable_on(DARK_BACKGROUND));
    format!(
        ":root {{ --accent: light-dark({light}, {dark}); --on-accent: light-dark({}, {}); }}\n",
        light.text_on(),
        dark.text_on()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accent_can_be_read_in_both_looks() {
        let style = accent_style("#ffd400".parse().unwrap());
        assert!(style.contains("light-dark(#") && style.contains("#ffd400"), "{style}");
        assert!(!style.starts_with(":root { --accent: light-dark(#ffd400"), "yellow on white cannot be read: {style}");
    }
}
