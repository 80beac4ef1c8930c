//! Extractor and answers for axum.

use axum_core::body::Body;
use axum_core::extract::{FromRef, FromRequest, Request};
use axum_core::response::{IntoResponse, Response};

use crate::answer::Answer;
use crate::event::Event;
use crate::reader::RequestReader;

/// Verifies the request with the [`RequestReader`] of the state. It takes the
/// body, so it is the last argument of a handler. What is refused never comes
/// to the handler, and neither does what comes while
/// [`RequestReader::in_flight_max`] requests are being read.
impl<S> FromRequest<S> for Event
where
    RequestReader: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Answer;

    async fn from_request(request: Request, state: &S) -> Result<Self, Answer> {
        let reader = RequestReader::from_ref(state);
        reader.read_request(request).await.map(|(_, event)| event)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        Self::into_response::<Body>(self)
    }
}
