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
        return format!("posthaste {verb}{tenant} -- {}", quoted(id));
    }
    let id = if id.is_empty() { String::new() } else { format!(" {}", quoted(id)) };
    format!("posthaste {verb}{id}{tenant}")
}

/// Returns an option with its value, as a shell reads it.
fn option(name: &str, value: &str) -> String {
    let between = if value.starts_with('-') { '=' } else { ' ' };
    format!("{name}{between}{}", quoted(value))
}

/// Returns a word as a shell reads it: in quotes where a shell would take a
/// character of it for its own.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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
        assert_eq!(quoted("it's; rm"), r"'it'\''s; rm'");
        assert_eq!((quoted("http://h/?a&b").as_str(), quoted("").as_str()), ("'http://h/?a&b'", "''"));
    }
}
