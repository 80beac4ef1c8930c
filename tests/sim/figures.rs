//! Figures in simulated time: what is counted over hours is what the receiver
//! saw, and what cannot be written in time is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use posthaste::clock::{Clock, TokioClock};
use posthaste::lifecycle::Gateway;
use posthaste::lifecycle::accept::{Submission, accept};
use posthaste::lifecycle::change::{pause, resume};
use posthaste::lifecycle::deliver::send::Sender;
use posthaste::lifecycle::deliver::sign::SignedRequest;
use posthaste::lifecycle::figure_series::{FigureRange, FigureSeries, read};
use posthaste::lifecycle::figures::{FigureRecorder, run};
use posthaste::lifecycle::mail::MailQueue;
use posthaste::model::answer::{Answer, Response, Timings};
use posthaste::model::audit::Initiator;
use posthaste::model::delivery::time_after;
use posthaste::model::figure_time::{FigureGap, FigureSpan, FigureStep, WINDOW_MS, millis_later};
use posthaste::model::span::Span;
use posthaste::store::embedded::{Durability, EmbeddedStore};
use posthaste::store::figures::FigureScope;
use posthaste::store::plan::figures::sum;
use posthaste::store::{BatchMode, Catalog};

use super::faulty_store::FaultyStore;
use super::world::{endpoint, gateway, limits, tenant, tenant_record};

/// A receiver that fails every fifth time, and counts.
#[derive(Default)]
struct CountingReceiver {
    requests: AtomicU64,
    failures: AtomicU64,
}

#[async_trait::async_trait]
impl Sender for CountingReceiver {
    async fn send(&self, _: SignedRequest) -> Answer {
        let is_failing = self.requests.fetch_add(1, Ordering::Relaxed) % 5 == 4;
        self.failures.fetch_add(u64::from(is_failing), Ordering::Relaxed);
        let response = Response { status: if is_failing { 503 } else { 200 }, ..Response::default() };
        Answer { result: Ok(response), timings: Timings { total: 10.0, ..Timings::default() } }
    }
}

/// A gateway with one endpoint, whose clock begins at the beginning of an hour.
async fn begun(folder: &std::path::Path, receiver: Arc<CountingReceiver>) -> (Arc<Gateway>, Arc<dyn Clock>) {
    let began = Timestamp::from_second(1_800_000_000).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(began));
    let store = FaultyStore::steady(Arc::new(EmbeddedStore::open(folder, Durability::Unsynced).unwrap()));
    store.put_tenant(&Initiator::Gateway, tenant_record(began)).await.unwrap();
    store.create_endpoint(&Initiator::Gateway, endpoint(3, began)).await.unwrap();
    let mail = MailQueue::new(None, clock.clone());
    let gateway = gateway(Arc::new(store), receiver, &clock, mail, Span::secs(86_400), limits(), 7);
    let dispatcher = gateway.dispatcher.clone();
    tokio::spawn(async move { dispatcher.run().await });
    (gateway, clock)
}

async fn send(gateway: &Gateway) {
    let submission = Submission::new("sim.event".parse().unwrap(), Bytes::from_static(b"{}"));
    accept(gateway, &tenant(), vec![submission], BatchMode::All).await.unwrap();
}

async fn figures(gateway: &Gateway, step: FigureStep) -> FigureSeries {
    let now = gateway.clock.now();
    let range = FigureRange::covering(millis_later(now, -24 * 12 * WINDOW_MS), now, step);
    read(gateway, &FigureScope::Tenant(tenant()), range).await.unwrap()
}

fn in_simulated_time(story: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(story);
}

#[test]
fn hours_of_figures_are_what_the_receiver_saw_before_and_after_they_are_folded() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Arc::new(CountingReceiver::default());
    in_simulated_time(async {
        let (gateway, clock) = begun(folder.path(), receiver.clone()).await;
        let recorder = Arc::new(FigureRecorder::new(gateway.clone(), Span::secs(90 * 86_400)));
        let recording = tokio::spawn(run(recorder.clone()));
        for minute in 0..180 {
            send(&gateway).await;
            clock
                .sleep_until(time_after(
                    Timestamp::from_second(1_800_000_000).unwrap(),
                    Duration::from_secs(60 * (minute + 1)),
                ))
                .await;
        }
        // Every retry has come, and all windows are over and written.
        clock.sleep_until(time_after(clock.now(), Duration::from_secs(7_200))).await;
        let seen = (receiver.requests.load(Ordering::Relaxed), receiver.failures.load(Ordering::Relaxed));
        for step in [FigureStep::Window, FigureStep::Hour, FigureStep::Day] {
            let series = figures(&gateway, step).await;
            let sum = series.sum();
            assert_eq!((sum.by_verdict.iter().sum::<u64>(), sum.by_result[4]), seen, "{step:?}");
            assert_eq!((sum.accepted, sum.delivered, sum.slo.total), (180, 180, 180), "{step:?}");
            assert_eq!(series.gaps, [], "{step:?}");
            assert!(series.complete_until >= Some(millis_later(clock.now(), -2 * WINDOW_MS)), "{series:?}");
        }
        assert!(figures(&gateway, FigureStep::Window).await.points.len() >= 36);
        recording.abort();
        recorder.finish().await;
    });
}

#[test]
fn what_could_not_be_written_for_three_windows_is_dropped_counted_and_named() {
    let folder = tempfile::tempdir().unwrap();
    in_simulated_time(async {
        let (gateway, clock) = begun(folder.path(), Arc::default()).await;
        let began = clock.now();
        let recorder = FigureRecorder::new(gateway.clone(), Span::secs(90 * 86_400));
        recorder.write_next_part().await.unwrap();
        // Nothing is written meanwhile.
        for window in 0..5 {
            send(&gateway).await;
            clock.sleep_until(millis_later(began, (window + 1) * WINDOW_MS)).await;
        }
        send(&gateway).await;
        clock.sleep_until(time_after(clock.now(), Duration::from_secs(1))).await;
        recorder.finish().await;
        let series = figures(&gateway, FigureStep::Window).await;
        assert_eq!(series.gaps, [FigureGap { from: began, to: millis_later(began, 2 * WINDOW_MS) }]);
        assert_eq!(series.sum().accepted, 4, "three windows, and the one that was open");
        let text = gateway.metrics.encode(&Default::default());
        assert!(text.contains("\nposthaste_figures_dropped_total 2\n"), "{text}");
    });
}

#[test]
fn what_waits_is_counted_once_also_in_a_window_with_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    in_simulated_time(async {
        let (gateway, clock) = begun(folder.path(), Arc::default()).await;
        let began = clock.now();
        let waiting = gateway.store.endpoints(&tenant())[0].id;
        pause(&gateway, &Initiator::Gateway, &tenant(), waiting, None).await.unwrap();
        send(&gateway).await;
        clock.sleep_until(time_after(began, Duration::from_secs(60))).await;
        // The gateway stops, and another run goes on in the same window.
        let stopped = FigureRecorder::new(gateway.clone(), Span::secs(90 * 86_400));
        stopped.finish().await;
        let next = FigureRecorder::new(gateway.clone(), Span::secs(90 * 86_400));
        next.write_next_part().await.unwrap();
        let open: Vec<u64> =
            figures(&gateway, FigureStep::Window).await.points.iter().map(|one| one.1.waiting).collect();
        assert_eq!(open, [1], "while the window is open");
        clock.sleep_until(millis_later(began, WINDOW_MS + 1_000)).await;
        for _ in 0..10 {
            next.write_next_part().await.unwrap();
        }
        let scope = FigureScope::Tenant(tenant());
        let written =
            gateway.store.figures(&scope, FigureSpan::Window, began, millis_later(began, WINDOW_MS)).await.unwrap();
        assert_eq!(written.len(), 2, "one row of each run");
        let (window, _) = sum(&written);
        assert_eq!((window.accepted, window.waiting), (1, 1), "{written:?}");
    });
}

#[test]
fn what_is_due_counts_as_held_for_as_long_as_a_pause_lasts() {
    let folder = tempfile::tempdir().unwrap();
    in_simulated_time(async {
        let (gateway, clock) = begun(folder.path(), Arc::default()).await;
        let began = clock.now();
        let recorder = Arc::new(FigureRecorder::new(gateway.clone(), Span::secs(90 * 86_400)));
        let recording = tokio::spawn(run(recorder.clone()));
        let endpoint = gateway.store.endpoints(&tenant())[0].id;
        let at = async |seconds: i64| clock.sleep_until(millis_later(began, seconds * 1_000)).await;
        send(&gateway).await;
        at(100).await;
        pause(&gateway, &Initiator::Gateway, &tenant(), endpoint, None).await.unwrap();
        send(&gateway).await;
        at(400).await;
        resume(&gateway, &Initiator::Gateway, &tenant(), endpoint, None).await.unwrap();
        at(700).await;
        let scope = FigureScope::Endpoint(tenant(), endpoint);
        let written = gateway.store.figures(&scope, FigureSpan::Window, began, clock.now()).await.unwrap();
        let held = written.iter().map(|row| row.figures.held_ms);
        let seconds: Vec<[u64; 4]> = held
            .map(|held| [held.pause, held.breaker, held.backpressure, held.rate].map(|ms| (ms + 500) / 1_000))
            .collect();
        assert_eq!(seconds, [[200, 0, 0, 0], [100, 0, 0, 0]]);
        recording.abort();
        recorder.finish().await;
    });
}
