//! Writes log lines to standard error from a thread of its own.
//!
//! A gateway under load logs thousands of attempts a second. Each line goes to
//! a buffer, and the thread writes what has gathered with one call. A line
//! about an error is written before its caller goes on, together with all lines
//! before it, so that the reason of a sudden end is never lost.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Time in which lines gather before they are written.
const GATHER: Duration = Duration::from_millis(2);
/// Size of the buffer at which callers wait for a slow reader of the log.
const BUFFER_MAX: usize = 1_024 * 1_024;
/// Size up to which a buffer is used again.
const SPARE_MAX: usize = 128 * 1_024;

/// Takes log lines and writes them soon. Clones share the lines.
pub struct LogWriter<W>(Arc<LogState<W>>);

impl<W> Clone for LogWriter<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct LogState<W> {
    /// Locked before the lines, so that they are written in their order.
    output: Mutex<W>,
    lines: Mutex<Lines>,
    is_filled: Condvar,
    is_taken: Condvar,
}

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// An empty buffer, which takes the place of the lines that are written.
    spare: Vec<u8>,
    /// Whether each line is written at once, because the process ends.
    is_direct: bool,
}

impl<W: Write + Send + 'static> LogWriter<W> {
    /// Starts the thread that writes to `output`.
    pub fn start(output: W) -> Self {
        let (output, lines) = (Mutex::new(output), Mutex::default());
        let writer = Self(Arc::new(LogState { output, lines, is_filled: Condvar::new(), is_taken: Condvar::new() }));
        let running = writer.clone();
        let thread = std::thread::Builder::new().name("log-writer".into());
        thread.spawn(move || running.run()).expect("a thread can be started");
        writer
    }

    fn run(&self) {
        loop {
            let mut lines = self.0.lines.lock();
            while lines.bytes.is_empty() {
                self.0.is_filled.wait(&mut lines);
            }
            drop(lines);
            std::thread::sleep(GATHER);
            self.flush();
        }
    }

    /// Writes all lines. A failed write is ignored: there is no log to tell it to.
    fn flush(&self) {
        let mut output = self.0.output.lock();
        let mut bytes = {
            let mut lines = self.0.lines.lock();
            let empty = std::mem::take(&mut lines.spare);
            std::mem::replace(&mut lines.bytes, empty)
        };
        self.0.is_taken.notify_all();
        let _ = output.write_all(&bytes);
        // What was written is room for the next lines, which need not ask for more.
        if bytes.capacity() <= SPARE_MAX {
            bytes.clear();
            self.0.lines.lock().spare = bytes;
        }
    }

    /// Adds a line. Returns whether it is to be written at once.
    fn add(&self, line: &[u8]) -> bool {
        let mut lines = self.0.lines.lock();
        while lines.bytes.len() > BUFFER_MAX {
            self.0.is_taken.wait(&mut lines);
        }
        if lines.bytes.is_empty() {
            self.0.is_filled.notify_one();
        }
        lines.bytes.extend_from_slice(line);
        lines.is_direct
    }
}

/// Writes what is left when it is dropped; from then on each line is written
/// at once.
pub struct LogGuard(pub Option<LogWriter<io::Stderr>>);

impl Drop for LogGuard {
    fn drop(&mut self) {
        if let Some(writer) = &self.0 {
            writer.0.lines.lock().is_direct = true;
            writer.flush();
        }
    }
}

/// Takes one log line.
pub struct LineWriter<'a, W> {
    writer: &'a LogWriter<W>,
    is_error: bool,
}

impl<W: Write + Send + 'static> Write for LineWriter<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_direct = self.writer.add(line);
        if self.is_error || is_direct {
            self.writer.flush();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush();
        Ok(())
    }
}

impl<'a, W: Write + Send + 'static> MakeWriter<'a> for LogWriter<W> {
    type Writer = LineWriter<'a, W>;

    fn make_writer(&'a self) -> LineWriter<'a, W> {
        LineWriter { writer: self, is_error: false }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> LineWriter<'a, W> {
        LineWriter { writer: self, is_error: *event.level() == Level::ERROR }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Passes on what is written.
    struct ChannelWriter(mpsc::Sender<Vec<u8>>);

    impl Write for ChannelWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line(writer: &LogWriter<ChannelWriter>, is_error: bool, text: &str) {
        let mut line = LineWriter { writer, is_error };
        line.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn every_line_is_written_once_and_in_order() {
        let (sender, written) = mpsc::channel();
        let writer = LogWriter::start(ChannelWriter(sender));
        let expected: String = (0..1_000).map(|n| format!("line {n}\n")).collect();
        for text in expected.split_inclusive('\n') {
            line(&writer, false, text);
        }
        let mut all = Vec::new();
        while all.len() < expected.len() {
            all.extend(written.recv().unwrap());
        }
        assert_eq!(String::from_utf8(all).unwrap(), expected);
    }

    #[test]
    fn an_error_is_written_before_its_caller_goes_on_with_all_lines_before_it() {
        let (sender, written) = mpsc::channel();
        let writer = LogWriter::start(ChannelWriter(sender));
        line(&writer, false, "first\n");
        line(&writer, true, "the disk failed\n");
        let now: Vec<u8> = written.try_iter().flatten().collect();
        assert_eq!(String::from_utf8(now).unwrap(), "first\nthe disk failed\n");
    }
}
