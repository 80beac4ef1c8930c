//! Asks before an act of a portal that may be in a frame of somebody else's page.
//!
//! A page around the frame could lay something over a button and lead a click to it.
//! One click therefore leads to a question, whose button is elsewhere on the page.

use askama::Template;

use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::same_origin::FORM_TOKEN;

/// Name of the value that says that the act was asked about.
const CONFIRM: &str = "confirm";

/// What is asked before an act.
pub struct Question {
    /// The act as a question.
    pub title: &'static str,
    /// What follows from it.
    pub meaning: &'static str,
    /// What the button says.
    pub button: &'static str,
}

#[derive(Template)]
#[template(path = "confirm_in_frame.html")]
struct QuestionPage {
    frame: Frame,
    question: Question,
    /// What was typed into the form, which is sent again.
    typed: Vec<(String, String)>,
    /// Page to go back to, below the root.
    back: String,
}

/// Returns the page that asks; none if there is nothing to ask, since the page is in
/// no frame, or since it was asked already. `back` is a path below the root.
pub fn question(page: &PageContext, question: Question, back: String) -> Option<Result<PageAnswer, PageError>> {
    if page.frame.frame_origins.is_empty() || page.form.has(CONFIRM) {
        return None;
    }
    let typed = page.form.besides(&[FORM_TOKEN, CONFIRM]);
    Some(PageContext::render(&QuestionPage { frame: page.frame.clone(), question, typed, back }))
}
