//! `posthaste config`: shows the settings of a gateway, or describes them all.

use std::path::PathBuf;

use super::client::ClientArgs;
use super::failure::CommandFailure;
use super::output::{self, OutputFormat};
use crate::config::{self, PartialSettings, Settings};
use crate::model::named_enum::NamedEnum;
use crate::model::setting_in_force::SettingOrigin;

/// Show the settings of a gateway that is started here or of a running one, or describe them all
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    access: ClientArgs,
    /// Ask the running gateway for the settings it has in force; it takes the admin token.
    #[arg(long, conflicts_with = "reference")]
    of_gateway: bool,
    /// Print the reference page of all settings instead.
    #[arg(long)]
    pub(super) reference: bool,
    /// Print a settings file instead: every setting with its meaning, and those that are given as flags set.
    #[arg(long, conflicts_with_all = ["reference", "of_gateway"])]
    pub(super) example: bool,
    /// The settings file; posthaste.toml is read when it is there.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: PartialSettings,
}

/// Prints settings with where they came from, or the reference page.
pub async fn run(args: ConfigArgs) -> anyhow::Result<()> {
    args.access.refuse_tenant("settings are those of the whole gateway; leave it out")?;
    if args.reference {
        print!("{}", reference_page());
        return Ok(());
    }
    if args.example {
        return output::print(&example_file(args.given)?);
    }
    if args.of_gateway {
        refuse_given_settings()?;
        return print_settings_of_gateway(&args.access).await;
    }
    let file = config::read_file(args.config.as_deref())?;
    let (settings, shown) = Settings::in_force(args.given, file, config::is_flag_given);
    settings.check()?;
    if args.access.output == OutputFormat::Json {
        return output::print(&output::format_json(
            &serde_json::json!({"of": "a gateway started here", "data": shown, "next": null}).to_string(),
        ));
    }
    let title = "What `posthaste serve` would have if it were started here; --of-gateway shows what a running one has.";
    let rows = shown.iter().map(|setting| (setting.name.as_str(), setting.value.as_str(), setting.origin.as_str()));
    output::print(&render_settings(title, rows))
}

async fn print_settings_of_gateway(access: &ClientArgs) -> anyhow::Result<()> {
    let mut client = access.client().await?;
    let body = client.get(client.url(&["settings"])?).await?;
    if client.format == OutputFormat::Json {
        let of = serde_json::Value::from(access.gateway()?.server.as_str().trim_end_matches('/'));
        let fields = body.trim_start().trim_start_matches('{');
        return output::print(&output::format_json(&format!(r#"{{"of":{of},{fields}"#)));
    }
    let page = output::parse(&body)?;
    let part = |setting: &'_ serde_json::Value, name: &str| setting[name].as_str().unwrap_or_default().to_owned();
    let rows: Vec<[String; 3]> = output::items(&page)
        .iter()
        .map(|setting| ["name", "value", "origin"].map(|name| part(setting, name)))
        .collect();
    let title = format!("In force at {}.", access.gateway()?.server.as_str().trim_end_matches('/'));
    output::print(&render_settings(
        &title,
        rows.iter().map(|[name, value, origin]| (name.as_str(), value.as_str(), origin.as_str())),
    ))
}

/// Refuses settings beside `--of-gateway`: a running gateway has its own.
fn refuse_given_settings() -> anyhow::Result<()> {
    match config::reference().iter().find(|setting| config::is_flag_given(setting.name)) {
        Some(setting) => anyhow::bail!(CommandFailure::usage(format!(
            "{} is a setting to start with, and a running gateway has its own; leave it or --of-gateway out",
            setting.flag()
        ))),
        None => Ok(()),
    }
}

/// Renders settings as a settings file: each with where it came from as a comment.
fn render_settings<'a>(title: &str, settings: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> String {
    let settings = settings.map(|(name, value, origin)| {
        let line = format!("{name} = {value:?}");
        // A value cannot be broken, but where it came from can be above it.
        let is_long = line.chars().count() + origin.chars().count() + 4 > output::WIDTH;
        if is_long { format!("# {origin}:\n{line}") } else { format!("{line}  # {origin}") }
    });
    [output::wrap_text(title, "# ").replace("\n#   ", "\n# ")]
        .into_iter()
        .chain(settings)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns a settings file in which every setting stands with its meaning. Those that
/// were given as flags are set; the others are commented out, with their default.
fn example_file(given: PartialSettings) -> anyhow::Result<String> {
    let (settings, shown) = Settings::in_force(given, PartialSettings::default(), config::is_flag_given);
    settings.check()?;
    let mut file = format!(
        "# Settings of Posthaste {}.\n\
         # Every setting is here. One that is commented out has the value that is shown; remove\n\
         # the # before its name to change it. Flags and POSTHASTE_... variables go before this\n\
         # file. `posthaste config` says what a start would have, and where each value is from.\n",
        env!("CARGO_PKG_VERSION")
    );
    for (setting, in_force) in config::reference().iter().zip(shown) {
        let is_given = in_force.origin == SettingOrigin::Flag;
        let (mark, value) = if is_given { ("", &in_force.value) } else { ("#", &setting.default) };
        let meaning = output::wrap_text(&without_links(setting.sentences), "# ").replace("\n#   ", "\n# ");
        file.push_str(&format!("\n{meaning}\n{mark}{} = {value:?}\n", in_force.name));
    }
    Ok(file.trim_end().to_owned())
}

/// Replaces Markdown links by their texts: a settings file has no pages beside it.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let opened = plain.rfind('[').expect("a link has a text before its address");
        plain.remove(opened);
        plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain
}

/// Returns the reference page, which is `docs/settings.md` word for word.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         A setting comes from a flag of `posthaste serve`, else from the environment, else from\n\
         `posthaste.toml` (or the file named by `--config`), else from its default. A wrong value is\n\
         refused at start, by name. This page is printed by `posthaste config --reference`.\n",
    );
    for setting in config::reference() {
        let default = if setting.default.is_empty() { "none".to_owned() } else { format!("`{}`", setting.default) };
        page.push_str(&format!(
            "\n## `{flag} {hint}`\n\n{sentences}\n\n- default: {default}\n- environment: `{env}`\n- file: `{name}`\n",
            flag = setting.flag(),
            hint = setting.hint,
            sentences = setting.sentences,
            env = setting.env,
            name = setting.name.replace('_', "-"),
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_file_that_changes_nothing_until_it_is_edited() {
        let file = example_file(PartialSettings::default()).unwrap();
        assert!(file.lines().all(|line| line.is_empty() || line.starts_with('#')), "{file}");
        let all: String = file.lines().filter_map(|line| line.strip_prefix('#')).fold(String::new(), |all, line| {
            let is_setting = line.starts_with(|c: char| c.is_ascii_lowercase());
            if is_setting { all + line + "\n" } else { all }
        });
        let read: PartialSettings = toml::from_str(&all).unwrap();
        let shown =
            |settings: PartialSettings| Settings::resolve(settings, PartialSettings::default()).values_for_display();
        assert_eq!(all.lines().count(), config::reference().len());
        assert_eq!(shown(read), shown(PartialSettings::default()), "what is commented out is the default");
        assert!(!file.contains("]("), "no links to pages that are not there");
    }

    #[test]
    fn a_link_is_replaced_by_its_text() {
        assert_eq!(without_links("an [outbox](a.md#b) and [c](d)."), "an outbox and c.");
    }
}
