//! Steps of the schema take no longer on a large store than on an empty one.
//!
//! While a step is made, accepting waits. CONTRIBUTING.md says what to do instead.

use posthaste::store::migrations::{EMBEDDED, LAST_SLOW_EMBEDDED_STEP, LAST_SLOW_POSTGRES_STEP, POSTGRES};

use crate::source::{expect_none, read};

/// Tables that have a row for each event, delivery or attempt.
const LARGE: &[&str] =
    &["events", "deliveries", "queue", "finished", "dead", "dead_letters", "attempts", "producer_ids"];

/// The words of a statement, in lower case and without the name of the schema.
fn words(statement: &str) -> Vec<String> {
    let words = statement.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
    let words = words.map(|word| word.to_lowercase().trim_start_matches("posthaste.").to_owned());
    words.filter(|word| !word.is_empty() && word != "only").collect()
}

/// Which store a step is for. Tables of the embedded one are strict, so that SQLite reads all
/// rows of a table when a column is added to it, and writes them when one is dropped.
#[derive(Clone, Copy, PartialEq)]
enum SteppedStore {
    Embedded,
    Postgres,
}

/// Whether a statement reads or writes each row of a large table, or builds an index over it.
fn is_slow(statement: &str, store: SteppedStore) -> bool {
    let words = words(statement);
    let has = |word: &str| words.iter().any(|other| other == word);
    let follows = |before: &[&str]| {
        words.windows(2).any(|pair| before.contains(&pair[0].as_str()) && LARGE.contains(&pair[1].as_str()))
    };
    let is_index = words.first().is_some_and(|word| word == "create") && has("index") && follows(&["on"]);
    // A view is no copy.
    let is_copy = (has("insert") || has("as") && !has("view")) && has("select") && follows(&["from", "join", "into"]);
    // A column that is added to PostgreSQL is not; one whose type changes, and a rule for the rows
    // there are, is.
    let is_altered = words.first().is_some_and(|word| word == "alter") && follows(&["table", "exists"]);
    let is_rule = has("add") && ["constraint", "check", "primary", "unique", "foreign"].iter().any(|word| has(word));
    let is_checked = store == SteppedStore::Embedded && (has("add") || has("drop"));
    let is_rewrite = is_altered && (has("type") || has("set") && has("not") || is_rule || is_checked);
    is_index || is_copy || is_rewrite || follows(&["update"]) || (has("delete") && follows(&["from"]))
}

/// The statements of a step that take longer the more rows there are. Bodies of triggers and
/// functions are run later, a row at a time.
fn slow_statements(step: &str, store: SteppedStore) -> Vec<String> {
    let code: Vec<&str> = step.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let (mut slow, mut is_body) = (Vec::new(), false);
    for statement in code.join("\n").split(';') {
        let words = words(statement);
        let begins = |what: &str| words.first().is_some_and(|word| word == "create") && words.iter().any(|w| w == what);
        // A trigger of PostgreSQL has no body, and a function has one between two `$$`.
        is_body |= begins("trigger") && words.iter().any(|word| word == "begin") || begins("function");
        if !is_body && is_slow(statement, store) {
            slow.push(statement.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        let has_ended = words.first().is_some_and(|word| word == "end") || statement.matches("$$").count() == 2;
        is_body = is_body && !has_ended;
    }
    slow
}

#[test]
fn no_step_since_0_2_0_takes_longer_the_more_rows_there_are() {
    let mut wrong = Vec::new();
    for (name, store, steps, last) in [
        ("embedded", SteppedStore::Embedded, EMBEDDED, LAST_SLOW_EMBEDDED_STEP),
        ("postgres", SteppedStore::Postgres, POSTGRES, LAST_SLOW_POSTGRES_STEP),
    ] {
        assert!(steps.len() >= last, "{name} has step {last}");
        for (number, step) in steps.iter().enumerate().skip(last) {
            let slow = slow_statements(step, store);
            wrong.extend(slow.iter().map(|slow| format!("{name} step {}: {slow}", number + 1)));
        }
    }
    expect_none("statements that would keep a large store waiting (CONTRIBUTING.md says what to do instead)", wrong);
}

#[test]
fn the_steps_before_0_2_0_show_what_is_found() {
    let begin = |slow: Vec<String>| slow.iter().map(|text| text[..19].to_owned()).collect::<Vec<_>>();
    let embedded = |number: usize| begin(slow_statements(EMBEDDED[number - 1], SteppedStore::Embedded));
    let postgres = |number: usize| begin(slow_statements(POSTGRES[number - 1], SteppedStore::Postgres));
    assert_eq!(embedded(5), ["INSERT INTO stored ", "ALTER TABLE events ", "CREATE INDEX events"]);
    assert_eq!(embedded(6), ["CREATE INDEX delive"]);
    assert_eq!(
        embedded(7),
        ["CREATE INDEX dead_l", "CREATE INDEX dead_l", "INSERT INTO dead_le", "INSERT INTO dead_ta"]
    );
    assert_eq!((embedded(12), embedded(14)), (vec!["ALTER TABLE events ".into()], vec!["ALTER TABLE events ".into()]));
    assert_eq!(postgres(18), ["CREATE INDEX queue_", "CREATE INDEX queue_"]);
    for slow in [embedded(15), embedded(16), postgres(12), postgres(14), postgres(17)] {
        assert!(slow.is_empty(), "{slow:?}");
    }
    for statement in ["ALTER TABLE deliveries ADD COLUMN n INTEGER", "ALTER TABLE attempts DROP COLUMN record"] {
        assert!(!slow_statements(statement, SteppedStore::Embedded).is_empty(), "{statement}");
        assert!(slow_statements(statement, SteppedStore::Postgres).is_empty(), "{statement}");
    }
    for (statement, expected) in [
        ("UPDATE ONLY posthaste.queue SET urgent = false", true),
        ("DELETE FROM attempts WHERE no < 7", true),
        ("CREATE TABLE a AS SELECT no FROM posthaste.finished", true),
        ("CREATE OR REPLACE VIEW posthaste.deliveries AS SELECT no FROM posthaste.queue", false),
        ("ALTER TABLE posthaste.queue ALTER COLUMN n TYPE bigint", true),
        ("ALTER TABLE IF EXISTS posthaste.queue ALTER n SET NOT NULL", true),
        ("ALTER TABLE ONLY posthaste.events ADD CONSTRAINT c CHECK (n > 0)", true),
        ("ALTER TABLE posthaste.finished ADD PRIMARY KEY (no)", true),
        ("ALTER TABLE events ADD COLUMN updated INTEGER NOT NULL DEFAULT 0", false),
        ("UPDATE endpoints SET events = 0", false),
        ("CREATE TRIGGER t AFTER INSERT ON notes BEGIN UPDATE events SET no = 1; DELETE FROM events; END", false),
    ] {
        assert_eq!(!slow_statements(statement, SteppedStore::Postgres).is_empty(), expected, "{statement}");
    }
}

#[test]
fn what_to_do_instead_is_in_the_instructions() {
    assert!(read("CONTRIBUTING.md").contains("takes no longer on a large store than on an empty one"));
}
