//! The columns of figures that both stores read alike.

use super::plan::figures::EncodedFigures;
use super::row::row;

row! {
    /// The figures of one scope in one window.
    pub both struct FigureColumns {
        /// Beginning of the window, in milliseconds.
        at: i64 = "at",
        /// Number of the tenant.
        tenant: i64 = "tenant",
        /// Number of the endpoint.
        endpoint: i64 = "endpoint",
        /// The encoded counts.
        counts: Vec<u8> = "counts",
        /// The encoded counts by type, if there are any.
        types: Option<Vec<u8>> = "types",
    }
}

impl FigureColumns {
    /// Returns the beginning of the window and its figures.
    pub fn encoded(self) -> (i64, EncodedFigures) {
        let Self { at, tenant, endpoint, counts, types } = self;
        (at, EncodedFigures { tenant, endpoint, counts, types })
    }
}
