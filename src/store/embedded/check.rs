//! Checks a whole store: pages, indexes, checksums, what is sealed, and the
//! invariants between its tables.
//!
//! It only reads. What it cannot read is a finding, and the next part is checked
//! all the same.

use rusqlite::Connection;

use super::rows::RequestColumns;
use super::{check_rules, notes, scrub};
use crate::model::id::EndpointId;
use crate::model::store_check::CheckedPart;
use crate::store::row::{SqliteColumns, row};
use crate::store::seal::{CHECK_NOTE, LINK_KEY_NOTE, Seal, about_secret, about_settings, about_urls};
use crate::store::{ScrubStep, migrations};

/// Name of the part that covers pages and indexes.
pub const PAGES: &str = "pages and indexes";
const PAGES_RULE: &str = "every page is readable, and every index has the rows of its table";
/// Name of the part that covers what is sealed.
pub const SEALED: &str = "master key";
const NO_KEY: &str = "no master key was given";

/// Number of events that are compared with their checksums at a time.
const EVENTS_PER_STEP: usize = 500;

/// Checks everything, or of a schema of another version the pages and the key alone.
pub fn check_what_is_known(db: &Connection, seal: Option<&Seal>) -> Vec<CheckedPart> {
    let known = migrations::EMBEDDED.len() as i64;
    let version = db.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
    if let Ok(version) = version
        && version != known
    {
        let why = format!("its schema is {version}, and this posthaste checks {known}; run the version that wrote it");
        let rest = CheckedPart::new("everything else", "checksums fit, and tables agree").not_checked(why);
        return vec![check_pages_alone(db), check_key_alone(db, seal), rest];
    }
    check(db, seal)
}

/// Checks everything. Without a seal, sealed texts are not opened.
pub fn check(db: &Connection, seal: Option<&Seal>) -> Vec<CheckedPart> {
    let notes = CheckedPart::new("notes", "each note of the installation is what was written");
    let events = CheckedPart::new("checksums of events", "each event is what was accepted");
    let deliveries =
        CheckedPart::new("checksums of deliveries", "what makes up a delivery's request is what was written");
    let mut parts = vec![
        check_pages_alone(db),
        part(notes, |part| {
            notes::find_damaged_note(db)?.into_iter().for_each(|name| part.add_finding(format!("note {name}")));
            Ok(())
        }),
        check_sealed(db, seal),
        part(events, |part| check_events(db, part)),
        part(deliveries, |part| check_deliveries(db, part)),
    ];
    parts.extend(check_rules::RULES.iter().map(|rule| {
        part(CheckedPart::new(rule.name, rule.rule), |part| {
            for sql in rule.broken_by {
                let mut statement = db.prepare(sql)?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    part.add_finding(row.get(0)?);
                }
            }
            Ok(())
        })
    }));
    parts
}

/// Checks the pages and indexes alone.
fn check_pages_alone(db: &Connection) -> CheckedPart {
    part(CheckedPart::new(PAGES, PAGES_RULE), |part| check_pages(db, part))
}

/// Checks that the key is the one of the store, and opens nothing with it.
fn check_key_alone(db: &Connection, seal: Option<&Seal>) -> CheckedPart {
    let key = CheckedPart::new(SEALED, "the master key fits");
    let Some(seal) = seal else { return key.not_checked(NO_KEY) };
    part(key, |part| check_key(db, seal, part).map(drop))
}

/// Compares the key with the check text of the store; returns whether it fits.
fn check_key(db: &Connection, seal: &Seal, part: &mut CheckedPart) -> rusqlite::Result<bool> {
    let fits = notes::read(db, CHECK_NOTE)?.is_some_and(|check| seal.fits(&check));
    if !fits {
        part.add_finding("the store is sealed under another master key".into());
    }
    Ok(fits)
}

/// Runs the check of one part. If it cannot go on, the reason is a finding.
fn part(mut part: CheckedPart, check: impl FnOnce(&mut CheckedPart) -> rusqlite::Result<()>) -> CheckedPart {
    if let Err(problem) = check(&mut part) {
        part.add_finding(format!("it cannot be read to its end: {problem}"));
    }
    part
}

fn check_pages(db: &Connection, part: &mut CheckedPart) -> rusqlite::Result<()> {
    let mut statement = db.prepare("PRAGMA integrity_check")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let finding: String = row.get(0)?;
        if finding != "ok" {
            finding.lines().for_each(|line| part.add_finding(line.to_owned()));
        }
    }
    Ok(())
}

/// Opens every sealed text.
fn check_sealed(db: &Connection, seal: Option<&Seal>) -> CheckedPart {
    let sealed = CheckedPart::new(SEALED, "the master key fits, and opens everything that is sealed");
    let Some(seal) = seal else { return sealed.not_checked(NO_KEY) };
    part(sealed, |part| {
        if !check_key(db, seal, part)? {
            return Ok(());
        }
        if let Some(links) = notes::read(db, LINK_KEY_NOTE)?
            && let Err(problem) = seal.link_key(&links)
        {
            part.add_finding(problem.to_string());
        }
        for (what, sql, about) in SEALED_TEXTS {
            let mut statement = db.prepare(sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (endpoint, sealed): (EndpointId, Vec<u8>) = (row.get(0)?, row.get(1)?);
                if seal.open(&about(endpoint), &sealed).is_none() {
                    part.add_finding(format!("{what} of endpoint {endpoint} cannot be opened"));
                }
            }
        }
        Ok(())
    })
}

/// Whether everything is sealed under the key whose check text the store has, so that this
/// key alone opens it. While the key is being replaced it is not.
pub fn is_under_one_key(db: &Connection, seal: &Seal) -> rusqlite::Result<bool> {
    let check = notes::read(db, CHECK_NOTE)?;
    let Some(newest) = check.and_then(|check| seal.for_store(&check).ok()) else { return Ok(false) };
    if notes::read(db, LINK_KEY_NOTE)?.is_some_and(|links| newest.is_link_key_outdated(&links)) {
        return Ok(false);
    }
    for (_, sql, _) in SEALED_TEXTS {
        let mut statement = db.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if newest.is_outdated(&row.get::<_, Vec<u8>>(1)?) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Sealed texts of endpoints, and the context of each.
const SEALED_TEXTS: [(&str, &str, fn(EndpointId) -> Vec<u8>); 3] = [
    ("the settings", "SELECT id, settings FROM endpoints", about_settings),
    ("the URLs", "SELECT id, urls FROM endpoints WHERE urls IS NOT NULL", about_urls),
    ("a secret", "SELECT p.id, s.sealed FROM secrets s JOIN endpoints p ON p.no = s.endpoint", about_secret),
];

fn check_events(db: &Connection, part: &mut CheckedPart) -> rusqlite::Result<()> {
    let mut after = Some(0);
    while let Some(from) = after {
        let comparison = scrub::compare(db, ScrubStep { after: from, limit: EVENTS_PER_STEP })?;
        for (tenant, event) in comparison.scrubbed.damaged {
            part.add_finding(format!("event {event} of tenant {tenant} is not what was accepted"));
        }
        after = comparison.scrubbed.next;
    }
    Ok(())
}

row! {
    /// A delivery that is compared with its checksum.
    sqlite struct CheckedDeliveryRow from "FROM deliveries d JOIN events e ON e.no = d.event
               WHERE d.checksum IS NOT NULL AND e.checksum IS NOT NULL" {
        checksum: i64 = "d.checksum",
        of_event: i64 = "e.checksum",
        event: String = "e.id",
        request: RequestColumns = RequestColumns::COLUMNS,
    }
}

fn check_deliveries(db: &Connection, part: &mut CheckedPart) -> rusqlite::Result<()> {
    let mut statement = db.prepare(CheckedDeliveryRow::SQL)?;
    for row in statement.query_map([], CheckedDeliveryRow::read)? {
        let CheckedDeliveryRow { checksum, of_event, event, request } = row?;
        if request.checksum(of_event) != checksum {
            part.add_finding(format!("delivery {} of event {event} is not what was written", request.no));
        }
    }
    Ok(())
}
