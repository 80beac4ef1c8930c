//! One delivery: what happened, what holds it, what comes next, and every attempt.

use askama::Template;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::attempt_card::{AttemptCard, ShownAttempt, cards};
use super::delivery_holds::{HeldRun, PastHolds};
use super::delivery_story::{self, StoryLine};
use super::endpoint_charts::PastEvent;
use super::endpoint_labels::name_endpoints;
use super::event::EventDetail;
use crate::dashboard::api_caller;
use crate::dashboard::api_caller::api_path;
use crate::dashboard::chart::timeline::DrawnTimeline;
use crate::dashboard::commands::{self, BodyParts, KnownRequest};
use crate::dashboard::context::PageContext;
use crate::dashboard::frame::Frame;
use crate::dashboard::linked_sentence::LinkedSentence;
use crate::dashboard::page_answer::PageAnswer;
use crate::dashboard::page_error::PageError;
use crate::dashboard::shown_delivery::{self, ListedPage, ShownDelivery};
use crate::dashboard::words;
use crate::model::named_enum::NamedEnum;
use crate::model::suggested_command::suggested_command;

/// Attempts that one page shows in full.
const CARDS: usize = 4;
/// Attempts that the timeline shows.
const DRAWN: usize = 30;
/// Followers in a lane that are looked through for the next one.
const FOLLOWERS: usize = 50;

#[derive(Deserialize)]
struct ShownExplanation {
    summary: String,
    sentences: Vec<String>,
    attempts: Vec<ShownAttemptExplanation>,
}

#[derive(Deserialize)]
struct ShownAttemptExplanation {
    number: u32,
    sentences: Vec<String>,
}

#[derive(Template)]
#[template(path = "delivery.html")]
struct DeliveryPage {
    frame: Frame,
    delivery: ShownDelivery,
    summary: LinkedSentence,
    sentences: Vec<LinkedSentence>,
    timeline: DrawnTimeline,
    lines: Vec<StoryLine>,
    /// Attempts that the timeline leaves out.
    undrawn: usize,
    cards: Vec<AttemptCard>,
    /// Number of the attempt before which older ones are shown next; 0 for none.
    older_before: u32,
    is_newest: bool,
    lane: Option<LaneNeighbours>,
    curl: Option<ShownCurl>,
    /// Used and largest number of attempts of the present budget.
    budget: Option<(u32, u32)>,
    api_curl: String,
    command: String,
}

/// The deliveries before and after one in its lane.
struct LaneNeighbours {
    before: Option<ShownDelivery>,
    after: Option<ShownDelivery>,
    /// Whether more follow than were looked through.
    has_many_after: bool,
}

/// A command that repeats the last attempt.
struct ShownCurl {
    command: String,
    has_body: bool,
    is_url_known: bool,
}

/// Shows a delivery.
pub async fn show(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = delivery_path(&page);
    let (attempts_path, explain_path) = (format!("{path}/attempts"), format!("{path}/explain"));
    let (delivery, attempts, explanation) = tokio::join!(
        page.api.get::<ShownDelivery>(&path),
        page.api.get::<ListedPage<ShownAttempt>>(&attempts_path),
        page.api.get::<ShownExplanation>(&explain_path),
    );
    let (mut delivery, attempts, explanation) = (delivery?, attempts?.data, explanation?);
    name_endpoints(&page.api, std::slice::from_mut(&mut delivery)).await;
    let event_path = api_path!("/v1/tenants/{}/events/{}", delivery.tenant, delivery.event_id);
    let (lane, event) = tokio::join!(lane_of(&page, &delivery), page.api.get::<EventDetail>(&event_path));
    let before = lane.as_ref().and_then(|lane| lane.before.as_ref());
    let curl = attempts.last().map(|last| curl_of(&delivery, last, event.ok().as_ref()));
    let undrawn = attempts.len().saturating_sub(DRAWN);
    let holds = holds_of(&page, &delivery, before, &attempts[undrawn..]).await;
    let story = delivery_story::story(&delivery, &attempts[undrawn..], &holds, page.now);
    let budget = attempts.last().and_then(|last| last.decision.budget.as_ref());
    let budget = budget.filter(|_| delivery.is_waiting()).map(|budget| (budget.used, budget.max_attempts));
    let told = |sentences: &[String]| LinkedSentence::all(&page.frame, &delivery.tenant, &delivery.id, sentences);
    let before: Option<u32> = page.query.given("before").and_then(|before| before.parse().ok());
    let (shown, older_before) = one_page(attempts, before);
    let cards = cards(shown, |number| {
        let explained = explanation.attempts.iter().find(|attempt| attempt.number == number);
        explained.map(|attempt| told(&attempt.sentences)).unwrap_or_default()
    });
    PageContext::render(&DeliveryPage {
        summary: LinkedSentence::of(&page.frame, &delivery.tenant, &delivery.id, &explanation.summary),
        sentences: told(&explanation.sentences),
        timeline: story.draw(),
        lines: delivery_story::lines(&story),
        undrawn,
        cards,
        older_before,
        is_newest: before.is_none(),
        lane,
        curl,
        budget,
        api_curl: commands::api_curl(&explain_path),
        command: suggested_command(&delivery.tenant, "explain", &delivery.id),
        delivery,
        frame: page.frame.clone(),
    })
}

/// Returns the attempts that a page shows in full, the newest first, and the number
/// before which the next page goes on; 0 for the last page.
fn one_page(mut attempts: Vec<ShownAttempt>, before: Option<u32>) -> (Vec<ShownAttempt>, u32) {
    attempts.retain(|attempt| before.is_none_or(|before| attempt.number < before));
    let older = attempts.len().saturating_sub(CARDS);
    let mut shown = attempts.split_off(older);
    shown.reverse();
    let next = shown.last().filter(|_| older > 0).map_or(0, |oldest| oldest.number);
    (shown, next)
}

/// Finds the deliveries before and after one in its lane.
async fn lane_of(page: &PageContext, delivery: &ShownDelivery) -> Option<LaneNeighbours> {
    let seq = delivery.seq?;
    let list = |more: &[(&str, String)]| {
        let mut query =
            vec![("endpoint", delivery.endpoint_id.clone()), ("key", delivery.key.clone().unwrap_or_default())];
        query.extend(more.iter().cloned());
        format!("{}{}", page.tenant_path("/deliveries"), commands::query_of(&query))
    };
    let just_after = delivery.created_at.checked_add(SignedDuration::from_millis(1)).unwrap_or(Timestamp::MAX);
    let before = list(&[("until", just_after.to_string()), ("limit", "10".to_owned())]);
    let after = list(&[("since", delivery.created_at.to_string()), ("limit", FOLLOWERS.to_string())]);
    let (before, after) = tokio::join!(
        page.api.get::<ListedPage<ShownDelivery>>(&before),
        page.api.get::<ListedPage<ShownDelivery>>(&after)
    );
    let (before, after) = (before.ok()?, after.ok()?);
    let nearest = |found: Vec<ShownDelivery>, is_before: bool| {
        let others =
            found.into_iter().filter(|other| other.seq.is_some_and(|other| (other < seq) == is_before && other != seq));
        others.min_by_key(|other| other.seq.map_or(u64::MAX, |other| other.abs_diff(seq)))
    };
    let has_many_after = after.next.is_some();
    Some(LaneNeighbours { before: nearest(before.data, true), after: nearest(after.data, false), has_many_after })
}

/// Finds what held a delivery before its attempts. An endpoint that was deleted has
/// no history any more.
async fn holds_of(
    page: &PageContext,
    delivery: &ShownDelivery,
    before: Option<&ShownDelivery>,
    attempts: &[ShownAttempt],
) -> PastHolds {
    let endpoint = api_path!("/v1/tenants/{}/endpoints/{}", delivery.tenant, delivery.endpoint_id);
    let history = page.api.get::<ListedPage<PastEvent>>(&format!("{endpoint}/history?limit=200")).await;
    let mut holds = match history {
        Ok(history) => PastHolds::of_history(&history.data, history.next.is_some()),
        Err(_) => PastHolds::default(),
    };
    let first_at = attempts.first().map(|first| first.started_at);
    if let Some(before) = before {
        holds.behind(delivery, before, first_at);
    }
    let held = delivery_story::held_times(delivery, attempts, page.now);
    let unclear: Vec<_> = held.into_iter().filter(|(from, to)| holds.is_unclear(*from, *to)).collect();
    if let (Some((from, _)), Some((_, to))) = (unclear.first(), unclear.last()) {
        let is_recent = page.now.duration_since(*from) < SignedDuration::from_hours(47);
        let (step, window) =
            if is_recent { ("5m", SignedDuration::from_mins(5)) } else { ("1h", SignedDuration::from_hours(1)) };
        let figures = format!("{endpoint}/figures?step={step}&from={from}&to={to}");
        if let Ok(run) = page.api.get::<HeldRun>(&figures).await {
            holds.count(&run, window);
        }
    }
    holds
}

/// Returns a command that repeats an attempt.
fn curl_of(delivery: &ShownDelivery, attempt: &ShownAttempt, event: Option<&EventDetail>) -> ShownCurl {
    let body = event.filter(|event| event.data_withheld.is_none()).and_then(|event| {
        let parts = BodyParts {
            timestamp: &event.timestamp,
            schema_version: event.schema_version.as_deref(),
            data: event.data.get(),
        };
        commands::body_of(delivery, &parts)
    });
    let headers: Vec<(String, String)> = attempt.request_headers.clone().into_iter().collect();
    let url = attempt.url.as_deref().unwrap_or("https://receiver.example.com/");
    let request = KnownRequest { url, headers: &headers, body: body.as_deref() };
    let is_url_known = attempt.url.as_deref().is_some_and(|url| !url.contains("***"));
    ShownCurl { command: request.curl(), has_body: body.is_some(), is_url_known }
}

/// Sends the body of an attempt's answer as a file.
pub async fn download_answer(page: PageContext) -> Result<PageAnswer, PageError> {
    let path = format!("{}/attempts", delivery_path(&page));
    let attempts: ListedPage<ShownAttempt> = page.api.get(&path).await?;
    let number: Option<u32> = page.param("attempt").parse().ok();
    let attempt = attempts.data.into_iter().find(|attempt| Some(attempt.number) == number);
    let body = attempt.and_then(|attempt| attempt.response_body).ok_or_else(PageError::not_found)?;
    let name = format!("{}-attempt-{}.txt", page.param("delivery"), number.unwrap_or_default());
    Ok(PageAnswer::Download { name, content: body.into() })
}

#[derive(Template)]
#[template(path = "delivery_confirm.html")]
struct ConfirmPage {
    frame: Frame,
    delivery: ShownDelivery,
    verb: &'static str,
    followers: u64,
}

#[derive(Deserialize)]
struct ShownLane {
    head: String,
    waiting: u64,
}

/// Asks whether a delivery is to be cancelled.
pub async fn confirm_cancel(page: PageContext) -> Result<PageAnswer, PageError> {
    confirm(page, "cancel").await
}

/// Asks whether a dead letter is to be discarded.
pub async fn confirm_discard(page: PageContext) -> Result<PageAnswer, PageError> {
    confirm(page, "discard").await
}

async fn confirm(page: PageContext, verb: &'static str) -> Result<PageAnswer, PageError> {
    let delivery: ShownDelivery = page.api.get(&delivery_path(&page)).await?;
    let lanes = api_path!("/v1/tenants/{}/endpoints/{}/lanes", delivery.tenant, delivery.endpoint_id);
    let followers = match page.api.get::<ListedPage<ShownLane>>(&format!("{lanes}?blocked=true&limit=500")).await {
        Ok(lanes) => lanes.data.iter().find(|lane| lane.head == delivery.id).map_or(0, |lane| lane.waiting),
        Err(_) => 0,
    };
    PageContext::render(&ConfirmPage { frame: page.frame, delivery, verb, followers })
}

/// Makes a waiting delivery due now.
pub async fn retry(page: PageContext) -> Result<PageAnswer, PageError> {
    change(page, "deliveries", "retry", "retried").await
}

/// Cancels a waiting delivery.
pub async fn cancel(page: PageContext) -> Result<PageAnswer, PageError> {
    change(page, "deliveries", "cancel", "cancelled").await
}

/// Replays a finished delivery.
pub async fn replay(page: PageContext) -> Result<PageAnswer, PageError> {
    change(page, "deliveries", "replay", "replayed").await
}

/// Discards a dead letter.
pub async fn discard(page: PageContext) -> Result<PageAnswer, PageError> {
    change(page, "dead-letters", "discard", "discarded").await
}

async fn change(page: PageContext, list: &str, verb: &str, done: &str) -> Result<PageAnswer, PageError> {
    let id = page.param("delivery");
    page.api.post(&page.tenant_path(&format!("/{list}/{}/{verb}", api_path!("{}", id)))).await?;
    let path = page.frame.link("deliveries", page.tenant(), id);
    let path = path.strip_prefix(&page.frame.root).unwrap_or(&path).to_owned();
    Ok(page.lead_to(&path, done))
}

fn delivery_path(page: &PageContext) -> String {
    api_path!("/v1/tenants/{}/deliveries/{}", page.tenant(), page.param("delivery"))
}

#[cfg(test)]
mod tests {
    use super::super::attempt_card::tests::attempt;
    use super::*;
    use serde_json::json;

    #[test]
    fn many_attempts_are_shown_page_by_page_newest_first() {
        let all = || (1..=10).map(|number| attempt(number, i64::from(number), json!({}))).collect::<Vec<_>>();
        let numbers = |shown: Vec<ShownAttempt>| shown.iter().map(|attempt| attempt.number).collect::<Vec<_>>();
        let (shown, next) = one_page(all(), None);
        assert_eq!((numbers(shown), next), (vec![10, 9, 8, 7], 7));
        let (shown, next) = one_page(all(), Some(3));
        assert_eq!((numbers(shown), next), (vec![2, 1], 0));
        let (shown, next) = one_page(Vec::new(), None);
        assert_eq!((numbers(shown), next), (vec![], 0));
    }
}
