//! The look of a tenant's portal: name, accent colour, mode and first page.
//!
//! Invariant: whatever accent is chosen, text on it and text in it can be read
//! in both modes (WCAG contrast of 4.5 to 1). The colour of text on the accent
//! is picked, and text in the accent is darkened or lightened until it can be
//! read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Lowest contrast of text with what is behind it.
pub const CONTRAST_MIN: f64 = 4.5;
/// Background of the pages in light mode.
pub const LIGHT_BACKGROUND: Colour = Colour { red: 255, green: 255, blue: 255 };
/// Background of the pages in dark mode.
pub const DARK_BACKGROUND: Colour = Colour { red: 24, green: 26, blue: 31 };
const BLACK: Colour = Colour { red: 0, green: 0, blue: 0 };
const WHITE: Colour = LIGHT_BACKGROUND;
/// Longest name in a theme, in characters.
pub const THEME_NAME_CHARS_MAX: usize = 80;

/// How the portal looks. What is left out is the tenant's, or else the gateway's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PortalTheme {
    /// Name in the head of the pages, at most 80 characters.
    #[schema(max_length = 80)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Accent colour, `#rrggbb`. Text on it is black or white, whichever can be read better; text in it is darkened or lightened until it can be read.
    #[schema(value_type = Option<String>, example = "#0b6bcb", pattern = "^#[0-9a-fA-F]{6}$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accent: Option<Colour>,
    /// Light, dark, or what the browser prefers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ThemeMode>,
    /// Page that is shown first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_page: Option<StartPage>,
}

/// The mode of the portal's colours.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ThemeMode {
    /// What the browser prefers.
    Auto,
    /// Dark text on a light page.
    Light,
    /// Light text on a dark page.
    Dark,
}

/// The page of the portal that is shown first.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum StartPage {
    /// The overview of the tenant.
    Overview,
    /// The list of endpoints.
    Endpoints,
    /// The list of events.
    Events,
    /// The list of deliveries.
    Deliveries,
    /// The dead letters, by group.
    DeadLetters,
}

impl PortalTheme {
    /// Returns this theme, with what it leaves out taken from another.
    pub fn filled_from(self, other: &Self) -> Self {
        Self {
            name: self.name.or_else(|| other.name.clone()),
            accent: self.accent.or(other.accent),
            mode: self.mode.or(other.mode),
            start_page: self.start_page.or(other.start_page),
        }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses a name that cannot be shown, with a JSON pointer and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let Some(name) = &self.name else { return Ok(()) };
        let length = name.chars().count();
        if name.trim().is_empty() || length > THEME_NAME_CHARS_MAX || name.chars().any(is_unprintable) {
            let detail = format!(
                "name has {length} characters, or some that cannot be shown; use 1 to {THEME_NAME_CHARS_MAX} on one line"
            );
            return Err(("/name", detail));
        }
        Ok(())
    }
}

/// Whether a character could break a line or change the direction of a name.
fn is_unprintable(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A colour of the screen, written `#rrggbb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour {
    red: u8,
    green: u8,
    blue: u8,
}

/// A text that is not a colour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a colour; write # and six hexadecimal digits, such as #0b6bcb")]
pub struct InvalidColour(pub String);

impl Colour {
    /// Returns the contrast with another colour, 1 to 21, as WCAG 2 defines it.
    pub fn contrast(self, other: Self) -> f64 {
        let (one, other) = (self.luminance(), other.luminance());
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    /// Returns the colour of text on this one: black or white, whichever
    /// contrasts more. One of them always contrasts enough.
    pub fn text_on(self) -> Self {
        if self.contrast(WHITE) >= self.contrast(BLACK) { WHITE } else { BLACK }
    }

    /// Returns the nearest darker or lighter colour that can be read as text on
    /// this background.
    pub fn readable_on(self, background: Self) -> Self {
        let towards = background.text_on();
        let steps = (0..=100u16).map(|part| self.mix(towards, part));
        steps.into_iter().find(|colour| colour.contrast(background) >= CONTRAST_MIN).unwrap_or(towards)
    }

    /// Mixes this colour with another, by hundredths of the other.
    fn mix(self, other: Self, hundredths: u16) -> Self {
        let mix = |own: u8, other: u8| {
            let sum = u16::from(own) * (100 - hundredths) + u16::from(other) * hundredths;
            u8::try_from(sum / 100).unwrap_or(u8::MAX)
        };
        Self { red: mix(self.red, other.red), green: mix(self.green, other.green), blue: mix(self.blue, other.blue) }
    }

    fn luminance(self) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(self.red) + 0.7152 * linear(self.green) + 0.0722 * linear(self.blue)
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.red, self.green, self.blue)
    }
}

impl FromStr for Colour {
    type Err = InvalidColour;

    fn from_str(text: &str) -> Result<Self, InvalidColour> {
        let invalid = || InvalidColour(text.chars().take(40).collect());
        let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6).ok_or_else(invalid)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let part = |n: usize| u8::from_str_radix(&digits[n..n + 2], 16).map_err(|_| invalid());
        Ok(Self { red: part(0)?, green: part(2)?, blue: part(4)? })
    }
}

impl Serialize for Colour {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Colour {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour(text: &str) -> Colour {
        text.parse().unwrap()
    }

    #[test]
    fn contrast_is_that_of_wcag() {
        assert!((colour("#000000").contrast(colour("#ffffff")) - 21.0).abs() < 1e-9);
        assert!((colour("#777777").contrast(colour("#ffffff")) - 4.48).abs() < 0.01, "just too little");
        assert!((colour("#767676").contrast(colour("#ffffff")) - 4.54).abs() < 0.01, "just enough");
    }

    #[test]
    fn text_on_and_in_any_accent_can_be_read_in_both_modes() {
        for red in (0..=255).step_by(17) {
            for green in (0..=255).step_by(17) {
                for blue in (0..=255).step_by(17) {
                    let accent = Colour { red, green, blue };
                    assert!(accent.contrast(accent.text_on()) >= CONTRAST_MIN, "{accent}");
                    for background in [LIGHT_BACKGROUND, DARK_BACKGROUND] {
                        let text = accent.readable_on(background);
                        assert!(text.contrast(background) >= CONTRAST_MIN, "{accent} on {background}");
                    }
                }
            }
        }
        assert_eq!(colour("#ffd400").text_on().to_string(), "#000000");
        assert_eq!(colour("#003366").readable_on(LIGHT_BACKGROUND), colour("#003366"), "it can be read as it is");
    }

    #[test]
    fn only_six_digits_are_a_colour() {
        for text in ["", "#", "#fff", "0b6bcb", "#0b6bcg", "#0b6bcb;", "#+b6bcb", "red", "#0b6b\u{e9}"] {
            assert_eq!(text.parse::<Colour>(), Err(InvalidColour(text.to_owned())), "{text}");
        }
        assert_eq!(colour("#0B6BcB").to_string(), "#0b6bcb");
    }

    #[test]
    fn a_name_is_one_line_of_plain_text() {
        let named = |name: &str| PortalTheme { name: Some(name.to_owned()), ..PortalTheme::default() }.check();
        assert_eq!(named("Acme <Webhooks> & Co"), Ok(()));
        for name in ["", "  ", "a\nb", "a\u{202e}b", "a\u{200b}b", &"x".repeat(81)] {
            assert_eq!(named(name).unwrap_err().0, "/name", "{name:?}");
        }
    }

    #[test]
    fn what_a_link_leaves_out_is_the_tenants() {
        let tenants = PortalTheme {
            name: Some("Acme".into()),
            accent: Some(colour("#112233")),
            mode: Some(ThemeMode::Dark),
            start_page: None,
        };
        let links = PortalTheme { accent: Some(colour("#445566")), ..PortalTheme::default() };
        let both = links.clone().filled_from(&tenants);
        assert_eq!(both, PortalTheme { accent: links.accent, ..tenants.clone() });
        assert!(PortalTheme::default().is_empty() && !both.is_empty());
    }
}
