//! Writes numbers, times and states for people.

use askama::FastWritable;
use jiff::{SignedDuration, Timestamp};

/// A whole number, by value or by reference, as templates pass it.
pub trait WholeNumber {
    /// Returns the number.
    fn whole(&self) -> i128;
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {
        $(impl WholeNumber for $number {
            fn whole(&self) -> i128 {
                *self as i128
            }
        })*
    };
}

whole_numbers!(u16, u32, u64, usize, i32, i64);

impl<N: WholeNumber + ?Sized> WholeNumber for &N {
    fn whole(&self) -> i128 {
        (**self).whole()
    }
}

/// Writes a whole number with its thousands apart: 1,204.
pub fn count(number: impl WholeNumber) -> String {
    let number = number.whole();
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("−{text}") } else { text }
}

/// Writes a share of one as a percentage: 99.95 %.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 100.0 {
        format!("{percent:.0} %")
    } else if !(1.0..99.0).contains(&percent) {
        format!("{percent:.2} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// Writes a number of seconds as a span: 3 s, 2 min, 4 h 10 min, 3 d 2 h.
pub fn span(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "0 s".to_owned();
    }
    if 0.0 < seconds && seconds < 0.0005 {
        return "under 1 ms".to_owned();
    }
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    let whole = seconds.round() as u64;
    let two = |large: u64, large_name: &str, small: u64, small_name: &str| {
        if small == 0 { format!("{large} {large_name}") } else { format!("{large} {large_name} {small} {small_name}") }
    };
    match whole {
        0..10 => format!("{seconds:.1} s").replace(".0 s", " s"),
        10..60 => format!("{whole} s"),
        60..3_600 => two(whole / 60, "min", whole % 60, "s"),
        3_600..86_400 => two(whole / 3_600, "h", whole % 3_600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3_600, "h"),
    }
}

/// Writes the time between two moments as a span.
pub fn between(from: Timestamp, to: Timestamp) -> String {
    span(to.duration_since(from).max(SignedDuration::ZERO).as_secs_f64())
}

/// Writes a number of bytes: 512 B, 1.5 KiB.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Cuts a text in its middle so that a row stays a row: both ends tell it apart.
pub fn short(text: &str, chars_max: usize) -> String {
    let count = text.chars().count();
    if count <= chars_max {
        return text.to_owned();
    }
    let (head, tail) = (chars_max * 2 / 3, chars_max - 1 - chars_max * 2 / 3);
    let head: String = text.chars().take(head).collect();
    let tail: String = text.chars().skip(count - tail).collect();
    format!("{head}…{tail}")
}

/// Cuts the key of an event for a list.
pub fn short_key(key: &str) -> String {
    short(key, 24)
}

/// Cuts the type of an event for a list.
pub fn short_type(event_type: &str) -> String {
    short(event_type, 32)
}

/// Cuts an id for a list that has many columns.
pub fn short_id(id: &str) -> String {
    short(id, 18)
}

/// A moment as pages show it: the time in UTC, with its date unless it is today's,
/// and the age or the time to go, which the script adds by the server's clock.
pub struct Moment {
    at: Timestamp,
    is_countdown: bool,
}

/// Shows a moment.
pub fn moment(at: &Timestamp) -> Moment {
    Moment { at: *at, is_countdown: false }
}

/// Shows a moment to come, with a countdown.
pub fn countdown(at: &Timestamp) -> Moment {
    Moment { at: *at, is_countdown: true }
}

impl Moment {
    /// Returns the moment in RFC 3339, for the `datetime` attribute.
    pub fn datetime(&self) -> String {
        format!("{:.3}", self.at)
    }

    /// Returns the moment for people.
    pub fn text(&self) -> String {
        self.at.strftime("%Y-%m-%d %H:%M:%S").to_string()
    }

    /// Returns how the script goes on with it.
    pub fn kind(&self) -> &'static str {
        if self.is_countdown { "countdown" } else { "age" }
    }
}

/// A moment is written as a `time` element. Nothing in it comes from outside.
impl FastWritable for Moment {
    fn write_into(&self, dest: &mut dyn std::fmt::Write, _: &dyn askama::Values) -> askama::Result<()> {
        write!(
            dest,
            "<time datetime=\"{}\" data-shows=\"{}\">{} UTC</time>",
            self.datetime(),
            self.kind(),
            self.text()
        )?;
        Ok(())
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<time datetime=\"{}\" data-shows=\"{}\">{} UTC</time>", self.datetime(), self.kind(), self.text())
    }
}

/// Times and numbers of the gateway are not text of strangers.
impl askama::filters::HtmlSafe for Moment {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            (count(1_204_000_u64), count(-1_500_i64), count(7_u32)),
            ("1,204,000".into(), "−1,500".into(), "7".into())
        );
        let shares = [0.0, 0.0004, 0.5, 0.99951, 1.0].map(percent);
        assert_eq!(shares, ["0 %", "0.04 %", "50.0 %", "99.95 %", "100 %"]);
        let spans = [0.25, 3.0, 3.25, 42.0, 125.0, 7_200.0, 93_600.0].map(span);
        assert_eq!(spans, ["250 ms", "3 s", "3.2 s", "42 s", "2 min 5 s", "2 h", "1 d 2 h"]);
        assert_eq!((bytes(512), bytes(1536)), ("512 B".into(), "1.5 KiB".into()));
    }

    #[test]
    fn a_long_text_is_cut_in_its_middle() {
        assert_eq!((short("abcdef", 6).as_str(), short("äbcdefghij", 6).as_str()), ("abcdef", "äbcd…j"));
        assert_eq!(short_key(&"k".repeat(200)).chars().count(), 24);
        assert_eq!(short_id("dlv_01m7fvxf8ce008000000000001"), "dlv_01m7fvxf…00001");
    }

    #[test]
    fn a_moment_is_for_people_and_programs() {
        let at = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
        assert_eq!(
            moment(&at).to_string(),
            "<time datetime=\"2023-11-14T22:13:20.123Z\" data-shows=\"age\">2023-11-14 22:13:20 UTC</time>"
        );
    }
}
