//! Groups of problems, by which the API's description lists what a route may
//! answer.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{RefOr, Response as DescribedResponse};

use super::ProblemCode;
use crate::model::named_enum::NamedEnum;

macro_rules! problem_groups {
    ($($(#[$doc:meta])* $name:ident = [$($code:ident),*];)*) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<DescribedResponse>> {
                describe(&[$(ProblemCode::$code),*])
            }
        }
    )*};
}

/// Describes problems by their codes. [`openapi::document`](crate::api::openapi::document)
/// puts those of one status together.
fn describe(codes: &[ProblemCode]) -> BTreeMap<String, RefOr<DescribedResponse>> {
    let described =
        codes.iter().map(|code| (code.as_str().to_owned(), DescribedResponse::new(code.explanation()).into()));
    described.collect()
}

problem_groups! {
    /// Problems of every route that needs a token.
    Problems = [MalformedRequest, Unauthenticated, MissingRight, NotFound, UnknownField, InvalidField, RateLimited, Unavailable];
    /// Problems of a route with parameters or a body; those that it cannot have are left out of its description.
    InputProblems = [InvalidJson, InvalidCursor, RequestTimeout, PayloadTooLarge, UnsupportedMediaType, InvalidField];
    /// Problems when the state of a resource does not allow the change.
    StateProblems = [WrongState];
    /// Problems when an event is known, and its data no longer is.
    GoneProblems = [DataExpunged, DataDamaged];
    /// Problems of following a link.
    LinkProblems = [MalformedRequest, LinkInvalid, LinkExpired, DataExpunged, DataDamaged, RateLimited, Unavailable];
    /// Problems when no space is left for new events.
    SpaceProblems = [BacklogFull, QuotaFull, StorageFull];
    /// Problems when an endpoint may not be called from here.
    TargetProblems = [TargetForbidden];
    /// Problems when a count or a ceiling of the tenant is reached.
    LimitProblems = [LimitExceeded];
    /// Problems of accepting events besides those of their fields.
    AcceptProblems = [IdConflict, FanoutLimit];
    /// Problems of fetching public keys.
    PublicKeyProblems = [MalformedRequest, NotFound, Unavailable];
    /// Problems of routes that everybody may use.
    PublicProblems = [MalformedRequest];
    /// Problems of public routes that are no health checks.
    OverloadProblems = [Unavailable];
}
