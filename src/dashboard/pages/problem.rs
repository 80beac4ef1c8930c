//! The page that shows a problem in place of another page.

use askama::Template;

use crate::dashboard::frame::Frame;
use crate::dashboard::page_error::PageError;

/// A page that shows what went wrong and what was not done.
#[derive(Template)]
#[template(path = "problem.html")]
pub struct ProblemPage {
    /// Layout of the page.
    pub frame: Frame,
    /// Problem that is shown.
    pub problem: PageError,
}
