//! A tower layer that lets only verified requests through.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower_layer::Layer;
use tower_service::Service;

use crate::inbox::{BoxError, BoxFuture};
use crate::reader::RequestReader;

/// Verifies requests in front of a service. What passes has its
/// [`Event`](crate::Event) in the request's extensions, and its body as it was
/// sent; everything else is answered here, with 429 where the service works on
/// [`RequestReader::in_flight_max`] requests already.
#[derive(Debug, Clone)]
pub struct VerifyLayer {
    reader: RequestReader,
}

impl VerifyLayer {
    /// Creates a layer with this reader.
    pub fn new(reader: RequestReader) -> Self {
        Self { reader }
    }
}

/// A service behind a [`VerifyLayer`].
#[derive(Debug, Clone)]
pub struct VerifyService<S> {
    reader: RequestReader,
    inner: S,
}

impl<S> Layer<S> for VerifyLayer {
    type Service = VerifyService<S>;

    fn layer(&self, inner: S) -> VerifyService<S> {
        VerifyService { reader: self.reader.clone(), inner }
    }
}

impl<S, B, R> Service<Request<B>> for VerifyService<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: From<Bytes>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone that was ready is used, and the other one stays.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let reader = self.reader.clone();
        Box::pin(async move {
            let _in_flight = match reader.enter() {
                Ok(place) => place,
                Err(answer) => return Ok(answer.into_response()),
            };
            let (mut head, event) = match reader.read_entered(request).await {
                Ok(read) => read,
                Err(answer) => return Ok(answer.into_response()),
            };
            let body = Full::new(event.body.clone());
            head.extensions.insert(event);
            inner.call(Request::from_parts(head, body)).await
        })
    }
}
