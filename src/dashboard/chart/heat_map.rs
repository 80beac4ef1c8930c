//! Draws endpoints over time as a grid: a full row is one receiver's trouble, a
//! full column is ours.

use std::fmt::Write;

use jiff::{SignedDuration, Timestamp};

use super::{Svg, escape, tick_label};

/// Longest row label, in characters; the tooltip has the whole name.
const NAME_CHARS_MAX: usize = 39;

/// One row of the grid.
pub struct HeatRow {
    /// Name of the row.
    pub name: String,
    /// Attempts and failures of each step; none where nothing is known.
    pub steps: Vec<Option<(f64, f64)>>,
}

/// Draws the grid. Cells of a row that look alike are one path, so that a grid of
/// thirty rows stays small.
pub fn heat_map(title: &str, from: Timestamp, step: SignedDuration, rows: &[HeatRow]) -> Svg {
    let (left, cell_height, top) = (240.0, 17.0, 4.0);
    let width = 900.0;
    let steps = rows.iter().map(|row| row.steps.len()).max().unwrap_or(0);
    let height = top + cell_height * rows.len() as f64 + 20.0;
    // Whole numbers keep the drawing short.
    let each = ((width - left) / steps.max(1) as f64).floor().max(2.0);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {width} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(title)
    );
    for (number, row) in rows.iter().enumerate() {
        let y = top + cell_height * number as f64;
        let mut shown: String = row.name.chars().take(NAME_CHARS_MAX).collect();
        if shown.len() < row.name.len() {
            shown.push('…');
        }
        let _ = write!(svg, "<text x=\"0\" y=\"{:.0}\">{}</text><g>", y + 12.0, escape(&shown));
        let looks: Vec<Option<CellStyle>> = row.steps.iter().map(|cell| cell.map(CellStyle::of)).collect();
        for look in CellStyle::ALL {
            let cells = runs(&looks, look, left, each, y + cell_height / 2.0 - 1.0);
            if !cells.is_empty() {
                let (class, opacity) = look.class_and_opacity();
                let _ = write!(
                    svg,
                    "<path class=\"run {class}\" opacity=\"{opacity}\" stroke-dasharray=\"{:.0} 1\" d=\"{cells}\"/>",
                    each - 1.0
                );
                svg.push_str(&look.mark(&cells));
            }
        }
        let sum = row.steps.iter().flatten().fold((0.0, 0.0), |sum, cell| (sum.0 + cell.0, sum.1 + cell.1));
        let _ = write!(svg, "<title>{}: {:.0} of {:.0} attempts failed</title></g>", escape(&row.name), sum.1, sum.0);
    }
    for part in 0..=4 {
        let place = steps as f64 * f64::from(part) / 4.0;
        let anchor = match part {
            0 => "start",
            4 => "end",
            _ => "middle",
        };
        let _ = write!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
            left + each * place,
            height - 4.0,
            tick_label(from + step * (place as i32), step.as_secs() * steps as i64)
        );
    }
    svg.push_str("</svg>");
    Svg::of(svg)
}

/// Writes the cells of a row that look the same: neighbours are one line, which
/// its dashes divide into cells.
fn runs(looks: &[Option<CellStyle>], look: CellStyle, left: f64, each: f64, y: f64) -> String {
    let (mut cells, mut place) = (String::new(), 0);
    while place < looks.len() {
        let count = looks[place..].iter().take_while(|other| **other == Some(look)).count();
        if count > 0 {
            let _ = write!(cells, "M{:.0} {y:.0}h{:.0}", left + each * place as f64, each * count as f64 - 1.0);
        }
        place += count.max(1);
    }
    cells
}

/// How a cell looks: how much of what was tried failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellStyle {
    Idle,
    Good,
    SomeFailed,
    ManyFailed,
    AllFailed,
}

impl CellStyle {
    const ALL: [Self; 5] = [Self::Idle, Self::Good, Self::SomeFailed, Self::ManyFailed, Self::AllFailed];

    fn of((attempts, failures): (f64, f64)) -> Self {
        match failures / attempts {
            _ if attempts <= 0.0 => Self::Idle,
            0.0 => Self::Good,
            share if share < 0.2 => Self::SomeFailed,
            share if share < 0.95 => Self::ManyFailed,
            _ => Self::AllFailed,
        }
    }

    /// Returns its class and opacity.
    fn class_and_opacity(self) -> (&'static str, f64) {
        match self {
            Self::Idle => ("off", 0.1),
            Self::Good => ("good", 0.4),
            Self::SomeFailed => ("watch", 0.4),
            Self::ManyFailed => ("bad", 0.6),
            Self::AllFailed => ("bad", 1.0),
        }
    }

    /// Draws the line through its cells, which is the thicker the more failed, so that
    /// nobody has to tell colours apart; nothing where none failed.
    fn mark(self, cells: &str) -> String {
        let look = match self {
            Self::Idle | Self::Good => return String::new(),
            Self::SomeFailed => "stroke-width=\"2\" stroke-dasharray=\"2 3\"",
            Self::ManyFailed => "stroke-width=\"3\"",
            Self::AllFailed => "stroke-width=\"8\"",
        };
        format!("<path class=\"struck\" {look} d=\"{cells}\"/>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_look_alike_are_one_line() {
        let good = Some(CellStyle::Good);
        let looks = [good, good, None, Some(CellStyle::AllFailed), good];
        assert_eq!(runs(&looks, CellStyle::Good, 100.0, 10.0, 5.0), "M100 5h19M140 5h9");
    }

    #[test]
    fn a_cell_shows_how_much_failed_and_what_is_not_known_is_empty() {
        let steps =
            vec![Some((0.0, 0.0)), Some((9.0, 0.0)), Some((10.0, 1.0)), Some((10.0, 5.0)), Some((3.0, 3.0)), None];
        let row = HeatRow { name: "<b>".into(), steps };
        let drawn = heat_map("Outages", Timestamp::UNIX_EPOCH, SignedDuration::from_hours(1), &[row]).to_string();
        assert_eq!(drawn.matches("<path class=\"run ").count(), 5, "{drawn}");
        let marked = drawn.matches("<path class=\"struck\" stroke-width=").count();
        assert_eq!(marked, 3, "each degree of failure has a mark of its own, whatever its colour: {drawn}");
        assert_eq!(drawn.matches("h109\"").count(), 5 + 3, "one cell each, and none for what is not known: {drawn}");
        assert!(drawn.contains("&lt;b&gt;: 9 of 32 attempts failed"), "{drawn}");
    }
}
