//! Figures that are cheap to move: atomics for what happens, text only when
//! somebody asks.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Metric, Registry, Unit};

/// The name and the value of one label.
pub type Label = (&'static str, &'static str);

/// A histogram without a lock: one bucket and the sum are moved per value.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<HistogramBuckets>);

#[derive(Debug)]
struct HistogramBuckets {
    bounds: &'static [f64],
    /// One more than bounds: the last takes what is above all of them.
    counts: Box<[AtomicU64]>,
    /// In millionths, since there is no atomic fraction to add to.
    sum_micros: AtomicU64,
}

impl Histogram {
    /// A histogram with these upper bounds, in rising order.
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(HistogramBuckets { bounds, counts, sum_micros: AtomicU64::new(0) }))
    }

    /// Takes a value in. What is below zero, as after a clock was set back,
    /// counts as zero.
    pub fn observe(&self, value: f64) {
        let value = value.max(0.0);
        let place = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.counts[place].fetch_add(1, Ordering::Relaxed);
        self.0.sum_micros.fetch_add((value * 1e6).round() as u64, Ordering::Relaxed);
    }

    /// Takes a span in, in seconds.
    pub fn observe_duration(&self, span: Duration) {
        self.observe(span.as_secs_f64());
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        let bounds = self.0.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Counted from what is shown, so that the last bucket and the count
        // agree even while values come in.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// One figure for each set of labels that can occur, made beforehand: zeros
/// are shown, the order is always the same, and counting looks nothing up.
#[derive(Debug, Clone)]
pub struct LabelledFamily<M>(Arc<[(Vec<Label>, M)]>);

/// A counter for each set of labels.
pub type CounterFamily = LabelledFamily<Counter>;

impl<M> LabelledFamily<M> {
    /// A figure for each of these sets of labels, in this order.
    pub fn new(sets: impl IntoIterator<Item = Vec<Label>>, figure: impl Fn() -> M) -> Self {
        Self(sets.into_iter().map(|labels| (labels, figure())).collect())
    }

    /// The figure of the set at this place.
    pub fn at(&self, place: usize) -> &M {
        &self.0[place].1
    }
}

impl<M: EncodeMetric> EncodeMetric for LabelledFamily<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        for (labels, figure) in self.0.iter() {
            figure.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.at(0).metric_type()
    }
}

/// What stands at this much right now, for each set of labels.
#[derive(Debug)]
pub struct GaugeFamily(pub Vec<(Vec<Label>, f64)>);

impl GaugeFamily {
    /// One level without labels; nothing if it is not known.
    pub fn of(value: Option<f64>) -> Self {
        Self(value.map(|value| (Vec::new(), value)).into_iter().collect())
    }
}

impl EncodeMetric for GaugeFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        for (labels, value) in &self.0 {
            match labels.is_empty() {
                true => write_level(&mut encoder, *value)?,
                false => write_level(&mut encoder.encode_family(labels)?, *value)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    /// What is not known is not shown at all.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whole numbers read better as such.
fn write_level(encoder: &mut MetricEncoder<'_>, value: f64) -> Result<(), Error> {
    match value.fract() == 0.0 {
        true => encoder.encode_gauge(&(value as i64)),
        false => encoder.encode_gauge(&value),
    }
}

/// Where every figure is entered once, with its name and its sentence.
#[derive(Debug)]
pub struct MetricsRegistry(Registry);

impl MetricsRegistry {
    /// Enters something that is shown as it is.
    pub fn enter(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.register(name, help, metric);
    }

    /// Enters something that is measured in seconds or bytes.
    pub fn enter_in(&mut self, unit: Unit, name: &str, help: &str, metric: impl Metric) {
        self.0.register_with_unit(name, help, unit, metric);
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.enter(name, help, counter.clone());
        counter
    }

    /// A counter of bytes.
    pub fn bytes(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.enter_in(Unit::Bytes, name, help, counter.clone());
        counter
    }

    /// Counters by labels.
    pub fn counters(&mut self, name: &str, help: &str, sets: impl IntoIterator<Item = Vec<Label>>) -> CounterFamily {
        let counters = CounterFamily::new(sets, Counter::default);
        self.enter(name, help, counters.clone());
        counters
    }

    /// A histogram of seconds.
    pub fn seconds(&mut self, name: &str, help: &str, bounds: &'static [f64]) -> Histogram {
        let histogram = Histogram::new(bounds);
        self.enter_in(Unit::Seconds, name, help, histogram.clone());
        histogram
    }

    /// Histograms of plain numbers, by labels.
    pub fn numbers_by_set(
        &mut self,
        name: &str,
        help: &str,
        sets: impl IntoIterator<Item = Vec<Label>>,
        bounds: &'static [f64],
    ) -> LabelledFamily<Histogram> {
        let histograms = LabelledFamily::new(sets, || Histogram::new(bounds));
        self.enter(name, help, histograms.clone());
        histograms
    }

    /// A histogram of plain numbers.
    pub fn numbers(&mut self, name: &str, help: &str, bounds: &'static [f64]) -> Histogram {
        let histogram = Histogram::new(bounds);
        self.enter(name, help, histogram.clone());
        histogram
    }

    /// Writes down everything entered.
    pub fn write(&self, text: &mut String) {
        prometheus_client::encoding::text::encode_registry(text, &self.0).expect("text takes whatever is written");
    }
}

/// An empty book; all names in it begin with `posthaste_`.
impl Default for MetricsRegistry {
    fn default() -> Self {
        Self(Registry::with_prefix("posthaste"))
    }
}
