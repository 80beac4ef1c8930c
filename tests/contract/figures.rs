//! Figures: written once, rolled up into hours, and kept for as long as said.

use jiff::Timestamp;
use posthaste::model::audit::Initiator;
use posthaste::model::endpoint::Endpoint;
use posthaste::model::failing_endpoints::FailingEndpoints;
use posthaste::model::figure_time::{FigureGap, FigureSpan, HOUR_MS, WINDOW_MS, millis_later};
use posthaste::model::figures::WindowFigures;
use posthaste::model::id::EndpointId;
use posthaste::model::type_figures::{TypeCounts, TypeFigures};
use posthaste::store::figures::{DayUsage, FigureHorizon, FigureRow, FigureScope, FigureWriter, StoredFigures};
use posthaste::store::{AcceptResult, BatchMode};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours};

for_every_store! {
    figures_are_read_as_they_were_written_by_scope_and_time,
    a_write_that_is_repeated_changes_nothing,
    figures_of_two_writers_stand_beside_each_other,
    windows_are_folded_into_hours_and_the_sum_stays,
    windows_go_once_they_are_folded_and_hours_in_their_time,
    figures_are_complete_up_to_the_slowest_writer,
    a_writer_that_ended_without_a_word_leaves_a_gap,
    figures_survive_a_restart_and_those_of_a_deleted_endpoint_are_left_out,
    usage_is_counted_in_the_commit_that_accepts,
    usage_outlives_the_events_and_is_forgotten_in_its_time,
}

/// The endpoint at which the attempts of a sum failed.
const FAILING: EndpointId = EndpointId(uuid::Uuid::from_u128(7));
const WRITER: FigureWriter = FigureWriter(11);
const OTHER: FigureWriter = FigureWriter(12);

/// The beginning of a window, in windows after the first of a day.
fn window(n: i64) -> Timestamp {
    Timestamp::from_millisecond(19_700 * 24 * HOUR_MS + n * WINDOW_MS).unwrap()
}

fn counted(delivered: u64) -> WindowFigures {
    WindowFigures { delivered, waiting: delivered, ..WindowFigures::default() }
}

fn of(endpoint: &Endpoint) -> FigureScope {
    FigureScope::Endpoint(ours(), endpoint.id)
}

async fn write(fixture: &StoreFixture, writer: FigureWriter, n: i64, scope: &FigureScope, delivered: u64) {
    let mut types = TypeFigures::default();
    types.count(&"a.b".parse().unwrap(), TypeCounts { attempts: delivered, delivered, dead: 0 });
    let mut failing = FailingEndpoints::default();
    failing.count(FAILING, delivered);
    let row = FigureRow { scope: scope.clone(), figures: counted(delivered), types, failing };
    fixture.store.write_figures(writer, scope.part(), window(n), vec![row]).await.unwrap();
}

async fn read(fixture: &StoreFixture, scope: &FigureScope, span: FigureSpan) -> Vec<StoredFigures> {
    fixture.store.figures(scope, span, window(0), window(1_000)).await.unwrap()
}

/// What was delivered, by the beginning in windows.
fn delivered(read: &[StoredFigures]) -> Vec<(i64, u64)> {
    let since = |at: Timestamp| (at.as_millisecond() - window(0).as_millisecond()) / WINDOW_MS;
    read.iter().map(|one| (since(one.at), one.figures.delivered)).collect()
}

fn horizon(rolled_up: i64, windows: i64, hours: i64) -> FigureHorizon {
    FigureHorizon { roll_up_until: window(rolled_up), windows_before: window(windows), hours_before: window(hours) }
}

async fn maintain(fixture: &StoreFixture, scope: &FigureScope, horizon: FigureHorizon) {
    while fixture.store.maintain_figures(scope.part(), horizon).await.unwrap() {}
}

async fn figures_are_read_as_they_were_written_by_scope_and_time(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    let scopes = [of(&one), of(&two), FigureScope::Tenant(ours()), FigureScope::Gateway];
    for (n, scope) in (1..).zip(&scopes) {
        write(&fixture, WRITER, 3, scope, n).await;
        write(&fixture, WRITER, 5, scope, 10 * n).await;
    }
    for (n, scope) in (1..).zip(&scopes) {
        assert_eq!(delivered(&read(&fixture, scope, FigureSpan::Window).await), [(3, n), (5, 10 * n)]);
        let part = fixture.store.figures(scope, FigureSpan::Window, window(4), window(5)).await.unwrap();
        assert_eq!(part, [], "the end is not part of it");
        let part = fixture.store.figures(scope, FigureSpan::Window, window(5), window(6)).await.unwrap();
        assert_eq!(part[0].types.busiest(9)[0].1.attempts, 10 * n);
        assert_eq!(part[0].failing.worst(9), [(FAILING, 10 * n)]);
    }
}

async fn a_write_that_is_repeated_changes_nothing(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    write(&fixture, WRITER, 1, &of(&endpoint), 7).await;
    write(&fixture, WRITER, 1, &of(&endpoint), 7).await;
    write(&fixture, WRITER, 1, &of(&endpoint), 9).await;
    assert_eq!(delivered(&read(&fixture, &of(&endpoint), FigureSpan::Window).await), [(1, 7)]);
}

async fn figures_of_two_writers_stand_beside_each_other(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    write(&fixture, WRITER, 1, &of(&endpoint), 7).await;
    write(&fixture, OTHER, 1, &of(&endpoint), 2).await;
    assert_eq!(delivered(&read(&fixture, &of(&endpoint), FigureSpan::Window).await), [(1, 7), (1, 2)]);
}

async fn windows_are_folded_into_hours_and_the_sum_stays(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let scope = of(&endpoint);
    for (writer, n, count) in [(WRITER, 1, 1), (WRITER, 4, 2), (OTHER, 4, 4), (WRITER, 12, 8), (WRITER, 30, 16)] {
        write(&fixture, writer, n, &scope, count).await;
    }
    let unfolded = delivered(&read(&fixture, &scope, FigureSpan::Hour).await);
    assert_eq!(unfolded, [(1, 1), (4, 2), (4, 4), (12, 8), (30, 16)], "windows stand in for hours");
    maintain(&fixture, &scope, horizon(24, 0, 0)).await;
    let hours = read(&fixture, &scope, FigureSpan::Hour).await;
    assert_eq!(delivered(&hours), [(0, 7), (12, 8), (30, 16)]);
    assert_eq!(hours.iter().map(|one| one.span).collect::<Vec<_>>()[1..], [FigureSpan::Hour, FigureSpan::Window]);
    assert_eq!(hours[0].figures.waiting, 6, "as it was at the last window, over both writers");
    assert_eq!(hours[0].types.busiest(1)[0].1.attempts, 7);
    assert_eq!(hours[0].failing.worst(1), [(FAILING, 7)]);
    // Again, and with what came too late for its hour.
    write(&fixture, OTHER, 2, &scope, 100).await;
    maintain(&fixture, &scope, horizon(24, 0, 0)).await;
    assert_eq!(delivered(&read(&fixture, &scope, FigureSpan::Hour).await), [(0, 7), (12, 8), (30, 16)]);
    maintain(&fixture, &scope, horizon(36, 0, 0)).await;
    assert_eq!(delivered(&read(&fixture, &scope, FigureSpan::Hour).await), [(0, 7), (12, 8), (24, 16)]);
}

async fn windows_go_once_they_are_folded_and_hours_in_their_time(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let scope = of(&endpoint);
    for n in [0, 13, 26] {
        write(&fixture, WRITER, n, &scope, 1).await;
    }
    maintain(&fixture, &scope, horizon(0, 24, 0)).await;
    assert_eq!(read(&fixture, &scope, FigureSpan::Window).await.len(), 3, "what is not rolled up stays");
    maintain(&fixture, &scope, horizon(24, 24, 0)).await;
    assert_eq!(delivered(&read(&fixture, &scope, FigureSpan::Window).await), [(26, 1)]);
    assert_eq!(delivered(&read(&fixture, &scope, FigureSpan::Hour).await), [(0, 1), (12, 1), (26, 1)]);
    maintain(&fixture, &scope, horizon(24, 24, 12)).await;
    assert_eq!(delivered(&read(&fixture, &scope, FigureSpan::Hour).await), [(12, 1), (26, 1)]);
}

async fn figures_are_complete_up_to_the_slowest_writer(fixture: StoreFixture) {
    let coverage = async || fixture.store.figure_coverage(window(0), window(4)).await.unwrap();
    assert_eq!(coverage().await, Default::default());
    fixture.store.begin_figures(WRITER, window(1)).await.unwrap();
    fixture.store.begin_figures(WRITER, window(2)).await.unwrap();
    assert_eq!(coverage().await.written_until, Some(window(1)), "it has begun once");
    fixture.store.figures_written(WRITER, Some(window(3)), None).await.unwrap();
    fixture.store.figures_written(WRITER, Some(window(2)), None).await.unwrap();
    assert_eq!(coverage().await.written_until, Some(window(3)), "it does not go back");
    let dropped = FigureGap { from: window(3), to: window(4) };
    fixture.store.figures_written(WRITER, Some(window(4)), Some(dropped)).await.unwrap();
    assert_eq!((coverage().await.written_until, coverage().await.gaps), (Some(window(4)), vec![dropped]));
    let later = fixture.store.figure_coverage(window(4), window(4)).await.unwrap();
    assert_eq!(later.gaps, [], "a gap before the time that is asked for");
    fixture.store.figures_written(WRITER, None, None).await.unwrap();
    fixture.store.begin_figures(OTHER, window(9)).await.unwrap();
    assert_eq!(coverage().await.gaps, [dropped], "it has said that it ends");
}

async fn a_writer_that_ended_without_a_word_leaves_a_gap(fixture: StoreFixture) {
    fixture.store.begin_figures(WRITER, window(1)).await.unwrap();
    fixture.store.figures_written(WRITER, Some(window(2)), None).await.unwrap();
    fixture.store.begin_figures(OTHER, window(9)).await.unwrap();
    let coverage = fixture.store.figure_coverage(window(0), window(9)).await.unwrap();
    assert_eq!(coverage.gaps, [FigureGap { from: window(2), to: window(4) }]);
    assert_eq!(coverage.written_until, Some(window(9)), "whoever has ended holds nothing up");
}

async fn figures_survive_a_restart_and_those_of_a_deleted_endpoint_are_left_out(fixture: StoreFixture) {
    let (kept, deleted) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    write(&fixture, WRITER, 1, &of(&kept), 3).await;
    fixture.store.delete_endpoint(&Initiator::Gateway, &ours(), deleted.id, at(1)).await.unwrap();
    write(&fixture, WRITER, 1, &of(&deleted), 3).await;
    let fixture = fixture.reopened().await;
    assert_eq!(delivered(&read(&fixture, &of(&kept), FigureSpan::Window).await), [(1, 3)]);
    assert_eq!(read(&fixture, &of(&deleted), FigureSpan::Window).await, []);
}

async fn usage_today(fixture: &StoreFixture) -> Vec<DayUsage> {
    fixture.store.usage_of_day(today()).await.unwrap()
}

/// The day of the events of these tests.
fn today() -> i32 {
    i32::try_from(at(0).as_millisecond().div_euclid(24 * HOUR_MS)).unwrap()
}

async fn usage_is_counted_in_the_commit_that_accepts(fixture: StoreFixture) {
    let (one, two) = (fixture.endpoint(json!({})).await, fixture.endpoint(json!({})).await);
    assert_eq!(usage_today(&fixture).await, []);
    let first = fixture.claim(event("one").to(&one)).await;
    fixture.accept(event("both").to(&one).to(&two)).await;
    fixture.accept(event("nobody")).await;
    // What is repeated or refused is not billed.
    fixture.accept_all(vec![event("one").to(&one)], BatchMode::Each).await;
    let undone = fixture.accept_all(vec![event("new"), event("one").saying("[2]")], BatchMode::All).await;
    assert!(undone.iter().any(|one| matches!(one, AcceptResult::Conflict { .. })), "{undone:?}");
    let bytes = 3 * first.event.data.len() as u64;
    let expected = DayUsage { tenant: ours(), events: 3, deliveries: 3, bytes };
    assert_eq!(usage_today(&fixture).await, std::slice::from_ref(&expected));
    assert_eq!(fixture.store.usage_of_day(today() + 1).await.unwrap(), []);
    let fixture = fixture.reopened().await;
    assert_eq!(usage_today(&fixture).await, [expected]);
}

async fn usage_outlives_the_events_and_is_forgotten_in_its_time(fixture: StoreFixture) {
    fixture.accept(event("nobody")).await;
    fixture.forget(millis_later(at(0), 100 * HOUR_MS), millis_later(at(0), 100 * HOUR_MS)).await;
    assert!(fixture.store.event(&ours(), &"nobody".parse().unwrap()).await.unwrap().is_none());
    assert_eq!(usage_today(&fixture).await[0].events, 1);
    fixture.store.forget_usage(today()).await.unwrap();
    assert_eq!(usage_today(&fixture).await.len(), 1, "the day itself stays");
    fixture.store.forget_usage(today() + 1).await.unwrap();
    assert_eq!(usage_today(&fixture).await, []);
}
