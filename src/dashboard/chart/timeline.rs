//! Draws what happened to one thing over time, to scale: marks at their moments,
//! and the waits between them with their reasons. Where waits differ so much that
//! marks would lie on each other, the axis is compressed, and the drawing says so.

use std::fmt::Write;

use jiff::Timestamp;

use super::{ChartTone, Svg, escape};
use crate::dashboard::words;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 104.0;
const SIDE: f64 = 28.0;
/// Height of the line that marks lie on.
const LINE: f64 = 46.0;
/// Least distance of two marks before the axis is compressed.
const APART: f64 = 18.0;
/// Width of a character of a label, roughly.
const CHARACTER: f64 = 6.6;
/// Distance of a label from the line across that it stands beside.
const BESIDE: f64 = 8.0;

/// How a moment is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MomentShape {
    /// A mark on the line whose shape follows its tone.
    Attempt,
    /// A triangle on the line: it begins anew.
    Replay,
    /// An open circle: it is still to come.
    Planned,
    /// A thin line across, with a name: beginning, end.
    Across,
    /// The same for the present, which is no event of its own.
    Now,
}

impl MomentShape {
    fn is_across(self) -> bool {
        match self {
            Self::Across | Self::Now => true,
            Self::Attempt | Self::Replay | Self::Planned => false,
        }
    }
}

/// One moment of a timeline.
pub struct TimelineMoment {
    /// When it was, or will be.
    pub at: Timestamp,
    /// Shape of its mark.
    pub shape: MomentShape,
    /// What its colour means.
    pub tone: ChartTone,
    /// A word or a number beside the mark.
    pub label: String,
    /// Sentence about it.
    pub title: String,
}

/// What lies between two moments.
pub struct TimelineWait {
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub to: Timestamp,
    /// What its colour means.
    pub tone: ChartTone,
    /// Reason for it.
    pub label: String,
}

/// What happened to one thing over time.
pub struct Timeline {
    /// Name of the drawing, for those who cannot see it.
    pub title: String,
    /// The moments, in any order.
    pub moments: Vec<TimelineMoment>,
    /// What lies between them, in any order.
    pub waits: Vec<TimelineWait>,
}

/// A timeline that was drawn.
pub struct DrawnTimeline {
    /// The drawing itself.
    pub svg: Svg,
    /// Whether longer waits are drawn shorter than they are.
    pub is_compressed: bool,
}

impl Timeline {
    /// Draws the timeline.
    pub fn draw(&self) -> DrawnTimeline {
        let scale = self.scale();
        let mut svg = format!(
            "<svg class=\"chart timeline\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\
             <line class=\"axis\" x1=\"{SIDE}\" x2=\"{:.0}\" y1=\"{LINE}\" y2=\"{LINE}\"/>",
            escape(&self.title),
            WIDTH - SIDE
        );
        for wait in &self.waits {
            draw_wait(&mut svg, &scale, wait);
        }
        draw_ticks(&mut svg, &scale);
        let lines = || self.moments.iter().filter(|moment| moment.shape.is_across()).map(|moment| scale.x(moment.at));
        for moment in &self.moments {
            let x = scale.x(moment.at);
            let is_crossed = lines().any(|line| (line - x).abs() < BESIDE);
            draw_moment(&mut svg, x, moment, is_crossed);
        }
        svg.push_str("</svg>");
        DrawnTimeline { svg: Svg::of(svg), is_compressed: scale.is_compressed }
    }

    fn scale(&self) -> TimeScale {
        let moments = self.moments.iter().map(|moment| moment.at);
        let mut knots: Vec<Timestamp> =
            moments.chain(self.waits.iter().flat_map(|wait| [wait.from, wait.to])).collect();
        knots.sort_unstable();
        knots.dedup();
        let mut marks: Vec<Timestamp> =
            self.moments.iter().filter(|moment| !moment.shape.is_across()).map(|moment| moment.at).collect();
        marks.sort_unstable();
        TimeScale::of(knots, &marks)
    }
}

/// Where each moment lies.
struct TimeScale {
    knots: Vec<(Timestamp, f64)>,
    is_compressed: bool,
}

impl TimeScale {
    fn of(knots: Vec<Timestamp>, marks: &[Timestamp]) -> Self {
        let room = WIDTH - 2.0 * SIDE;
        let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64().max(0.0);
        let (first, last) = match (knots.first(), knots.last()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => return Self { knots: Vec::new(), is_compressed: false },
        };
        let whole = seconds(first, last).max(0.001);
        let is_compressed =
            marks.windows(2).any(|pair| seconds(pair[0], pair[1]) / whole * room < APART && pair[0] != pair[1]);
        // Where it is compressed, ten times as long is one step wider.
        let weight = |from: Timestamp, to: Timestamp| {
            let seconds = seconds(from, to);
            if is_compressed { (1.0 + seconds).ln() + 0.15 } else { seconds }
        };
        let total: f64 = knots.windows(2).map(|pair| weight(pair[0], pair[1])).sum::<f64>().max(f64::MIN_POSITIVE);
        let mut x = SIDE;
        let mut placed = vec![(first, x)];
        for pair in knots.windows(2) {
            x += weight(pair[0], pair[1]) / total * room;
            placed.push((pair[1], x));
        }
        Self { knots: placed, is_compressed }
    }

    /// Returns where a moment lies; every moment of the drawing is a knot.
    fn x(&self, at: Timestamp) -> f64 {
        let after = self.knots.partition_point(|(knot, _)| *knot < at);
        self.knots.get(after).or(self.knots.last()).map_or(SIDE, |(_, x)| *x)
    }
}

fn draw_wait(svg: &mut String, scale: &TimeScale, wait: &TimelineWait) {
    let (from, to) = (scale.x(wait.from), scale.x(wait.to));
    if to - from < 1.0 {
        return;
    }
    let lasts = words::between(wait.from, wait.to);
    let dashes = if wait.tone == ChartTone::Off { " stroke-dasharray=\"2 5\"" } else { "" };
    let _ = write!(
        svg,
        "<line class=\"wait {}\"{dashes} x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{LINE}\" y2=\"{LINE}\"><title>{}</title></line>",
        wait.tone.class(),
        escape(&format!("{lasts}: {}", wait.label)),
    );
    // A text is shown if it fits below its wait; the whole is in the title and the table.
    let room = ((to - from) / CHARACTER) as usize;
    for (text, y) in [(lasts.as_str(), LINE + 20.0), (wait.label.as_str(), LINE + 34.0)] {
        if text.chars().count() <= room {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{y:.0}\" text-anchor=\"middle\">{}</text>",
                (from + to) / 2.0,
                escape(text)
            );
        }
    }
}

/// Draws one moment. A line across that passes through its mark leaves no room above it, so its
/// label then stands beside the line.
fn draw_moment(svg: &mut String, x: f64, moment: &TimelineMoment, is_crossed: bool) {
    let class = moment.tone.class();
    let _ = write!(svg, "<g><title>{}</title>", escape(&moment.title));
    let (y, above) = (LINE, LINE - 14.0);
    let _ = match (moment.shape, moment.tone) {
        (MomentShape::Attempt, ChartTone::Good) => {
            write!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y}\" r=\"7\"/>")
        }
        (MomentShape::Attempt, ChartTone::Bad) => {
            write!(svg, "<rect class=\"{class}\" x=\"{:.1}\" y=\"{}\" width=\"13\" height=\"13\"/>", x - 6.5, y - 6.5)
        }
        (MomentShape::Attempt, _) => {
            write!(svg, "<path class=\"{class}\" d=\"M{x:.1} {}l7.5 7.5l-7.5 7.5l-7.5 -7.5Z\"/>", y - 7.5)
        }
        (MomentShape::Replay, _) => {
            write!(svg, "<path class=\"{class}\" d=\"M{:.1} {}l8 5l-8 5Z\"/>", x - 14.0, y - 24.0)
        }
        (MomentShape::Planned, _) => {
            write!(svg, "<circle class=\"planned {class}\" cx=\"{x:.1}\" cy=\"{y}\" r=\"7\"/>")
        }
        (MomentShape::Across | MomentShape::Now, _) => write!(
            svg,
            "<line class=\"across {class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\"/>",
            y - 26.0,
            y + 12.0
        ),
    };
    let (label_x, label_y, anchor) = match moment.shape {
        shape if shape.is_across() && x > WIDTH * 0.9 => (x, y - 31.0, "end"),
        shape if shape.is_across() && x < WIDTH * 0.1 => (x, y - 31.0, "start"),
        MomentShape::Across | MomentShape::Now => (x, y - 31.0, "middle"),
        _ if is_crossed && x > WIDTH / 2.0 => (x - BESIDE, above, "end"),
        _ if is_crossed => (x + BESIDE, above, "start"),
        _ => (x, above, "middle"),
    };
    if moment.shape != MomentShape::Replay {
        let _ = write!(
            svg,
            "<text x=\"{label_x:.1}\" y=\"{label_y}\" text-anchor=\"{anchor}\">{}</text>",
            escape(&moment.label)
        );
    }
    svg.push_str("</g>");
}

/// Writes times below the line: of both ends, and of quarters where it is to scale.
fn draw_ticks(svg: &mut String, scale: &TimeScale) {
    let (Some((first, _)), Some((last, _))) = (scale.knots.first(), scale.knots.last()) else { return };
    let covers = last.duration_since(*first);
    let format = match covers.as_secs() {
        // Ticks of less than two seconds would all say the same.
        0..8 => "%H:%M:%S%.3f",
        8..7_200 => "%H:%M:%S",
        7_200..172_800 => "%H:%M",
        _ => "%b %-d %H:%M",
    };
    let parts: &[i32] = if scale.is_compressed { &[0, 4] } else { &[0, 1, 2, 3, 4] };
    for part in parts {
        let share = f64::from(*part) / 4.0;
        let at = *first + covers / 4 * *part;
        let anchor = ["start", "middle", "middle", "middle", "end"][*part as usize];
        let x = SIDE + (WIDTH - 2.0 * SIDE) * share;
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
            HEIGHT - 4.0,
            at.strftime(format)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn timeline(times: &[i64]) -> Timeline {
        let moments = times.iter().enumerate().map(|(number, time)| TimelineMoment {
            at: at(*time),
            shape: MomentShape::Attempt,
            tone: ChartTone::Watch,
            label: (number + 1).to_string(),
            title: format!("attempt {} <b>", number + 1),
        });
        let moments = moments.collect();
        let waits = times.windows(2).map(|pair| TimelineWait {
            from: at(pair[0]),
            to: at(pair[1]),
            tone: ChartTone::Calm,
            label: "backoff <i>".into(),
        });
        Timeline { title: "Attempts".into(), moments, waits: waits.collect() }
    }

    #[test]
    fn even_waits_are_drawn_to_scale() {
        let timeline = timeline(&[0, 100, 400]);
        let scale = timeline.scale();
        assert!(!scale.is_compressed);
        let (first, second, third) = (scale.x(at(0)), scale.x(at(100)), scale.x(at(400)));
        assert!(((third - first) / (second - first) - 4.0).abs() < 0.01, "{first} {second} {third}");
    }

    #[test]
    fn uneven_waits_are_compressed_and_keep_their_order() {
        let times = [0, 5, 35, 155, 455, 1_055, 4_655, 90_000, 250_000];
        let timeline = timeline(&times);
        assert!(timeline.draw().is_compressed);
        let scale = timeline.scale();
        let places: Vec<f64> = times.iter().map(|time| scale.x(at(*time))).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= APART), "{places:?}");
        assert!(places.iter().all(|x| (SIDE..=WIDTH - SIDE + 0.01).contains(x)), "{places:?}");
    }

    #[test]
    fn ticks_of_a_short_time_differ() {
        let drawn = timeline(&[0, 2]).draw().svg.to_string();
        assert!(drawn.contains(">22:13:20.500<") && drawn.contains(">22:13:22.000<"), "{drawn}");
        let drawn = timeline(&[0, 60]).draw().svg.to_string();
        assert!(drawn.contains(">22:13:35<"), "{drawn}");
    }

    #[test]
    fn the_number_of_an_attempt_stands_beside_a_line_that_crosses_its_mark() {
        let mut timeline = timeline(&[0, 60, 120]);
        let (shape, tone) = (MomentShape::Across, ChartTone::Off);
        timeline.moments.push(TimelineMoment {
            at: at(0),
            shape,
            tone,
            label: "accepted".into(),
            title: String::new(),
        });
        let drawn = timeline.draw().svg.to_string();
        for (label, anchor) in [("1", "start"), ("2", "middle"), ("3", "middle")] {
            assert!(drawn.contains(&format!("text-anchor=\"{anchor}\">{label}</text>")), "{label}: {drawn}");
        }
        assert!(drawn.contains("<text x=\"36.0\""), "{drawn}");
    }

    #[test]
    fn nothing_that_is_drawn_is_markup_of_strangers() {
        let drawn = timeline(&[0, 60]).draw().svg.to_string();
        assert!(drawn.contains("attempt 1 &lt;b&gt;") && drawn.contains("backoff &lt;i&gt;"), "{drawn}");
        assert!(!drawn.contains("style=") && !drawn.contains("<b>"), "{drawn}");
        let nothing = Timeline { title: String::new(), moments: Vec::new(), waits: Vec::new() };
        assert!(nothing.draw().svg.to_string().ends_with("</svg>"));
    }
}
