//! Maps and sets whose keys are ids, on the way of every delivery.
//!
//! The standard library's hash takes a hundred instructions and more for each of the forty
//! look-ups of a delivery. This one takes a tenth of that. It differs from process to process,
//! and no caller of the API chooses many ids that are kept here.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map whose keys are ids.
pub type IdMap<K, V> = HashMap<K, V, RandomState>;

/// A set of ids.
pub type IdSet<K> = HashSet<K, RandomState>;
