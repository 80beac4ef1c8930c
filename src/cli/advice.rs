//! Completes the commands that are suggested, so that each works when it is pasted:
//! it names the gateway that this command line named, and the tenant where the
//! environment names another.

use clap::CommandFactory;

use crate::model::id::TenantId;
use crate::model::suggested_command::{quote, suggested_command};

/// Commands that are about one tenant.
const OF_A_TENANT: &[&str] =
    &["send", "endpoints", "events", "deliveries", "explain", "dead-letters", "jobs", "figures", "audit"];

/// Returns a command about something of a tenant, ready to paste.
pub fn tenant_command(tenant: &str, verb: &str, id: &str) -> String {
    PasteContext::of_process().complete(&suggested_command(tenant, verb, id))
}

/// Completes every command that a text has in backticks.
pub fn complete_commands(text: &str) -> String {
    if text.contains("`posthaste ") { PasteContext::of_process().complete_all(text) } else { text.to_owned() }
}

/// Returns the value of an option of this process, if the command line has it.
pub fn given_option(name: &str) -> Option<String> {
    let words: Vec<String> = std::env::args_os().skip(1).map_while(|word| word.into_string().ok()).collect();
    option_in(&words, name)
}

fn option_in(words: &[String], name: &str) -> Option<String> {
    let flag = format!("--{name}");
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words[..end].iter().enumerate().find_map(|(at, word)| match word.strip_prefix(&flag)? {
        "" => words.get(at + 1).cloned(),
        rest => rest.strip_prefix('=').map(str::to_owned),
    })
}

/// What a command is pasted into: the same shell, without the options of this command
/// line.
#[derive(Debug, Default)]
struct PasteContext {
    /// Options that name the gateway, each with a space before it.
    gateway: String,
    /// Whether the environment names another tenant than the default one.
    has_other_tenant: bool,
}

impl PasteContext {
    fn of_process() -> Self {
        // The token itself is never repeated: what is printed may be kept.
        let option = |name: &str| given_option(name).map(|value| format!(" --{name} {}", quote(&value)));
        let gateway = ["server", "token-file", "ca"].into_iter().filter_map(option).collect();
        let tenant = std::env::var("POSTHASTE_TENANT").unwrap_or_default();
        Self { gateway, has_other_tenant: !tenant.is_empty() && tenant != TenantId::DEFAULT }
    }

    fn complete_all(&self, text: &str) -> String {
        let parts = text.split('`').enumerate().map(|(n, part)| {
            let is_command = n % 2 == 1 && part.starts_with("posthaste ");
            if is_command { self.complete(part) } else { part.to_owned() }
        });
        parts.collect::<Vec<_>>().join("`")
    }

    /// Options go before the command, where `--` does not end them.
    fn complete(&self, command: &str) -> String {
        let Some(rest) = command.strip_prefix("posthaste ") else { return command.to_owned() };
        let verb = rest.split(' ').next().unwrap_or_default();
        let gateway = if needs_gateway(verb) { self.gateway.as_str() } else { "" };
        let is_tenant_missing = self.has_other_tenant
            && OF_A_TENANT.contains(&verb)
            && !rest.contains("--tenant")
            && !rest.contains("--all");
        let tenant = if is_tenant_missing { format!(" --tenant {}", TenantId::DEFAULT) } else { String::new() };
        format!("posthaste{gateway}{tenant} {rest}")
    }
}

/// Whether a command has the options that choose a gateway.
fn needs_gateway(verb: &str) -> bool {
    let cli = super::Cli::command();
    cli.find_subcommand(verb).is_some_and(|verb| verb.get_arguments().any(|option| option.get_id() == "server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_pasted_for_the_gateway_and_the_tenant_it_was_suggested_for() {
        let plain = PasteContext::default();
        assert_eq!(plain.complete_all("so `posthaste explain x`, or"), "so `posthaste explain x`, or");
        let other = PasteContext { gateway: " --server http://a:1 --token-file t".into(), has_other_tenant: true };
        for (text, completed) in [
            (
                "`posthaste explain x` and `posthaste serve` posthaste",
                "`posthaste --server http://a:1 --token-file t --tenant default explain x` and `posthaste serve` posthaste",
            ),
            (
                "`posthaste events get --tenant acme -- -x`",
                "`posthaste --server http://a:1 --token-file t events get --tenant acme -- -x`",
            ),
            ("`posthaste tenants get acme`", "`posthaste --server http://a:1 --token-file t tenants get acme`"),
        ] {
            assert_eq!(other.complete_all(text), completed);
        }
    }

    #[test]
    fn an_option_is_read_in_either_spelling_and_not_behind_its_end() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(option_in(&words("explain x --server http://a"), "server").as_deref(), Some("http://a"));
        assert_eq!(option_in(&words("--server=http://a explain x"), "server").as_deref(), Some("http://a"));
        assert_eq!(option_in(&words("--servers x -- --server y"), "server"), None);
    }
}
