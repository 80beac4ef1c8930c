//! Builds the commands that explanations, mails and errors suggest, so that each
//! of them works when it is pasted into a shell.

use super::id::TenantId;

/// Returns a command about something of a tenant, such as
/// `posthaste dead-letters replay dlv_… --tenant acme`. The default tenant is not
/// named, because the command line means it anyway.
pub fn suggested_command(tenant: &str, verb: &str, id: &str) -> String {
    command(Some(tenant).filter(|tenant| *tenant != TenantId::DEFAULT), verb, id)
}

/// Returns a command about something of a tenant, for readers of whose shell nothing
/// is known: it names the default tenant as well.
pub fn command_anywhere(tenant: &str, verb: &str, id: &str) -> String {
    command(Some(tenant), verb, id)
}

fn command(tenant: Option<&str>, verb: &str, id: &str) -> String {
    let tenant = tenant.map(|tenant| format!(" {}", option("--tenant", tenant))).unwrap_or_default();
    // A word that begins with a dash is an option, unless `--` is before it.
    if id.starts_with('-') {
        return format!("posthaste {verb}{tenant} -- {}", quote(id));
    }
    let id = if id.is_empty() { String::new() } else { format!(" {}", quote(id)) };
    format!("posthaste {verb}{id}{tenant}")
}

/// Returns an option with its value, as a shell reads it.
pub fn option(name: &str, value: &str) -> String {
    let between = if value.starts_with('-') { '=' } else { ' ' };
    format!("{name}{between}{}", quote(value))
}

/// Returns a word as a shell reads it: in quotes where a shell would take a
/// character of it for its own.
pub fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.chars().any(is_told_in_numbers) {
        return quoted_in_numbers(word);
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether a terminal would obey a character that is pasted, or show a line other than
/// it is: controls but for line breaks, and those that turn the line around.
fn is_told_in_numbers(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && c != '\n'
}

/// Returns a word in the quotes of bash and zsh that know numbers of characters.
fn quoted_in_numbers(word: &str) -> String {
    let mut quoted = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if is_told_in_numbers(c) => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_every_tenant_but_the_default() {
        assert_eq!(suggested_command("default", "explain", "dlv_1"), "posthaste explain dlv_1");
        assert_eq!(command_anywhere("default", "explain", "dlv_1"), "posthaste explain dlv_1 --tenant default");
        assert_eq!(suggested_command("acme", "explain", "dlv_1"), "posthaste explain dlv_1 --tenant acme");
        assert_eq!(suggested_command("acme", "deliveries list", ""), "posthaste deliveries list --tenant acme");
    }

    #[test]
    fn what_a_shell_or_the_command_line_would_misread_is_written_so_that_it_is_not() {
        assert_eq!(suggested_command("-a", "events get", "-e"), "posthaste events get --tenant=-a -- -e");
        assert_eq!(quote("it's; rm"), r"'it'\''s; rm'");
        // A terminal must not take the end of a paste, or of the line, from what is pasted.
        assert_eq!(quote("a\u{1b}[201~\nrm 'x\\y"), "$'a\\u001b[201~\nrm \\'x\\\\y'");
        assert_eq!(
            (quote("\u{9b}\u{202e}").as_str(), quote("two\nlines").as_str()),
            (r"$'\u009b\u202e'", "'two\nlines'")
        );
        assert_eq!((quote("http://h/?a&b").as_str(), quote("").as_str()), ("'http://h/?a&b'", "''"));
    }
}
