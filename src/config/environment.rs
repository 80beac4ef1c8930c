//! Finds variables in the environment that look like settings and are none.
//!
//! Invariant: a misspelt setting never passes unnoticed.

use anyhow::bail;

use super::reference;

/// Variables that are no settings: the command line reads them.
const OF_THE_COMMAND_LINE: &[&str] = &["CONFIG", "SERVER", "TOKEN", "TOKEN_FILE", "TENANT", "SECRET", "CA"];

/// Beginning of all variables of posthaste.
const PREFIX: &str = "POSTHASTE_";

/// Beginnings of variables that the tests and `./check` read.
const OF_THE_TESTS: &[&str] =
    &["TEST_", "FAULTS_", "DIFFERENTIAL_", "SIM_", "FUZZ_", "BENCH_", "INSTRUCTIONS", "WRITE_TABLES", "SBOM"];

/// Refuses `POSTHASTE_…` variables of this process that nothing reads.
pub fn check() -> anyhow::Result<()> {
    let variables = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let Some(name) = variables.into_iter().find_map(|(name, value)| is_unknown(&name, &value).then_some(name)) else {
        return Ok(());
    };
    let nearest = nearest_variable(&name).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    bail!(
        "environment variable {name} means nothing; {nearest}`posthaste config --reference` lists all settings; \
         unset {name} if it is not for posthaste"
    )
}

fn is_unknown(name: &str, value: &str) -> bool {
    // A variable in another case is no setting, but somebody meant one.
    let Some(rest) = name.get(PREFIX.len()..).filter(|_| name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)) else {
        return false;
    };
    let is_other_case = !name.starts_with(PREFIX);
    let is_setting = reference().iter().any(|setting| setting.env == name);
    is_other_case
        || !is_setting
            && !OF_THE_COMMAND_LINE.contains(&rest)
            && !OF_THE_TESTS.iter().any(|prefix| rest.starts_with(prefix))
            && !is_service_link(rest, value)
}

/// Whether Kubernetes sets this variable in every pod, because a service of the
/// namespace has a name that begins with `posthaste`.
fn is_service_link(rest: &str, value: &str) -> bool {
    let is_port = |(_, after): (&str, &str)| after.starts_with(|c: char| c.is_ascii_digit());
    let rest = format!("_{rest}");
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.rsplit_once("_PORT_").is_some_and(is_port)
        || rest.ends_with("_PORT") && value.contains("://")
}

/// Returns the variable whose name is spelt most alike, in whatever case, if one is
/// close.
fn nearest_variable(name: &str) -> Option<String> {
    let name = name.to_uppercase();
    let of_commands = OF_THE_COMMAND_LINE.iter().map(|rest| format!("{PREFIX}{rest}"));
    let near = of_commands.map(|known| (edit_distance(&known, &name), known)).min()?;
    match nearest_setting(&name).map(str::to_owned) {
        Some(setting) if edit_distance(&setting, &name) <= near.0 => Some(setting),
        other => Some(near.1).filter(|_| near.0 <= 2).or(other),
    }
}

/// Returns the variable of the setting whose name is spelt most alike, if one is
/// close.
fn nearest_setting(name: &str) -> Option<&'static str> {
    let near = reference().into_iter().map(|setting| (edit_distance(setting.env, name), setting.env)).min()?;
    let is_close = near.0 <= 2 || near.0 * 4 <= name.len() - "POSTHASTE_".len();
    is_close.then_some(near.1)
}

/// Returns the setting whose name in the settings file is nearest to this one, if
/// one is near.
pub fn nearest_name(name: &str) -> Option<String> {
    let variable = format!("POSTHASTE_{}", name.to_uppercase().replace('-', "_"));
    let near = nearest_setting(&variable)?;
    Some(near.trim_start_matches("POSTHASTE_").to_lowercase().replace('_', "-"))
}

/// Returns how many letters must be added, removed or replaced to turn one text
/// into the other.
fn edit_distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, known) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != known);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_is_told_from_what_others_read() {
        for name in ["RETENTON", "ALLOW_EGRES", "PORT", "TOKENS", "SMTP_PASSWORD", "TENNANT", "allow_http"] {
            assert!(is_unknown(&format!("POSTHASTE_{name}"), "1"), "{name}");
        }
        for name in
            ["RETENTION", "TOKEN", "SERVER", "TEST_DATABASE_URL", "SIM_SEED", "SERVICE_HOST", "SERVICE_PORT_API"]
        {
            assert!(!is_unknown(&format!("POSTHASTE_{name}"), "1"), "{name}");
        }
        assert!(!is_unknown("POSTHASTE_PORT", "tcp://10.0.0.7:8400"), "Kubernetes writes it for a service");
        assert!(!is_unknown("POSTHASTE_DB_PORT_5432_TCP_ADDR", "10.0.0.7"));
        assert!(is_unknown("posthaste_allow_http", "1"), "in another case it is not read");
        assert!(!is_unknown("RETENTON", "1"), "other programs have settings, too");
    }

    #[test]
    fn the_nearest_setting_is_suggested_and_a_far_one_is_not() {
        assert_eq!(nearest_setting("POSTHASTE_RETENTON"), Some("POSTHASTE_RETENTION"));
        assert_eq!(nearest_setting("POSTHASTE_ALOW_EGRES"), Some("POSTHASTE_ALLOW_EGRESS"));
        assert_eq!(nearest_variable("POSTHASTE_TENNANT").as_deref(), Some("POSTHASTE_TENANT"));
        assert_eq!(nearest_variable("posthaste_allow_http").as_deref(), Some("POSTHASTE_ALLOW_HTTP"));
        assert_eq!(nearest_setting("POSTHASTE_DATABSE"), None);
        assert_eq!(nearest_setting("POSTHASTE_COLOUR"), None);
        assert_eq!(
            (edit_distance("kitten", "sitting"), edit_distance("", "abc"), edit_distance("abc", "abc")),
            (3, 3, 0)
        );
    }
}
