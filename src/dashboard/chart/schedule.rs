//! Draws when retry policies make their attempts: for each a bar from the earliest to
//! the latest moment, with a mark where it is expected, on a logarithmic axis of time.

use std::fmt::Write;

use super::{ChartTone, Svg, escape};
use crate::dashboard::words;

const LEFT: f64 = 34.0;
const RIGHT: f64 = 12.0;
const ROW: f64 = 11.0;
const HEADING: f64 = 20.0;
const BOTTOM: f64 = 20.0;
/// The moments that the axis names, in seconds.
const TICKS: [(f64, &str); 10] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (21_600.0, "6 h"),
    (86_400.0, "1 d"),
    (259_200.0, "3 d"),
    (604_800.0, "7 d"),
    (2_592_000.0, "30 d"),
];

/// When one attempt is made, in seconds after the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttemptWindow {
    /// Which attempt, from 1.
    pub number: u32,
    /// With the shortest wait every time.
    pub earliest: f64,
    /// The average over deliveries.
    pub expected: f64,
    /// With the longest wait every time.
    pub latest: f64,
}

/// The attempts of one policy.
pub struct PlannedPolicy {
    /// Name of the policy; empty where there is only one.
    pub name: String,
    /// What its colour means.
    pub tone: ChartTone,
    /// Attempts in their order.
    pub attempts: Vec<AttemptWindow>,
}

/// A drawing of the attempts of policies, one below the other.
pub struct ScheduleChart<'a> {
    /// Name of the drawing.
    pub title: &'a str,
    /// Width, in units of the drawing: the more, the smaller is its text.
    pub width: f64,
    /// Most attempts of a policy that are drawn.
    pub attempts_max: usize,
    /// Policies, from the top down.
    pub policies: &'a [PlannedPolicy],
}

impl ScheduleChart<'_> {
    /// Draws the attempts of all policies.
    pub fn draw(&self) -> Svg {
        let drawn = |policy: &'_ PlannedPolicy| policy.attempts.len().min(self.attempts_max);
        let shown = self.policies.iter().flat_map(|policy| policy.attempts.iter().take(self.attempts_max));
        let end = shown.map(|attempt| attempt.latest).fold(1.0, f64::max);
        let rows: usize = self.policies.iter().map(drawn).sum();
        let headings = self.policies.iter().filter(|policy| !policy.name.is_empty()).count();
        let height = ROW * rows as f64 + HEADING * headings as f64 + BOTTOM;
        let x = |seconds: f64| LEFT + (self.width - LEFT - RIGHT) * place(seconds) / place(end);
        let mut svg = format!(
            "<svg class=\"chart schedule\" viewBox=\"0 0 {} {height:.0}\" role=\"img\" aria-label=\"{}\">",
            self.width,
            escape(self.title)
        );
        self.draw_axis(&mut svg, height, &x, end);
        let mut y = 0.0;
        for policy in self.policies {
            if !policy.name.is_empty() {
                let _ = write!(svg, "<text x=\"0\" y=\"{:.0}\">{}</text>", y + 14.0, escape(&policy.name));
                y += HEADING;
            }
            for attempt in policy.attempts.iter().take(self.attempts_max) {
                draw_attempt(&mut svg, attempt, policy.tone, &x, y);
                y += ROW;
            }
        }
        svg.push_str("</svg>");
        Svg::of(svg)
    }

    fn draw_axis(&self, svg: &mut String, height: f64, x: &impl Fn(f64) -> f64, end: f64) {
        let (base, width) = (height - BOTTOM, self.width);
        let _ = write!(svg, "<line class=\"zero\" x1=\"{LEFT}\" x2=\"{width}\" y1=\"{base:.0}\" y2=\"{base:.0}\"/>");
        for (seconds, name) in ticks(end) {
            let at = x(seconds);
            let _ = write!(
                svg,
                "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{base:.0}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{name}</text>",
                height - 5.0
            );
        }
    }
}

fn draw_attempt(svg: &mut String, attempt: &AttemptWindow, tone: ChartTone, x: &impl Fn(f64) -> f64, y: f64) {
    let (from, to, mean) = (x(attempt.earliest), x(attempt.latest), x(attempt.expected));
    let class = tone.class();
    let _ = write!(
        svg,
        "<g><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
         <rect class=\"bar {class} hatched\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.0}\" rx=\"2\"/>\
         <rect class=\"bar {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"{:.0}\"/>\
         <title>attempt {}: {} to {} after the first, {} on average</title></g>",
        LEFT - 8.0,
        y + 9.0,
        attempt.number,
        y + 2.0,
        (to - from).max(3.0),
        ROW - 4.0,
        mean - 1.5,
        y + 1.0,
        ROW - 2.0,
        attempt.number,
        words::span(attempt.earliest),
        words::span(attempt.latest),
        words::span(attempt.expected)
    );
}

/// Returns the place of a moment on the logarithmic axis, which begins at zero.
fn place(seconds: f64) -> f64 {
    (1.0 + seconds.max(0.0)).ln()
}

/// Returns the moments that the axis names, far enough from each other to be read.
fn ticks(end: f64) -> Vec<(f64, &'static str)> {
    let mut chosen = vec![(0.0, "first")];
    let apart = place(end) * 0.09;
    for (seconds, name) in TICKS.into_iter().filter(|(seconds, _)| *seconds <= end) {
        let last = chosen.last().map_or(0.0, |(seconds, _)| place(*seconds));
        if place(seconds) - last >= apart {
            chosen.push((seconds, name));
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(title: &str, policies: &[PlannedPolicy]) -> String {
        ScheduleChart { title, width: 640.0, attempts_max: 24, policies }.draw().to_string()
    }

    fn planned(name: &str, count: u32) -> PlannedPolicy {
        let window = |number: u32| {
            let at = f64::from(number - 1) * 60.0;
            AttemptWindow { number, earliest: at * 0.5, expected: at * 0.75, latest: at }
        };
        PlannedPolicy { name: name.into(), tone: ChartTone::Calm, attempts: (1..=count).map(window).collect() }
    }

    #[test]
    fn a_plan_is_drawn_from_the_first_attempt_to_the_last_that_fits() {
        let drawn = draw("Retries", &[planned("", 40)]);
        assert_eq!(drawn.matches("<title>attempt ").count(), 24, "{drawn}");
        assert!(drawn.contains("attempt 3: 1 min to 2 min after the first, 1 min 30 s on average"), "{drawn}");
        assert!(drawn.contains(">10 min<") && !drawn.contains(">1 h<"), "{drawn}");
        assert!(!drawn.contains("NaN") && !drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn policies_stand_below_each_other_and_their_names_are_escaped() {
        let drawn = draw("<plan>", &[planned("<a>", 3), planned("b", 2)]);
        assert_eq!(drawn.matches("<title>attempt ").count(), 5, "{drawn}");
        assert!(drawn.contains("&lt;plan&gt;") && drawn.contains("&lt;a&gt;") && drawn.contains(">b<"), "{drawn}");
    }

    #[test]
    fn a_plan_of_one_attempt_is_drawn_too() {
        assert!(!draw("One", &[planned("", 1)]).contains("NaN"));
    }
}
