//! Draws the day of an endpoint in one small line of bars.

use std::fmt::Write;

use super::Svg;

const HEIGHT: u32 = 24;
const EACH: u32 = 5;

/// Draws how many attempts succeeded and failed in each step, for a row of a list.
/// Each colour is one path, since a list has many of these. The list says the
/// figures in words, so the drawing is hidden from those who cannot see it.
pub fn sparkline(steps: &[(f64, f64)]) -> Svg {
    let width = EACH * steps.len().max(1) as u32;
    let top = steps.iter().map(|(good, bad)| good + bad).fold(0.0, f64::max).max(1.0);
    let (mut good_bars, mut bad_bars) = (String::new(), String::new());
    for (step, (good, bad)) in steps.iter().enumerate() {
        let x = step as u32 * EACH + EACH / 2;
        let tall = |value: f64| (value / top * f64::from(HEIGHT - 2)).ceil() as u32;
        let (good, bad) = (tall(*good), tall(*bad));
        if good > 0 {
            let _ = write!(good_bars, "M{x} {}v-{good}", HEIGHT - 1);
        }
        if bad > 0 {
            let _ = write!(bad_bars, "M{x} {}v-{bad}", HEIGHT - 1 - good.min(HEIGHT - 2));
        }
    }
    let mut svg = format!(
        "<svg class=\"chart spark\" viewBox=\"0 0 {width} {HEIGHT}\" aria-hidden=\"true\"><path class=\"axis\" d=\"M0 {0}h{width}\"/>",
        HEIGHT - 1
    );
    // What failed is striped, so that nobody has to tell colours apart.
    for (class, stripes, bars) in [("good", "", good_bars), ("bad", " stroke-dasharray=\"2 1\"", bad_bars)] {
        if !bars.is_empty() {
            let _ = write!(svg, "<path class=\"{class}\" stroke-width=\"4\"{stripes} d=\"{bars}\"/>");
        }
    }
    svg.push_str("</svg>");
    Svg::of(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_stands_on_what_succeeded_and_an_empty_step_has_none() {
        let drawn = sparkline(&[(2.0, 2.0), (0.0, 0.0), (0.0, 0.001)]).to_string();
        assert!(drawn.contains("class=\"good\" stroke-width=\"4\" d=\"M2 23v-11\""), "{drawn}");
        assert!(
            drawn.contains("class=\"bad\" stroke-width=\"4\" stroke-dasharray=\"2 1\" d=\"M2 12v-11M12 23v-1\""),
            "{drawn}"
        );
    }
}
