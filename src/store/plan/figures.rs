//! Plans what both stores write of figures.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::failing_endpoints::FailingEndpoints;
use crate::model::figure_codec::{DecodeError, put_varint, take_varint};
use crate::model::figure_time::{FigureSpan, HOUR_MS, WINDOW_MS};
use crate::model::figures::WindowFigures;
use crate::model::id::EndpointId;
use crate::model::type_figures::TypeFigures;
use crate::store::figures::{FigureRow, FigureScope, StoredFigures};
use crate::store::{Error, Result};

/// Milliseconds after which a writer that has written nothing has ended. A
/// writer drops what it cannot write for three windows, and goes on.
pub const SILENT_MS: i64 = 5 * WINDOW_MS;
/// Writer of hours, into which the rows of all writers are rolled up.
pub const ROLLED_UP: i64 = 0;
/// Most rows that one step of maintenance deletes.
pub const DELETE_STEP: i64 = 5_000;

/// The figures of one scope, as the tables hold them. The number of the tenant
/// and that of the endpoint are 0 for a sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedFigures {
    /// Number of the tenant.
    pub tenant: i64,
    /// Number of the endpoint.
    pub endpoint: i64,
    /// The encoded [`WindowFigures`].
    pub counts: Vec<u8>,
    /// Encoded [`TypeFigures`] and [`FailingEndpoints`], if there are any.
    pub types: Option<Vec<u8>>,
}

/// Returns the numbers of a scope, if it exists.
pub fn numbers(
    scope: &FigureScope,
    tenant_no: impl Fn(&crate::model::id::TenantId) -> Option<i64>,
    endpoint_no: impl Fn(crate::model::id::EndpointId) -> Option<i64>,
) -> Option<(i64, i64)> {
    match scope {
        FigureScope::Gateway => Some((0, 0)),
        FigureScope::Tenant(tenant) => Some((tenant_no(tenant)?, 0)),
        FigureScope::Endpoint(tenant, endpoint) => Some((tenant_no(tenant)?, endpoint_no(*endpoint)?)),
    }
}

/// Encodes a row of the scope with these numbers.
pub fn encode(row: &FigureRow, (tenant, endpoint): (i64, i64)) -> EncodedFigures {
    EncodedFigures { tenant, endpoint, counts: row.figures.encode(), types: encode_lists(&row.types, &row.failing) }
}

/// First byte of two lists, each behind its length. Where no attempt failed,
/// the types are stored alone, and begin with a byte of their own.
const TWO_LISTS: u8 = 2;

fn encode_lists(types: &TypeFigures, failing: &FailingEndpoints) -> Option<Vec<u8>> {
    if failing.is_empty() {
        return (!types.is_empty()).then(|| types.encode());
    }
    let types = types.encode();
    let mut bytes = vec![TWO_LISTS];
    put_varint(&mut bytes, types.len() as u64);
    bytes.extend_from_slice(&types);
    bytes.extend_from_slice(&failing.encode());
    Some(bytes)
}

fn decode_lists(bytes: &[u8]) -> std::result::Result<(TypeFigures, FailingEndpoints), DecodeError> {
    let Some((&TWO_LISTS, mut rest)) = bytes.split_first() else {
        return Ok((TypeFigures::decode(bytes)?, FailingEndpoints::default()));
    };
    let length = usize::try_from(take_varint(&mut rest)?).map_err(|_| DecodeError::Damaged)?;
    let (types, failing) = rest.split_at_checked(length).ok_or(DecodeError::Damaged)?;
    Ok((TypeFigures::decode(types)?, FailingEndpoints::decode(failing)?))
}

/// Names of event types and endpoints in the figures of the whole gateway.
#[derive(Debug, Clone)]
pub struct NamesInSum {
    stored: Vec<u8>,
    types: TypeFigures,
    failing: FailingEndpoints,
}

impl NamesInSum {
    /// Reads the names of a row. What cannot be read has none: it is written anew without.
    pub fn read(stored: Vec<u8>) -> Self {
        let (types, failing) = decode_lists(&stored).unwrap_or_default();
        Self { stored, types, failing }
    }

    /// Takes out the event types of a tenant, as its own row of the same time has them.
    pub fn forget_types(&mut self, theirs: &[u8]) {
        match decode_lists(theirs) {
            Ok((types, _)) => self.types.forget(&types),
            Err(_) => self.types.forget_names(),
        }
    }

    /// Takes out the endpoints that are not there any more.
    pub fn keep_endpoints(&mut self, is_there: impl Fn(EndpointId) -> bool) {
        self.failing.keep(is_there);
    }

    /// Returns the endpoints that are named.
    pub fn endpoints(&self) -> Vec<EndpointId> {
        self.failing.endpoints().collect()
    }

    /// Returns what to store instead, if anything has changed.
    pub fn changed(self) -> Option<Option<Vec<u8>>> {
        let left = encode_lists(&self.types, &self.failing);
        (left.as_ref() != Some(&self.stored)).then_some(left)
    }
}

/// Position of a purge in the figures of the whole gateway: windows come before hours, and
/// the earlier before the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumPosition {
    /// Whether it is among windows or hours.
    pub span: FigureSpan,
    /// Beginning of the last that was looked at, in milliseconds.
    pub after: i64,
}

impl SumPosition {
    /// Bits of the beginning; the bit above says that it is an hour.
    const AT_BITS: u32 = 48;

    /// Reads a position that is stored as a number; 0 is the beginning.
    pub fn read(stored: i64) -> Self {
        let span = if stored >> Self::AT_BITS == 0 { FigureSpan::Window } else { FigureSpan::Hour };
        Self { span, after: stored & ((1 << Self::AT_BITS) - 1) }
    }

    /// Returns the number that it is stored as.
    pub fn stored(self) -> i64 {
        let at = self.after.clamp(0, (1 << Self::AT_BITS) - 1);
        match self.span {
            FigureSpan::Window => at,
            FigureSpan::Hour => at | (1 << Self::AT_BITS),
        }
    }

    /// Returns where hours begin, if these were windows.
    pub fn next_span(self) -> Option<Self> {
        match self.span {
            FigureSpan::Window => Some(Self { span: FigureSpan::Hour, after: 0 }),
            FigureSpan::Hour => None,
        }
    }
}

/// Decodes what was read.
pub fn decode(span: FigureSpan, at: Timestamp, counts: &[u8], types: Option<&[u8]>) -> Result<StoredFigures> {
    let unreadable = |problem: DecodeError| Error::Unavailable(problem.to_string().into());
    let figures = WindowFigures::decode(counts).map_err(unreadable)?;
    let (types, failing) = types.map(decode_lists).transpose().map_err(unreadable)?.unwrap_or_default();
    Ok(StoredFigures { span, at, figures, types, failing })
}

/// Rolls up the windows of an hour, which are in the order of their beginnings,
/// into one row for each scope.
pub fn roll_up(rows: impl IntoIterator<Item = (i64, EncodedFigures)>) -> Result<Vec<EncodedFigures>> {
    let mut scopes: BTreeMap<(i64, i64), Vec<StoredFigures>> = BTreeMap::new();
    for (at, row) in rows {
        let at = Timestamp::from_millisecond(at).unwrap_or(Timestamp::MIN);
        let read = decode(FigureSpan::Window, at, &row.counts, row.types.as_deref())?;
        scopes.entry((row.tenant, row.endpoint)).or_default().push(read);
    }
    let rolled_up = scopes.into_iter().map(|((tenant, endpoint), rows)| {
        let (figures, types) = sum(&rows);
        let types = encode_lists(&types, &failing_endpoints(&rows));
        EncodedFigures { tenant, endpoint, counts: figures.encode(), types }
    });
    Ok(rolled_up.collect())
}

/// Returns the sum of figures in the order of their beginnings: those of one
/// beginning are of different writers.
pub fn sum(rows: &[StoredFigures]) -> (WindowFigures, TypeFigures) {
    let (mut figures, mut types) = (WindowFigures::default(), TypeFigures::default());
    for beside in rows.chunk_by(|a, b| a.at == b.at) {
        let at_once = beside.iter().fold(WindowFigures::default(), |sum, row| sum.merged_with(&row.figures));
        figures = figures.followed_by(&at_once);
        beside.iter().for_each(|row| types.add(&row.types));
    }
    (figures, types)
}

/// Returns at which endpoints the most attempts failed.
pub fn failing_endpoints(rows: &[StoredFigures]) -> FailingEndpoints {
    let mut failing = FailingEndpoints::default();
    rows.iter().for_each(|row| failing.add(&row.failing));
    failing
}

/// Returns the hour to roll up next, if it is over: the one after those that are
/// rolled up, or that of the first window.
pub fn next_hour(rolled_up_until: Option<i64>, first_window: Option<i64>, roll_up_until: Timestamp) -> Option<i64> {
    let first = first_window?;
    let hour = first - first.rem_euclid(HOUR_MS);
    let next = rolled_up_until.map_or(hour, |until| until.max(hour));
    (next + HOUR_MS <= roll_up_until.as_millisecond()).then_some(next)
}
