//! Runs one scenario: starts gateways, makes the load, and samples every second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use http::Method;
use tokio::time::Instant;

use super::gateway::{BenchFolder, GatewayGroup};
use super::load::{self, LoadCounters};
use super::receiver::BenchReceiver;
use super::result::{BenchResult, Quantiles};
use super::sampler::Sampler;
use super::scenario::Scenario;

/// Time of the load that comes before the measurement, so that connections are open
/// and caches are warm.
const WARM_UP: Duration = Duration::from_millis(500);

/// Measures one scenario. `bare` is the number of requests per second that a bare
/// client reaches.
pub async fn measure(
    folder: &mut BenchFolder,
    receiver: &BenchReceiver,
    scenario: &Scenario,
    bare: f64,
) -> anyhow::Result<BenchResult> {
    let group = folder.start().await?;
    let endpoints = (0..scenario.endpoints).map(|number| scenario.endpoint(number, &receiver.url()).to_string());
    let ids = group.create_endpoints(endpoints.collect()).await?;
    prepare(&group, receiver, scenario, &ids).await?;
    let counters = Arc::new(LoadCounters::default());
    let (arrived, before) = (receiver.arrived(), group.usage().await?);
    let mut sampler = Sampler::new(&group, receiver, &counters, scenario);
    let began = Instant::now();
    let (accepted, waiting) = {
        let load = load_and_drain(&group, receiver, scenario, &ids, &counters);
        tokio::pin!(load);
        loop {
            tokio::select! {
                ended = &mut load => break ended?,
                () = sampler.next() => {}
            }
        }
    };
    let took = began.elapsed().as_secs_f64();
    let seconds = sampler.finish();
    let used = group.usage().await? - before;
    group.stop().await;
    let deliveries = receiver.arrived() - arrived;
    let arrival = receiver.take_latency();
    let is_drain = scenario.backlog > 0;
    let each = |whole: f64| whole / deliveries.max(1) as f64;
    Ok(BenchResult {
        name: scenario.name.clone(),
        delivered_per_second: deliveries as f64 / took,
        percent_of_bare: 100.0 * deliveries as f64 / took / bare,
        accepted: counters.accepted.load(Ordering::Relaxed),
        deliveries,
        waiting,
        failed_attempts: receiver.take_failed(),
        refused: counters.refused.load(Ordering::Relaxed),
        accept_ms: Quantiles::of(&accepted),
        arrival_ms: Quantiles::of(&arrival).filter(|_| !is_drain),
        cpu_micros: each(used.cpu_seconds * 1e6),
        resident_bytes: seconds.iter().map(|second| second.resident_bytes).fold(used.resident_bytes, u64::max),
        commits: each(used.commits),
        written_bytes: each(used.written_bytes as f64),
        seconds,
    })
}

/// Brings about what the measurement begins with: a backlog, or a short load.
async fn prepare(
    group: &GatewayGroup,
    receiver: &BenchReceiver,
    scenario: &Scenario,
    ids: &[String],
) -> anyhow::Result<()> {
    receiver.fail(0);
    if scenario.backlog > 0 {
        set_paused(group, ids, true).await?;
        load::fill(group, scenario).await.context("the backlog could not be filled")?;
    } else {
        if scenario.lanes > 0 {
            fill_lanes(group, receiver, scenario).await.context("the lanes could not be filled")?;
        }
        let warm_up = Scenario { duration: WARM_UP, per_second: None, ..scenario.clone() };
        let counters = Arc::new(LoadCounters::default());
        let before = receiver.arrived();
        load::saturating(group, receiver, &warm_up, &counters).await?;
        await_arrival(receiver, scenario, before, &counters).await?;
    }
    receiver.fail(scenario.failing_percent);
    receiver.take_failed();
    receiver.take_latency();
    receiver.take_recent();
    Ok(())
}

/// Hands in an event of each lane, and waits until all have arrived.
async fn fill_lanes(group: &GatewayGroup, receiver: &BenchReceiver, scenario: &Scenario) -> anyhow::Result<()> {
    let one_each = Scenario { are_lanes_in_turn: true, backlog: scenario.lanes, ..scenario.clone() };
    let before = receiver.arrived();
    load::fill(group, &one_each).await?;
    receiver.wait_for(before + (scenario.lanes * scenario.deliveries_per_event()) as u64).await
}

async fn set_paused(group: &GatewayGroup, ids: &[String], is_paused: bool) -> anyhow::Result<()> {
    let verb = if is_paused { "pause" } else { "resume" };
    for id in ids {
        let path = format!("/v1/tenants/{}/endpoints/{id}/{verb}", group.tenant());
        group.call(Method::POST, &path, "").await?;
    }
    Ok(())
}

/// Makes the load and waits until all of it has arrived. Returns the times of
/// acceptance, in microseconds, and how many deliveries waited when the load ended.
async fn load_and_drain(
    group: &GatewayGroup,
    receiver: &BenchReceiver,
    scenario: &Scenario,
    ids: &[String],
    counters: &Arc<LoadCounters>,
) -> anyhow::Result<(Histogram<u64>, u64)> {
    let before = receiver.arrived();
    let accepted = if scenario.backlog > 0 {
        counters.accepted.store(scenario.backlog as u64, Ordering::Relaxed);
        set_paused(group, ids, false).await?;
        Histogram::new(3)?
    } else if scenario.per_second.is_some() {
        load::paced(group, group.tenant(), receiver, scenario, counters).await?
    } else {
        load::saturating(group, receiver, scenario, counters).await?
    };
    let is_drain = scenario.backlog > 0;
    let waiting = scenario.waiting(counters.accepted.load(Ordering::Relaxed), receiver.arrived() - before);
    let waiting = if is_drain { 0 } else { waiting };
    await_arrival(receiver, scenario, before, counters).await?;
    Ok((accepted, waiting))
}

async fn await_arrival(
    receiver: &BenchReceiver,
    scenario: &Scenario,
    before: u64,
    counters: &LoadCounters,
) -> anyhow::Result<()> {
    let events = counters.accepted.load(Ordering::Relaxed);
    receiver.wait_for(before + events * scenario.deliveries_per_event() as u64).await
}
