//! Wraps texts between words. Commands in backticks stay whole, so that they can be
//! copied.

/// Width of wrapped text, in characters.
pub const WIDTH: usize = 80;

/// Wraps a text between words. With an indent, every line but the first is indented
/// by two more spaces, so that sentences can be told apart.
pub fn wrap_text(text: &str, indent: &str) -> String {
    wrapped_to(text, indent, WIDTH)
}

/// Wraps a text like [`wrap_text`], to a width.
pub fn wrapped_to(text: &str, indent: &str, max_width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in words_and_commands(text) {
        let line = lines.last_mut().expect("there is a first line");
        let width = line.chars().count() + 1 + word.chars().count();
        if line.is_empty() {
            *line = format!("{indent}{word}");
        } else if width <= max_width {
            line.push(' ');
            line.push_str(&word);
        } else {
            lines.push(if indent.is_empty() { word } else { format!("{indent}  {word}") });
        }
    }
    lines.join("\n")
}

/// Splits a text into words. A command in backticks is one word, so that it can be
/// copied.
pub fn words_and_commands(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_command = false;
    for word in text.split(' ') {
        match words.last_mut().filter(|_| is_command) {
            Some(command) => {
                command.push(' ');
                command.push_str(word);
            }
            None => words.push(word.to_owned()),
        }
        is_command ^= word.matches('`').count() % 2 == 1;
    }
    // A backtick of somebody's own text begins no command.
    if is_command { text.split(' ').map(str::to_owned).collect() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_broken_between_words_but_never_inside_a_command() {
        let text = format!("{} `posthaste dead-letters replay dlv_1` tries it again", "a word ".repeat(9).trim());
        let lines: Vec<String> = wrap_text(&text, "  ").lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "    `posthaste dead-letters replay dlv_1` tries it again");
        assert!(lines[0].starts_with("  a word") && lines[0].ends_with("word"), "{lines:?}");
    }
}
