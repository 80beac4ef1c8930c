//! Draws figures over time, as lines or as stacked bars, with units, a zero line,
//! hours in UTC and grey where nothing is known.

use std::fmt::Write;

use jiff::{SignedDuration, Timestamp};

use super::{ChartTone, Svg, escape, figure, path, round_up, tick_label};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 12.0;
/// Most steps of a chart that say their figures to a pointer.
const TITLES_MAX: usize = 60;

/// One figure over time.
pub struct Series {
    /// Name of the figure.
    pub name: String,
    /// What its colour means.
    pub tone: ChartTone,
    /// One value per step; none where nothing is known.
    pub values: Vec<Option<f64>>,
}

/// How series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each as a line.
    Lines,
    /// Each as a line, on an axis from 0 to 100 percent.
    Percent,
    /// On top of each other as bars.
    Stacked,
}

/// A chart of figures over time.
pub struct OverTime {
    /// Name of the chart, for those who cannot see it.
    pub title: String,
    /// Unit of the values, such as `per second`.
    pub unit: String,
    /// Moment at which the first step begins.
    pub from: Timestamp,
    /// Length of each step.
    pub step: SignedDuration,
    /// The figures, with equally many values each.
    pub series: Vec<Series>,
    /// How they are drawn.
    pub shape: Shape,
    /// Moments to mark with a vertical line, with their names.
    pub marks: Vec<(Timestamp, String)>,
}

impl OverTime {
    /// Draws the chart.
    pub fn draw(&self) -> Svg {
        let steps = self.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let top = self.top(steps);
        let mut svg = format!(
            "<svg class=\"chart over-time\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&format!("{}, {}", self.title, self.unit))
        );
        self.draw_axes(&mut svg, top, steps);
        self.draw_gaps(&mut svg, steps);
        match self.shape {
            Shape::Lines | Shape::Percent => self.draw_lines(&mut svg, top, steps),
            Shape::Stacked => self.draw_bars(&mut svg, top, steps),
        }
        self.draw_marks(&mut svg, steps);
        svg.push_str("</svg>");
        Svg::of(svg)
    }

    /// Returns the end of the axis. Where only whole numbers are shown, it is one of
    /// which the half is whole, too.
    fn top(&self, steps: usize) -> f64 {
        match round_up(self.largest(steps)) {
            _ if self.shape == Shape::Percent => 100.0,
            top if self.is_whole() && top > 1.0 && top % 2.0 == 1.0 => top + 1.0,
            top => top,
        }
    }

    /// Whether all values are whole numbers, as counts are.
    fn is_whole(&self) -> bool {
        self.series.iter().flat_map(|series| series.values.iter().flatten()).all(|value| value.fract() == 0.0)
    }

    fn largest(&self, steps: usize) -> f64 {
        let at = |step: usize| self.series.iter().filter_map(move |series| *series.values.get(step)?);
        (0..steps)
            .map(|step| match self.shape {
                Shape::Lines | Shape::Percent => at(step).fold(0.0, f64::max),
                Shape::Stacked => at(step).sum(),
            })
            .fold(0.0, f64::max)
    }

    fn x(&self, step: f64, steps: usize) -> f64 {
        LEFT + (WIDTH - LEFT) * step / (steps.max(1) as f64)
    }

    fn y(&self, value: f64, top: f64) -> f64 {
        TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - value / top)
    }

    fn draw_axes(&self, svg: &mut String, top: f64, steps: usize) {
        let has_mark = |share: &f64| !self.is_whole() || (top * share).fract() == 0.0;
        for share in [0.0, 0.5, 1.0].into_iter().filter(has_mark) {
            let y = self.y(top * share, top);
            let class = if share == 0.0 { "zero" } else { "axis" };
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                figure(top * share)
            );
        }
        let covers = self.step.as_secs() * steps as i64;
        for part in 0..=4 {
            let step = steps as f64 * f64::from(part) / 4.0;
            let at = self.from + self.step * (step as i32);
            let anchor = match part {
                0 => "start",
                4 => "end",
                _ => "middle",
            };
            let _ = write!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
                self.x(step, steps),
                HEIGHT - 6.0,
                tick_label(at, covers)
            );
        }
    }

    fn draw_gaps(&self, svg: &mut String, steps: usize) {
        let is_known = |step: usize| self.series.iter().any(|series| matches!(series.values.get(step), Some(Some(_))));
        let mut step = 0;
        while step < steps {
            let end = (step..steps).find(|step| is_known(*step)).unwrap_or(steps);
            if end > step {
                let (from, to) = (self.x(step as f64, steps), self.x(end as f64, steps));
                let _ = write!(
                    svg,
                    "<rect class=\"gap\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"><title>not known</title></rect>",
                    to - from,
                    HEIGHT - BOTTOM - TOP
                );
            }
            step = end.max(step) + 1;
        }
    }

    fn draw_lines(&self, svg: &mut String, top: f64, steps: usize) {
        for series in &self.series {
            let class = series.tone.class();
            for run in runs(&series.values) {
                let points: Vec<(f64, f64)> =
                    run.iter().map(|(step, value)| (self.x(*step as f64 + 0.5, steps), self.y(*value, top))).collect();
                let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
                if points.len() == 1 {
                    let _ = write!(
                        svg,
                        "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.4\"/>",
                        first.0, first.1
                    );
                    continue;
                }
                let line = path(&points);
                // Areas of several figures would lie over each other.
                if self.series.len() == 1 {
                    let base = self.y(0.0, top);
                    let _ = write!(
                        svg,
                        "<path class=\"area {class}\" d=\"{line}L{:.1} {base:.1}L{:.1} {base:.1}Z\"/>",
                        last.0, first.0
                    );
                }
                let _ = write!(svg, "<path class=\"line {class}\" d=\"{line}\"/>");
            }
        }
    }

    /// Draws one path for each series, so that a page with many bars stays small.
    fn draw_bars(&self, svg: &mut String, top: f64, steps: usize) {
        let width = ((WIDTH - LEFT) / steps.max(1) as f64 - 0.6).max(0.6);
        let mut below = vec![0.0; steps];
        for series in &self.series {
            let (mut bars, stripes) = (String::new(), stripes(series.tone));
            for (step, below) in below.iter_mut().enumerate() {
                let value = series.values.get(step).copied().flatten().unwrap_or(0.0);
                if value <= 0.0 {
                    continue;
                }
                let (upper, lower) = (self.y(*below + value, top), self.y(*below, top));
                let (x, tall) = (self.x(step as f64, steps), (lower - upper).max(0.5));
                let _ = match stripes {
                    None => write!(bars, "M{x:.1} {upper:.1}h{width:.1}v{tall:.1}h-{width:.1}z"),
                    // A line as thick as the bar is wide, which its dashes divide into stripes.
                    Some(_) => write!(bars, "M{:.1} {lower:.1}v-{tall:.1}", x + width / 2.0),
                };
                *below += value;
            }
            let class = series.tone.class();
            let _ = match stripes {
                _ if bars.is_empty() => Ok(()),
                None => write!(svg, "<path class=\"bar {class}\" d=\"{bars}\"/>"),
                Some(stripes) => write!(
                    svg,
                    "<path class=\"striped {class}\" stroke-width=\"{width:.1}\" stroke-dasharray=\"{stripes}\" d=\"{bars}\"/>"
                ),
            };
        }
        self.draw_titles(svg, steps);
    }

    /// Draws what each step says to a pointer that rests on it.
    fn draw_titles(&self, svg: &mut String, steps: usize) {
        let width = (WIDTH - LEFT) / steps.max(1) as f64;
        for step in (0..steps).filter(|_| steps <= TITLES_MAX) {
            let named = self.series.iter().filter_map(|series| {
                let value = series.values.get(step).copied().flatten().filter(|value| *value > 0.0)?;
                Some(format!("{}: {}", escape(&series.name), figure(value)))
            });
            let named: Vec<String> = named.collect();
            if named.is_empty() {
                continue;
            }
            let at = self.from + self.step * (step as i32);
            let _ = write!(
                svg,
                "<rect class=\"hit\" x=\"{:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{:.0}\"><title>{} {}</title></rect>",
                self.x(step as f64, steps),
                HEIGHT - BOTTOM - TOP,
                at.strftime("%b %-d %H:%M"),
                named.join(", ")
            );
        }
    }

    fn draw_marks(&self, svg: &mut String, steps: usize) {
        for (at, name) in &self.marks {
            let step = at.duration_since(self.from).as_secs_f64() / self.step.as_secs_f64().max(1.0);
            if !(0.0..=steps as f64).contains(&step) {
                continue;
            }
            let x = self.x(step, steps);
            let _ = write!(
                svg,
                "<line class=\"watch line\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"><title>{} {}</title></line>",
                HEIGHT - BOTTOM,
                at.strftime("%H:%M:%S"),
                escape(name)
            );
        }
    }
}

/// Returns the stripes of bars that mean trouble, so that nobody has to tell colours
/// apart: how long a stripe is, and the space behind it.
fn stripes(tone: ChartTone) -> Option<&'static str> {
    match tone {
        ChartTone::Bad => Some("3 1.5"),
        ChartTone::Watch => Some("8 1.5"),
        ChartTone::Good | ChartTone::Calm | ChartTone::Off => None,
    }
}

/// Splits values into runs without a gap, with their steps.
fn runs(values: &[Option<f64>]) -> Vec<Vec<(usize, f64)>> {
    let mut runs: Vec<Vec<(usize, f64)>> = vec![Vec::new()];
    for (step, value) in values.iter().enumerate() {
        match value {
            Some(value) => runs.last_mut().expect("there is always a run").push((step, *value)),
            None => runs.push(Vec::new()),
        }
    }
    runs.into_iter().filter(|run| !run.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(shape: Shape, values: Vec<Option<f64>>) -> String {
        let series = vec![Series { name: "<delivered>".into(), tone: ChartTone::Good, values }];
        let (title, unit) = ("Delivered".into(), "per second".into());
        let (from, step) = (Timestamp::UNIX_EPOCH, SignedDuration::from_mins(5));
        OverTime { title, unit, from, step, series, shape, marks: Vec::new() }.draw().to_string()
    }

    #[test]
    fn what_is_not_known_is_a_gap_and_not_a_zero() {
        let drawn = chart(Shape::Lines, vec![Some(1.0), None, Some(3.0), Some(4.0)]);
        assert_eq!(drawn.matches("class=\"gap\"").count(), 1, "{drawn}");
        assert_eq!(drawn.matches("class=\"line good\"").count(), 1, "{drawn}");
        assert_eq!(drawn.matches("<circle class=\"good\"").count(), 1, "a point alone is a dot: {drawn}");
        assert_eq!(chart(Shape::Stacked, vec![Some(0.0); 4]).matches("class=\"gap\"").count(), 0);
    }

    #[test]
    fn a_gap_is_named_where_there_is_one() {
        let has_gap = |values: &[Option<f64>]| {
            let series = vec![Series { name: String::new(), tone: ChartTone::Good, values: values.to_vec() }];
            let (from, step) = (Timestamp::UNIX_EPOCH, SignedDuration::from_mins(5));
            let (title, unit, marks) = (String::new(), String::new(), Vec::new());
            OverTime { title, unit, from, step, series, shape: Shape::Lines, marks }.draw().has_gap()
        };
        assert!(has_gap(&[Some(1.0), None, Some(2.0)]));
        assert!(!has_gap(&[Some(1.0), Some(0.0)]));
    }

    #[test]
    fn bars_of_trouble_differ_from_good_ones_without_their_colours() {
        let drawn_as = |tone| {
            let series = vec![Series { name: String::new(), tone, values: vec![Some(2.0)] }];
            let (from, step) = (Timestamp::UNIX_EPOCH, SignedDuration::from_mins(5));
            let (title, unit, marks) = (String::new(), String::new(), Vec::new());
            let drawn = OverTime { title, unit, from, step, series, shape: Shape::Stacked, marks }.draw().to_string();
            let stripes = drawn.split("stroke-dasharray=\"").nth(1).and_then(|rest| rest.split('"').next());
            stripes.map(str::to_owned)
        };
        assert_eq!(drawn_as(ChartTone::Good), None);
        let (watch, bad) = (drawn_as(ChartTone::Watch), drawn_as(ChartTone::Bad));
        assert!(watch.is_some() && bad.is_some() && watch != bad, "{watch:?} {bad:?}");
    }

    #[test]
    fn an_axis_of_counts_has_whole_numbers_and_one_of_percent_ends_at_100() {
        let ticks = |shape, values: &[f64]| {
            let drawn = chart(shape, values.iter().copied().map(Some).collect());
            let texts = drawn.split("text-anchor=\"end\">").skip(1).filter_map(|text| text.split('<').next());
            texts.filter(|text| !text.contains(':')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(ticks(Shape::Lines, &[1.0, 0.0]), ["0", "1"]);
        assert_eq!(ticks(Shape::Stacked, &[3.0]), ["0", "2", "4"]);
        assert_eq!(ticks(Shape::Lines, &[0.7, 0.25]), ["0", "0.40", "0.80"]);
        assert_eq!(ticks(Shape::Percent, &[12.5, 3.0]), ["0", "50", "100"]);
    }

    #[test]
    fn a_chart_has_a_name_a_unit_and_a_zero_line_and_escapes_names() {
        let drawn = chart(Shape::Stacked, vec![Some(2.0), Some(5.0)]);
        for part in ["aria-label=\"Delivered, per second\"", "class=\"zero\"", ">00:00<", "&lt;delivered&gt;: 5"] {
            assert!(drawn.contains(part), "{part} in {drawn}");
        }
        assert!(!drawn.contains("style="), "{drawn}");
    }
}
