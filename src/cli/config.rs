//! `posthaste config`: shows the settings in force, or describes them all.

use std::path::PathBuf;

use crate::config::{self, PartialSettings, Settings};

/// Show the settings in force, or describe them all
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// Print the reference page of all settings instead.
    #[arg(long)]
    reference: bool,
    /// The settings file; posthaste.toml is read when it is there.
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: PartialSettings,
}

/// Prints the settings in force, or the reference page.
pub async fn run(args: ConfigArgs) -> anyhow::Result<()> {
    if args.reference {
        print!("{}", reference());
        return Ok(());
    }
    let file = config::read_file(args.config.as_deref())?;
    let settings = Settings::resolve(args.given, file);
    settings.check()?;
    for (name, value) in settings.shown() {
        println!("{} = {value:?}", name.replace('_', "-"));
    }
    Ok(())
}

/// Returns the reference page, which is `docs/settings.md` word for word.
pub fn reference() -> String {
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
