//! The pages in a real browser: Debian's Chromium, driven over WebDriver.
//!
//! Every page of both sites is visited: light and dark, wide and narrow, with and
//! without script, on a gateway that is empty, one that is full, and one full of
//! hostile texts. The combinations cover every pair of these; all of them are
//! visited with `PAGES_ALL=1`. `PAGES_PICTURES=folder` keeps a
//! picture of each.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

#[path = "../servers/mod.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod servers;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "other stories need more of it")]
mod support;

mod by_hand;
mod driver;
mod framed;
mod in_chromium;
mod pictures;
mod stage;
mod tls_front;
