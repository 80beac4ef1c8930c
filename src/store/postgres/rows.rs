//! Converts rows to the values of the model.

pub use crate::store::codes::*;
