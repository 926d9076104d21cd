//! What a handler answers with, read as far as it can be recorded.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use ::http::{HeaderMap, Response};
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use lambda_http::{Body, IntoResponse, request::RequestContext};

use super::{BoxError, HttpLayer, front_end};

/// The body of an answer that may be streamed: a recorded one, whole, or the handler's own as it comes. See
/// [`HttpLayer::streaming`].
#[derive(Debug)]
pub struct ResponseBody {
    /// What has been read of it already.
    begun: VecDeque<Bytes>,
    rest: Option<UnsyncBoxBody<Bytes, BoxError>>,
}

impl ResponseBody {
    pub(super) fn streamed<B>(body: B) -> Self
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let body = body.map_err(Into::into).map_frame(|frame| frame.map_data(into_bytes));
        Self { begun: VecDeque::new(), rest: Some(UnsyncBoxBody::new(body)) }
    }

    /// Reads up to `most` bytes; what was read remains to be answered with.
    async fn read(&mut self, most: usize) -> Extent {
        let mut length = 0;
        while let Some(rest) = &mut self.rest {
            match rest.frame().await {
                None => self.rest = None,
                Some(Ok(frame)) => {
                    // Lambda sends no trailers.
                    let Ok(data) = frame.into_data() else { continue };
                    length += data.len();
                    self.begun.push_back(data);
                    if length > most {
                        return Extent::TooLarge;
                    }
                }
                Some(Err(error)) => {
                    self.rest = Some(UnsyncBoxBody::new(Broken(Some(error))));
                    return Extent::Broken;
                }
            }
        }
        Extent::Whole
    }

    /// Byte for byte: `lambda_http`'s own conversion would decode it by its headers, and change what does not fit them.
    fn into_read(self) -> Body {
        match String::from_utf8(self.begun.into_iter().collect::<Vec<_>>().concat()) {
            Ok(text) => Body::Text(text),
            Err(bytes) => Body::Binary(bytes.into_bytes()),
        }
    }
}

impl From<Body> for ResponseBody {
    fn from(body: Body) -> Self {
        let bytes = match body {
            Body::Text(text) => Bytes::from(text),
            Body::Binary(bytes) => Bytes::from(bytes),
            _ => Bytes::new(),
        };
        Self { begun: (!bytes.is_empty()).then_some(bytes).into_iter().collect(), rest: None }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(data) = self.begun.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let begun = self.begun.iter().map(Bytes::len).sum::<usize>() as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(begun.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(begun.saturating_add(upper));
        }
        hint
    }
}

/// A body that broke off: what has been read of it, and then the error.
struct Broken(Option<BoxError>);

impl HttpBody for Broken {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.take().map(Err))
    }
}

fn into_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

/// How much of a body was there to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// More than what is recorded.
    TooLarge,
    /// It broke off.
    Broken,
}

/// A handler's answer.
pub(super) enum Answer {
    /// It can be recorded.
    Whole(Response<Body>),
    /// It cannot, and is passed through as it comes.
    Streamed(Response<ResponseBody>, Streamed),
}

/// Why an answer is passed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streamed {
    /// It is not the operation's outcome.
    Unrecorded,
    /// There is more of it than is recorded.
    TooLarge,
    /// Its body broke off.
    Broken,
}

impl Answer {
    pub(super) fn headers_mut(&mut self) -> &mut HeaderMap {
        match self {
            Self::Whole(response) => response.headers_mut(),
            Self::Streamed(response, _) => response.headers_mut(),
        }
    }

    pub(super) fn into_streaming(self) -> Response<ResponseBody> {
        match self {
            Self::Whole(response) => response.map(Into::into),
            Self::Streamed(response, _) => response,
        }
    }
}

/// How a layer reads what its handlers answer.
pub(super) trait Read<R>: 'static {
    /// An answer that may have to be recorded.
    fn read(layer: &HttpLayer, response: R) -> impl Future<Output = Answer> + Send;

    /// The most bytes of an answer that the front end delivers.
    fn most_bytes(context: Option<&RequestContext>) -> Option<usize>;

    /// An answer that nobody records.
    fn pass(response: R) -> impl Future<Output = Answer> + Send;
}

/// Every answer, whole: what a buffered function sends.
pub(super) struct Buffered;

impl<R: IntoResponse + Send> Read<R> for Buffered {
    async fn read(_: &HttpLayer, response: R) -> Answer {
        Self::pass(response).await
    }

    fn most_bytes(context: Option<&RequestContext>) -> Option<usize> {
        front_end::most_bytes(context)
    }

    async fn pass(response: R) -> Answer {
        Answer::Whole(response.into_response().await)
    }
}

/// What may be recorded, up to the limit; the rest as it comes.
pub(super) struct Streaming;

impl<B> Read<Response<B>> for Streaming
where
    B: HttpBody + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn read(layer: &HttpLayer, response: Response<B>) -> Answer {
        let mut response = response.map(ResponseBody::streamed);
        if layer.is_recorded_by_head(&response) == Some(false) {
            return Answer::Streamed(response, Streamed::Unrecorded);
        }
        let most = layer.idempotency.settings().max_response;
        match response.body_mut().read(most).await {
            Extent::Whole => Answer::Whole(response.map(ResponseBody::into_read)),
            Extent::TooLarge => Answer::Streamed(response, Streamed::TooLarge),
            Extent::Broken => Answer::Streamed(response, Streamed::Broken),
        }
    }

    /// Lambda takes 200 MB of a stream ("Lambda quotas", AWS Lambda developer guide), more than any store keeps.
    fn most_bytes(_: Option<&RequestContext>) -> Option<usize> {
        None
    }

    async fn pass(response: Response<B>) -> Answer {
        Answer::Streamed(response.map(ResponseBody::streamed), Streamed::Unrecorded)
    }
}
