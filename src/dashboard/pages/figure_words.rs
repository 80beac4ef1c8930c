//! Writes numbers of templates, which hand over references.

use crate::dashboard::words;

/// Writes a whole number with its thousands apart.
pub fn count(number: &u64) -> String {
    words::count(*number)
}

/// Writes a share of one as a percentage.
pub fn percent(share: &f64) -> String {
    words::percent(*share)
}
