//! Lays out rows for people: as columns where they fit into the terminal, else as one
//! block per row.
//!
//! Invariant: nothing is cut, and no word is broken, so that ids, tokens, URLs and
//! commands can be copied. A line is wider than the terminal only where one word is. In
//! a pipe or a file every row is one line with all its values.

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use super::screen::{Screen, Tone};
use super::wrap::words_and_commands;

/// Space between two columns.
const GAP: usize = 2;

/// Narrowest last column that sentences are broken into.
const SENTENCE_WIDTH_MIN: usize = 24;

/// Rows of cells under titles. Without titles it is a list of fields: a name, and a
/// value.
#[derive(Debug)]
pub struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table of these rows.
    pub fn new(titles: &[&str], rows: Vec<Vec<String>>) -> Self {
        Self { titles: titles.iter().map(|title| (*title).to_owned()).collect(), rows }
    }

    /// Renders the titles and the rows.
    pub fn render(&self, screen: Screen) -> String {
        self.rendered_rows(screen).join("\n")
    }

    /// Renders each row, in the widest form that fits: with full times, with times by
    /// their distance, with the last column broken into lines, or as blocks. The titles
    /// come first, where there are any.
    pub fn rendered_rows(&self, screen: Screen) -> Vec<String> {
        let Some(width) = screen.width else { return self.columns(&self.rows, screen) };
        if self.width(&self.rows) <= width {
            return self.columns(&self.rows, screen);
        }
        if self.titles.is_empty() {
            return self.fields(width, screen);
        }
        let short: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| shorten_time(cell).to_owned()).collect()).collect();
        if self.width(&short) <= width {
            return self.columns(&short, screen);
        }
        match self.break_sentences(&short, width) {
            Some(broken) => self.columns(&broken, screen),
            None => self.blocks(width, screen),
        }
    }

    /// Returns the width of each column.
    fn widths(&self, rows: &[Vec<String>]) -> Vec<usize> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0).max(self.titles.len());
        let widest = |n: usize| {
            let cells = rows.iter().filter_map(|row| row.get(n)).flat_map(|cell| cell.split('\n'));
            cells.chain(self.titles.get(n).map(String::as_str)).map(UnicodeWidthStr::width).max().unwrap_or(0)
        };
        (0..columns).map(widest).collect()
    }

    fn width(&self, rows: &[Vec<String>]) -> usize {
        let widths = self.widths(rows);
        widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
    }

    fn columns(&self, rows: &[Vec<String>], screen: Screen) -> Vec<String> {
        let widths = self.widths(rows);
        let mut shown = Vec::new();
        if !self.titles.is_empty() {
            let titles: Vec<String> = self.titles.iter().map(|title| title.to_uppercase()).collect();
            let tones = vec![Some(Tone::Strong); titles.len()];
            shown.push(align_row(&titles, &tones, &widths, screen));
        }
        shown.extend(rows.iter().map(|row| align_row(row, &self.tones(row), &widths, screen)));
        shown
    }

    fn tones(&self, row: &[String]) -> Vec<Option<Tone>> {
        let tone = |(n, cell): (usize, &String)| match self.titles.get(n) {
            Some(title) => Tone::of(title, cell),
            None if n == 1 => Tone::of(&row[0], cell),
            None => None,
        };
        row.iter().enumerate().map(tone).collect()
    }

    /// Breaks the sentences of the last column, if there is enough room for them and no
    /// word would be torn.
    fn break_sentences(&self, rows: &[Vec<String>], width: usize) -> Option<Vec<Vec<String>>> {
        let (last, others) = self.widths(rows).split_last().map(|(_, others)| (others.len(), others.to_vec()))?;
        let room = width.checked_sub(others.iter().map(|column| column + GAP).sum())?;
        let cells = rows.iter().filter_map(|row| row.get(last)).chain(self.titles.get(last));
        let longest = cells.map(|cell| longest_word(cell)).max().unwrap_or(0);
        if room < SENTENCE_WIDTH_MIN.max(longest) {
            return None;
        }
        let mut rows = rows.to_vec();
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(last)) {
            *cell = break_lines(cell, room).join("\n");
        }
        Some(rows)
    }

    /// Renders the last column broken into lines, beside the others or, where a word of
    /// it would not fit there, below them.
    fn fields(&self, width: usize, screen: Screen) -> Vec<String> {
        let widths = self.widths(&self.rows);
        let beside: usize = widths.iter().rev().skip(1).map(|column| column + GAP).sum();
        let room = width.checked_sub(beside).filter(|room| *room >= SENTENCE_WIDTH_MIN);
        let rendered = |row: &Vec<String>| {
            let (last, others) = row.split_last().map_or(("", &[][..]), |(last, others)| (last, others));
            let Some(room) = room.filter(|room| longest_word(last) <= *room) else {
                let mut lines = break_lines(&others.join("  "), width);
                lines.extend(break_lines(last, width - GAP).into_iter().map(|line| format!("  {line}")));
                return lines.join("\n");
            };
            let cells = [others, &[break_lines(last, room).join("\n")]].concat();
            align_row(&cells, &self.tones(row), &widths, screen)
        };
        self.rows.iter().map(rendered).collect()
    }

    /// Renders one block per row: the first cell and the state, and below them the
    /// other fields with their titles, as many in a line as fit.
    fn blocks(&self, width: usize, screen: Screen) -> Vec<String> {
        let mut shown = Vec::new();
        for row in &self.rows {
            let fields: Vec<(&str, &str)> =
                self.titles.iter().map(String::as_str).zip(row.iter().map(String::as_str)).collect();
            let Some(((_, first), rest)) = fields.split_first() else { continue };
            let (state, rest): (Vec<_>, Vec<_>) = rest.iter().partition(|(title, _)| *title == "state");
            let mut head = Flow::new(width, "", screen);
            head.push("", first, Some(Tone::Strong));
            for (title, value) in state {
                head.push("", value, Tone::of(title, value));
            }
            let mut body = Flow::new(width, "  ", screen);
            for (title, value) in rest.into_iter().filter(|(_, value)| !matches!(*value, "" | "-")) {
                body.push(title, value, Tone::of(title, value));
            }
            shown.push([head.lines, body.lines].concat().join("\n"));
        }
        shown
    }
}

/// Renders a row whose cells may have several lines each.
fn align_row(row: &[String], tones: &[Option<Tone>], widths: &[usize], screen: Screen) -> String {
    let mut lines = Vec::new();
    let cells: Vec<Vec<&str>> = row.iter().map(|cell| cell.split('\n').collect()).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    for n in 0..height {
        let mut line = String::new();
        let mut owed = 0;
        for ((cell, tone), width) in cells.iter().zip(tones).zip(widths) {
            let text = cell.get(n).copied().unwrap_or_default();
            if !text.is_empty() {
                line.extend(std::iter::repeat_n(' ', owed));
                line.push_str(&screen.paint(*tone, text));
                owed = 0;
            }
            owed += (width + GAP).saturating_sub(text.width());
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

/// Fields that flow into lines of a width.
struct Flow {
    width: usize,
    indent: &'static str,
    screen: Screen,
    lines: Vec<String>,
    /// Columns of the last line that are taken.
    taken: usize,
}

impl Flow {
    fn new(width: usize, indent: &'static str, screen: Screen) -> Self {
        Self { width, indent, screen, lines: Vec::new(), taken: usize::MAX }
    }

    /// Adds a field. One that is wider than a line gets lines of its own.
    fn push(&mut self, title: &str, value: &str, tone: Option<Tone>) {
        const BETWEEN: usize = 3;
        let title = if title.is_empty() { String::new() } else { format!("{title}: ") };
        let needed = title.width() + value.width();
        if self.indent.len() + needed > self.width {
            let more = format!("{}  ", self.indent);
            let broken = break_lines(&format!("{title}{value}"), self.width - more.len());
            let lines = broken.iter().enumerate();
            self.lines.extend(lines.map(|(n, line)| format!("{}{line}", if n == 0 { self.indent } else { &more })));
            self.taken = usize::MAX;
            return;
        }
        let painted = format!("{}{}", self.screen.paint(Some(Tone::Faint), &title), self.screen.paint(tone, value));
        match self.lines.last_mut().filter(|_| self.taken.saturating_add(BETWEEN + needed) <= self.width) {
            Some(line) => {
                line.push_str(&format!("{:BETWEEN$}{painted}", ""));
                self.taken += BETWEEN + needed;
            }
            None => {
                self.lines.push(format!("{}{painted}", self.indent));
                self.taken = self.indent.len() + needed;
            }
        }
    }
}

/// Breaks a text into lines between words. A word that is wider than a line stays whole,
/// and so does a command: the terminal breaks it without changing what is copied.
fn break_lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for (n, word) in words_and_commands(paragraph).iter().enumerate() {
            if n > 0 && line.width() + 1 + word.width() <= width {
                line.push(' ');
            } else if n > 0 {
                lines.push(std::mem::take(&mut line));
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// Returns the width of the longest word of a text.
fn longest_word(text: &str) -> usize {
    text.split('\n').flat_map(words_and_commands).map(|word| word.width()).max().unwrap_or(0)
}

/// Returns a time by its distance alone, and any other cell as it is.
fn shorten_time(cell: &str) -> &str {
    match cell.split_once(" (") {
        Some((at, distance)) if at.parse::<Timestamp>().is_ok() => distance.trim_end_matches(')'),
        _ => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(width: usize) -> Screen {
        Screen { width: Some(width), has_colour: false }
    }

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    fn deliveries() -> Table {
        let rows = vec![
            row(&["dlv_01", "waiting (due)", "invoice.paid", "2026-11-15T15:17:24Z (in 3s)"]),
            row(&["dlv_02", "dead", "order.shipped", "2026-11-15T15:17:24Z (1h 2m ago)"]),
        ];
        Table::new(&["id", "state", "event type", "next"], rows)
    }

    #[test]
    fn a_table_takes_the_widest_form_that_fits() {
        let full = deliveries().render(Screen::PLAIN);
        insta::assert_snapshot!(full, @r"
        ID      STATE          EVENT TYPE     NEXT
        dlv_01  waiting (due)  invoice.paid   2026-11-15T15:17:24Z (in 3s)
        dlv_02  dead           order.shipped  2026-11-15T15:17:24Z (1h 2m ago)
        ");
        assert_eq!(deliveries().render(at(70)), full);
        insta::assert_snapshot!(deliveries().render(at(50)), @r"
        ID      STATE          EVENT TYPE     NEXT
        dlv_01  waiting (due)  invoice.paid   in 3s
        dlv_02  dead           order.shipped  1h 2m ago
        ");
        insta::assert_snapshot!(deliveries().render(at(40)), @r"
        dlv_01   waiting (due)
          event type: invoice.paid
          next: 2026-11-15T15:17:24Z (in 3s)
        dlv_02   dead
          event type: order.shipped
          next: 2026-11-15T15:17:24Z (1h 2m ago)
        ");
    }

    #[test]
    fn a_sentence_in_the_last_column_is_broken_beside_the_others() {
        let rows = vec![row(&["breaker_opened", "10 failures in a row; the last had no answer"])];
        insta::assert_snapshot!(Table::new(&["what", "reason"], rows).render(at(40)), @r"
        WHAT            REASON
        breaker_opened  10 failures in a row;
                        the last had no answer
        ");
    }

    #[test]
    fn what_people_copy_is_never_broken() {
        let url = "https://hooks.example.com/a/path/that/is/longer/than/the/line";
        let fields = Table::new(
            &[],
            vec![
                row(&["id", "ep_1"]),
                row(&["url", url]),
                row(&["note", "a b c d e f g h i j k l m n o p q r s t u v w x"]),
            ],
        );
        insta::assert_snapshot!(fields.render(at(40)), @r"
        id    ep_1
        url
          https://hooks.example.com/a/path/that/is/longer/than/the/line
        note  a b c d e f g h i j k l m n o p q
              r s t u v w x
        ");
        let fields = Table::new(&[], vec![row(&["id", "ep_1"]), row(&["url", url])]);
        assert_eq!(fields.render(Screen::PLAIN), format!("id   ep_1\nurl  {url}"), "one line per field in a pipe");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_but_for_one_long_word() {
        let long = "x".repeat(300);
        let table = Table::new(
            &["id", "state", "url", "at"],
            vec![
                row(&["ep_01m7fwhnace5k82wmjdeyknevn", "active", &long, "2026-11-15T15:17:24Z (in 3s)"]),
                row(&["漢字漢字漢字漢字", "paused", "日本語の説明 with words", "-"]),
            ],
        );
        for width in 20..400 {
            let shown = table.render(at(width));
            let is_fine = |line: &str| line.width() <= width || !line.trim().contains(' ');
            assert!(shown.lines().all(is_fine), "at {width}:\n{shown}");
            assert!(shown.contains(&long), "nothing is cut or broken at {width}");
        }
    }

    #[test]
    fn colours_take_no_room() {
        let colourful = Screen { width: Some(70), has_colour: true };
        let shown = deliveries().render(colourful);
        assert!(shown.contains("\x1b[31mdead\x1b[0m           order.shipped"), "{shown:?}");
        let fields = Table::new(&[], vec![row(&["health.breaker", "open"]), row(&["id", "open"])]).render(colourful);
        assert_eq!(fields, "health.breaker  \x1b[31mopen\x1b[0m\nid              open");
    }
}
