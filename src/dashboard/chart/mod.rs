//! Draws charts as SVG: numbers in, shapes out.
//!
//! Colours are classes of the stylesheet, so that charts follow the look; there is
//! no inline style, which the pages' policy forbids. Every chart is an image with a
//! name, and the page has its numbers as a table.

use std::fmt::Write;

use jiff::Timestamp;

use super::words;

pub mod heat_map;
pub mod over_time;
pub mod phases;
pub mod schedule;
pub mod sparkline;
pub mod timeline;

/// A drawn chart. Texts in it are escaped when it is drawn.
#[derive(Debug, Clone, Default)]
pub struct Svg(String);

impl Svg {
    /// Takes a finished drawing, in which every text of strangers is escaped.
    pub fn of(drawing: String) -> Self {
        Self(drawing)
    }

    /// Whether something in it is not known, and is drawn as a gap.
    pub fn has_gap(&self) -> bool {
        self.0.contains("class=\"gap\"")
    }
}

impl std::fmt::Display for Svg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl askama::FastWritable for Svg {
    fn write_into(&self, dest: &mut dyn std::fmt::Write, _: &dyn askama::Values) -> askama::Result<()> {
        dest.write_str(&self.0)?;
        Ok(())
    }
}

impl askama::filters::HtmlSafe for Svg {}

/// What a colour means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartTone {
    /// It went well.
    Good,
    /// It should be looked at.
    Watch,
    /// It went wrong.
    Bad,
    /// A plain figure, neither good nor bad.
    Calm,
    /// Nothing happens here.
    Off,
}

impl ChartTone {
    /// Returns the class of the stylesheet.
    pub fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Watch => "watch",
            Self::Bad => "bad",
            Self::Calm => "calm",
            Self::Off => "off",
        }
    }
}

/// Escapes a text for an element or attribute of a drawing.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns the top of an axis: the largest value, rounded up to a number of which the
/// half is round, too.
pub fn round_up(largest: f64) -> f64 {
    if !largest.is_finite() || largest <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(largest.log10().floor());
    let step =
        [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].into_iter().find(|step| step * power >= largest).unwrap_or(10.0);
    step * power
}

/// Writes a figure of an axis.
pub fn figure(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 { words::count(value.round() as i64) } else { format!("{value:.2}") }
}

/// Writes the label of a moment on an axis that covers this many seconds.
fn tick_label(at: Timestamp, covers_seconds: i64) -> String {
    let format = if covers_seconds > 2 * 86_400 { "%b %-d" } else { "%H:%M" };
    at.strftime(format).to_string()
}

/// Writes a path through points.
fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (number, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { 'M' } else { 'L' });
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (largest, top) in [
            (0.0, 1.0),
            (0.91, 1.0),
            (1.0, 1.0),
            (1.2, 1.5),
            (37.0, 40.0),
            (51.0, 60.0),
            (91.0, 100.0),
            (f64::NAN, 1.0),
        ] {
            assert_eq!(round_up(largest), top, "{largest}");
        }
    }

    #[test]
    fn a_text_of_strangers_stays_text() {
        assert_eq!(escape("<b>\"'&"), "&lt;b&gt;&quot;&#39;&amp;");
    }
}
