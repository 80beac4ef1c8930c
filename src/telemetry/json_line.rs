//! Formats a log event as one line of JSON.
//!
//! The stock formatter builds the line through a serializer and several
//! strings, which costs a tenth of the time of a delivery. This one writes the
//! same line straight into the buffer. Events inside a span still go to the
//! stock formatter, which knows how to show spans.

use std::cell::RefCell;
use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::log_time;

/// Formats events as lines of JSON.
pub struct JsonLine {
    with_spans: Format<Json>,
}

impl JsonLine {
    /// Creates the formatter.
    pub fn new() -> Self {
        Self { with_spans: Format::default().json().flatten_event(true) }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        // Events of the `log` crate carry their target in their fields.
        if context.lookup_current().is_some() || metadata.target() == "log" {
            return self.with_spans.format_event(context, line, event);
        }
        let mut text = String::with_capacity(LINE_BYTES_USUAL);
        text.push_str("{\"timestamp\":\"");
        push_time(&mut text);
        text.push_str("\",\"level\":\"");
        text.push_str(metadata.level().as_str());
        text.push('"');
        event.record(&mut JsonFields { line: &mut text });
        text.push_str(",\"target\":\"");
        push_escaped(&mut text, metadata.target());
        text.push_str("\"}\n");
        line.write_str(&text)
    }
}

/// Adds the time, to the microsecond. Lines of one second share all but its fraction.
fn push_time(line: &mut String) {
    thread_local! {
        static LAST: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let now = log_time();
    LAST.with_borrow_mut(|(second, text)| {
        if *second != now.as_second() {
            *second = now.as_second();
            *text = now.strftime("%Y-%m-%dT%H:%M:%S").to_string();
        }
        line.push_str(text);
    });
    let _ = write!(line, ".{:06}Z", now.subsec_microsecond());
}

/// Bytes that the line of an attempt takes, so that it does not grow.
const LINE_BYTES_USUAL: usize = 1_024;

/// Adds each field to the line.
struct JsonFields<'a> {
    line: &'a mut String,
}

impl JsonFields<'_> {
    fn add_name(&mut self, field: &Field) {
        self.line.push_str(",\"");
        self.line.push_str(field.name());
        self.line.push_str("\":");
    }

    /// Adds a value that is no text. Writing to a string does not fail.
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.add_name(field);
        let _ = self.line.write_fmt(value);
    }
}

impl Visit for JsonFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add_name(field);
        self.line.push('"');
        let _ = write!(Escaped(self.line), "{value:?}");
        self.line.push('"');
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_name(field);
        self.line.push('"');
        push_escaped(self.line, value);
        self.line.push('"');
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinities.
        if value.is_finite() {
            self.add(field, format_args!("{value:?}"));
        } else {
            self.add(field, format_args!("null"));
        }
    }
}

/// Writes text as the inside of a JSON string.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(self.0, text);
        Ok(())
    }
}

fn push_escaped(line: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        let (plain, special) = rest.split_at(at);
        line.push_str(plain);
        match special.as_bytes()[0] {
            b'"' => line.push_str("\\\""),
            b'\\' => line.push_str("\\\\"),
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            control => {
                let _ = write!(line, "\\u{control:04x}");
            }
        }
        rest = &special[1..];
    }
    line.push_str(rest);
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::{error, info, info_span};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log_everything() {
        let (none, some): (Option<u64>, Option<u64>) = (None, Some(7));
        let text = "a \"quoted\" \\ line\r\n\t\u{1} über \u{7f} \u{202e}";
        let shown = tracing::field::display(text);
        info!(
            event.id = "evt_1",
            count = 3_u64,
            less = -3_i64,
            part = 0.5,
            whole = 2.0,
            is_on = true,
            none,
            some,
            "hello"
        );
        info!(text, shown, debug = ?Some(text), nan = f64::NAN, "{text}");
        error!(error = %io::Error::other("disk"), "");
        let _span = info_span!("request", request.id = "req_1").entered();
        info!(status = 200, "inside");
    }

    /// Logs everything with a formatter; returns the lines as values, without
    /// their times.
    fn lines<F>(format: F) -> Vec<serde_json::Map<String, serde_json::Value>>
    where
        F: for<'a> FnOnce(Lines) -> Box<dyn tracing::Subscriber + Send + Sync> + 'static,
        F: 'static,
    {
        let lines = Lines::default();
        tracing::subscriber::with_default(format(lines.clone()), log_everything);
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        let line = |line: &str| {
            let mut fields: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(line).unwrap_or_else(|problem| panic!("{line}: {problem}"));
            let at = fields.remove("timestamp").unwrap();
            let at: jiff::Timestamp = at.as_str().filter(|at| at.len() == 27).unwrap().parse().unwrap();
            assert!(at.duration_until(log_time()).as_secs() < 60, "{at}");
            fields
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn a_line_reads_as_the_stock_formatter_writes_it() {
        let ours = lines(|lines| {
            let make = move || lines.clone();
            let builder = tracing_subscriber::fmt().json().with_writer(make);
            Box::new(builder.event_format(JsonLine::new()).finish())
        });
        let stock = lines(|lines| {
            let make = move || lines.clone();
            Box::new(tracing_subscriber::fmt().json().flatten_event(true).with_writer(make).finish())
        });
        assert_eq!(ours.len(), 4);
        assert_eq!(ours, stock);
    }
}
