//! Counters, histograms and gauges that are cheap to update, and their registry.
//!
//! Updates are atomic operations; text is made only when `/metrics` is read.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelValue, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Metric, Registry, Unit};

/// The name and the value of one label. Values are words of the code, but for
/// the number of something that the settings name.
pub type Label<V = &'static str> = (&'static str, V);

/// A histogram without a lock: each value updates one bucket and the sum.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<HistogramBuckets>);

#[derive(Debug)]
struct HistogramBuckets {
    bounds: &'static [f64],
    /// Values per bucket; the last bucket counts those above all bounds.
    counts: Box<[AtomicU64]>,
    /// Sum of all values in millionths, because there are no atomic floats.
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Returns an empty histogram with these upper bounds, in rising order.
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(HistogramBuckets { bounds, counts, sum_micros: AtomicU64::new(0) }))
    }

    /// Counts a value. One below zero, as after a clock was set back, counts as zero.
    pub fn observe(&self, value: f64) {
        let value = value.max(0.0);
        let bucket = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum_micros.fetch_add((value * 1e6).round() as u64, Ordering::Relaxed);
    }

    /// Counts a duration, in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        let bounds = self.0.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Counted from the buckets as read, so that their sum and the count
        // agree even while values come in.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// One metric for each set of labels that can occur, created at start: zeros
/// are shown, the order never changes, and counting needs no lookup by label.
#[derive(Debug, Clone)]
pub struct LabelledFamily<M, V = &'static str>(Arc<[(Vec<Label<V>>, M)]>);

/// A counter for each set of labels.
pub type CounterFamily<V = &'static str> = LabelledFamily<Counter, V>;

impl<M, V> LabelledFamily<M, V> {
    /// Creates a metric for each of these sets of labels, in this order.
    pub fn new(sets: impl IntoIterator<Item = Vec<Label<V>>>, new_metric: impl Fn() -> M) -> Self {
        Self(sets.into_iter().map(|labels| (labels, new_metric())).collect())
    }

    /// Returns these metrics, each with its set of labels.
    pub fn of(metrics: impl IntoIterator<Item = (Vec<Label<V>>, M)>) -> Self {
        Self(metrics.into_iter().collect())
    }

    /// Returns the metric of the set of labels at this index.
    pub fn at(&self, index: usize) -> &M {
        &self.0[index].1
    }
}

impl<M: EncodeMetric, V: EncodeLabelValue> EncodeMetric for LabelledFamily<M, V> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        for (labels, metric) in self.0.iter() {
            metric.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.at(0).metric_type()
    }
}

/// The present values of a gauge, one for each set of labels.
#[derive(Debug)]
pub struct GaugeFamily<V = &'static str>(pub Vec<(Vec<Label<V>>, f64)>);

impl GaugeFamily {
    /// Returns a gauge without labels; it is empty if the value is not known.
    pub fn of(value: Option<f64>) -> Self {
        Self(value.map(|value| (Vec::new(), value)).into_iter().collect())
    }
}

impl<V: EncodeLabelValue> EncodeMetric for GaugeFamily<V> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        for (labels, value) in &self.0 {
            if labels.is_empty() {
                encode_value(&mut encoder, *value)?;
            } else {
                encode_value(&mut encoder.encode_family(labels)?, *value)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    /// Whether no value is known; then the gauge is left out of the text.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Encodes the value of a gauge, whole numbers without a decimal point.
fn encode_value(encoder: &mut MetricEncoder<'_>, value: f64) -> Result<(), Error> {
    if value.fract() == 0.0 { encoder.encode_gauge(&(value as i64)) } else { encoder.encode_gauge(&value) }
}

/// The registry of all metrics, each with its name and its help text.
#[derive(Debug)]
pub struct MetricsRegistry(Registry);

impl MetricsRegistry {
    /// Registers a metric without a unit.
    pub fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.register(name, help, metric);
    }

    /// Registers a metric that is measured in this unit.
    pub fn register_with_unit(&mut self, unit: Unit, name: &str, help: &str, metric: impl Metric) {
        self.0.register_with_unit(name, help, unit, metric);
    }

    /// Registers a counter without labels.
    pub fn register_counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.register(name, help, counter.clone());
        counter
    }

    /// Registers a counter of bytes.
    pub fn register_byte_counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.register_with_unit(Unit::Bytes, name, help, counter.clone());
        counter
    }

    /// Registers one counter for each of these sets of labels.
    pub fn register_counters(
        &mut self,
        name: &str,
        help: &str,
        sets: impl IntoIterator<Item = Vec<Label>>,
    ) -> CounterFamily {
        let counters = CounterFamily::new(sets, Counter::default);
        self.register(name, help, counters.clone());
        counters
    }

    /// Registers a histogram of seconds.
    pub fn register_seconds(&mut self, name: &str, help: &str, bounds: &'static [f64]) -> Histogram {
        let histogram = Histogram::new(bounds);
        self.register_with_unit(Unit::Seconds, name, help, histogram.clone());
        histogram
    }

    /// Registers one histogram of plain numbers for each of these sets of labels.
    pub fn numbers_by_set(
        &mut self,
        name: &str,
        help: &str,
        sets: impl IntoIterator<Item = Vec<Label>>,
        bounds: &'static [f64],
    ) -> LabelledFamily<Histogram> {
        let histograms = LabelledFamily::new(sets, || Histogram::new(bounds));
        self.register(name, help, histograms.clone());
        histograms
    }

    /// Registers a histogram of plain numbers.
    pub fn register_numbers(&mut self, name: &str, help: &str, bounds: &'static [f64]) -> Histogram {
        let histogram = Histogram::new(bounds);
        self.register(name, help, histogram.clone());
        histogram
    }

    /// Appends all registered metrics to the text.
    pub fn write(&self, text: &mut String) {
        prometheus_client::encoding::text::encode_registry(text, &self.0).expect("writing to a string never fails");
    }
}

/// The default registry is empty; all names in it begin with `posthaste_`.
impl Default for MetricsRegistry {
    fn default() -> Self {
        Self(Registry::with_prefix("posthaste"))
    }
}
