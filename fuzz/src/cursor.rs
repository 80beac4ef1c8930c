//! Cursors of lists: one that is taken is one that was given, and by the list
//! that gave it.

use posthaste::api::page::{Page, page_request};
use posthaste::api::problem::{Problem, ProblemCode};
use posthaste::model::id::{AuditId, EndpointId, TokenId};
use posthaste::store;

/// Every list that has pages.
const LISTS: [&str; 9] =
    ["audit", "dead-letters", "deliveries", "endpoints", "events", "history", "lanes", "tenants", "tokens"];
const LIMIT_MAX: usize = 500;

/// The bytes are a cursor that somebody sends, and what a store says of where
/// its page ended.
pub fn cursor(bytes: &[u8]) {
    limit(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    sent(text);
    given(text);
}

fn limit(bytes: &[u8]) {
    let limit = bytes.iter().take(8).fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte));
    match page_request("events", Some(limit), None) {
        Ok(page) => assert!((1..=LIMIT_MAX).contains(&limit) && page.limit == limit && page.cursor.is_none()),
        Err(problem) => {
            assert!(!(1..=LIMIT_MAX).contains(&limit), "{limit} is a limit");
            refused(problem, ProblemCode::InvalidField, "?limit");
        }
    }
}

/// Whatever is taken is, letter by letter, what the list would give for it.
fn sent(text: &str) {
    let mut taken_by = Vec::new();
    for list in LISTS {
        match page_request(list, None, Some(text)) {
            Ok(page) => {
                assert_eq!(give(list, page.cursor).as_deref(), Some(text), "{list} takes what it never gave");
                taken_by.push(list);
            }
            Err(problem) => refused(problem, ProblemCode::InvalidCursor, "?cursor"),
        }
    }
    assert!(taken_by.len() <= 1, "{text:?} is of several lists: {taken_by:?}");
}

/// Whatever a store says comes back to it, by this list and no other. No store
/// says NUL, and none is asked about it.
fn given(place: &str) {
    for list in LISTS {
        let cursor = give(list, Some(place.to_owned())).expect("there is a next page");
        let needs_no_encoding = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        assert!(cursor.bytes().all(needs_no_encoding), "{cursor}");
        for other in LISTS {
            let came_back = page_request(other, None, Some(&cursor)).ok().and_then(|page| page.cursor);
            let expected = (list == other && !place.contains('\0')).then_some(place);
            assert_eq!(came_back.as_deref(), expected, "{list} to {other}");
        }
    }
    // Where the place is an id, it is written in one way alone.
    for shown in [
        place.parse::<EndpointId>().ok().map(|id| id.to_string()),
        place.parse::<TokenId>().ok().map(|id| id.to_string()),
        place.parse::<AuditId>().ok().map(|id| id.to_string()),
    ] {
        assert!(shown.is_none_or(|shown| shown == place), "{place:?} is another's name");
    }
}

fn give(list: &'static str, next: Option<String>) -> Option<String> {
    Page::of(list, store::ListPage::of(Vec::<()>::new(), next), |item| item).next
}

fn refused(problem: Problem, code: ProblemCode, pointer: &str) {
    let (found, errors) = problem.errors_below("");
    let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!((found, pointers), (code, vec![pointer]));
}
