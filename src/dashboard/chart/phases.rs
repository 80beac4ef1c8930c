//! Draws where the time of one request went, as a bar of its phases.

use std::fmt::Write;

use super::{Svg, escape};
use crate::dashboard::words;

/// Writes how long a phase took.
pub fn phase_span(millis: f64) -> String {
    if (0.0..1.0).contains(&millis) { "under 1 ms".to_owned() } else { words::span(millis / 1_000.0) }
}

/// One phase of a request.
pub struct RequestPhase {
    /// Name of the phase.
    pub name: &'static str,
    /// How long it took, in milliseconds.
    pub millis: f64,
}

/// How long each phase of a request took, as the API tells it: all but `total` and
/// `first_byte` are lengths, these two count from the start.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
pub struct PhaseTimes {
    /// Looking up the name.
    pub dns: Option<f64>,
    /// Opening the connection.
    pub connect: Option<f64>,
    /// Agreeing on encryption.
    pub tls: Option<f64>,
    /// From the start until the head of the answer.
    pub first_byte: Option<f64>,
    /// From the start until the end.
    pub total: f64,
}

impl PhaseTimes {
    /// Returns the phases one after another.
    pub fn phases(&self) -> Vec<RequestPhase> {
        let opening = [("dns", self.dns), ("connect", self.connect), ("tls", self.tls)];
        let mut phases: Vec<RequestPhase> =
            opening.into_iter().filter_map(|(name, millis)| Some(RequestPhase { name, millis: millis? })).collect();
        let opened: f64 = phases.iter().map(|phase| phase.millis).sum();
        match self.first_byte {
            Some(first_byte) => {
                phases.push(RequestPhase { name: "first byte", millis: (first_byte - opened).max(0.0) });
                phases.push(RequestPhase { name: "body", millis: (self.total - first_byte).max(0.0) });
            }
            None => phases.push(RequestPhase { name: "no answer", millis: (self.total - opened).max(0.0) }),
        }
        phases
    }

    /// Draws the phases as one bar.
    pub fn bar(&self) -> Svg {
        let (width, height) = (320.0, 10.0);
        let phases = self.phases();
        let total: f64 = phases.iter().map(|phase| phase.millis).sum::<f64>().max(0.001);
        let said: Vec<String> =
            phases.iter().map(|phase| format!("{} {}", phase.name, phase_span(phase.millis))).collect();
        let mut svg = format!(
            "<svg class=\"chart phases\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
            escape(&said.join(", "))
        );
        let mut x = 0.0;
        for (number, phase) in phases.iter().enumerate() {
            let wide = phase.millis / total * width;
            let _ = write!(
                svg,
                "<rect class=\"phase-{}\" x=\"{x:.1}\" y=\"0\" width=\"{wide:.1}\" height=\"{height}\"><title>{}</title></rect>",
                phase.name.split(' ').next().unwrap_or_default(),
                said[number],
            );
            x += wide;
        }
        svg.push_str("</svg>");
        Svg::of(svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_whole() {
        let times = PhaseTimes { dns: Some(2.0), connect: Some(3.0), tls: None, first_byte: Some(15.0), total: 20.0 };
        let phases: Vec<_> = times.phases().iter().map(|phase| (phase.name, phase.millis)).collect();
        assert_eq!(phases, [("dns", 2.0), ("connect", 3.0), ("first byte", 10.0), ("body", 5.0)]);
        let cut_off = PhaseTimes { first_byte: None, ..times };
        assert_eq!(cut_off.phases().iter().map(|phase| phase.millis).sum::<f64>(), 20.0);
        assert!(cut_off.bar().to_string().contains("no answer 15 ms"));
    }
}
