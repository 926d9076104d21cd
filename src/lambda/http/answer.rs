//! A handler's response. Its body is read whole, or, if the function streams, at most up to the limit for recording.

use std::{
    any::Any,
    collections::VecDeque,
    future::Future,
    panic::resume_unwind,
    pin::Pin,
    task::{Context, Poll},
};

use ::http::{HeaderMap, Response, StatusCode};
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use lambda_http::{Body, IntoResponse, request::RequestContext};

use super::{
    BoxError, HttpLayer, front_end,
    problem::{ProblemKind, Texts},
    response,
};
use crate::{lambda::event::own_type, observe, run::watch::caught, settings::Recording};

/// Why a front end can't deliver a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undeliverable {
    TooLarge,
    /// A header's value isn't UTF-8.
    Header,
}

impl Undeliverable {
    /// The text for the caller if the operation is done, but its response can't be delivered.
    pub(super) const fn texts(self) -> Texts {
        match self {
            Self::TooLarge => TOO_LARGE_HERE,
            Self::Header => UNSENDABLE_HERE,
        }
    }
}

const TOO_LARGE_HERE: Texts = (
    "The operation is done, but its response is too large here",
    "The operation has ended, whatever its status was, and isn't repeated. This address can't deliver its response, \
     because the response is too large. Fetch the result another way.",
);
const UNSENDABLE_HERE: Texts = (
    "The operation is done, but its response can't be sent here",
    "The operation has ended, whatever its status was, and isn't repeated. This address can't deliver its response, \
     because a header isn't valid text. Fetch the result another way.",
);

/// The body of a response from a function that [streams](HttpLayer::streaming). A body that was recorded is whole, and
/// so is the body of a replay or a problem. Any other body is the handler's own, as it arrives.
#[derive(Debug)]
pub struct ResponseBody {
    /// The data that has been read already.
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

    /// Reads until the body ends or exceeds `most` bytes, and keeps the data for the response.
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

    /// Returns the body byte for byte. `lambda_http`'s conversion would decode the body as its headers say, and change
    /// bytes that don't match the headers.
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

/// The rest of a body that broke off: only the error. The data before the error is in [`ResponseBody::begun`].
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

/// Marks a response whose body already has Lambda's form: an [`HttpLayer`] converted it, or replays it. A second
/// conversion by `lambda_http` would decode the body as its headers say, and change bytes that don't match the headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact;

/// How much of a body could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// The body exceeds the limit for recording.
    TooLarge,
    /// The body broke off.
    Broken,
}

/// A handler's response.
pub(super) enum Answer {
    /// The response has been read whole, so it can be recorded.
    Whole(Response<Body>),
    /// The response's body isn't recorded, and is passed through as it arrives.
    Streamed(Response<ResponseBody>, Streamed),
}

/// Why a response is passed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streamed {
    /// The response isn't the operation's outcome, the request isn't protected, or idempotency isn't enforced.
    Unrecorded,
    /// The body exceeds the limit for recording.
    TooLarge,
    /// The body broke off.
    Broken,
}

impl Answer {
    /// Why the front end can't deliver this answer, if it can't.
    pub(super) fn refused_by(&self, delivery: Delivery) -> Option<Undeliverable> {
        match self {
            Self::Whole(response) => delivery.refuses(response),
            Self::Streamed(response, _) => delivery.refuses_headers(response.headers()),
        }
    }

    pub(super) fn headers_mut(&mut self) -> &mut HeaderMap {
        match self {
            Self::Whole(response) => response.headers_mut(),
            Self::Streamed(response, _) => response.headers_mut(),
        }
    }

    /// Whether the answer has a 5xx status, and the handler hasn't said whether it's the outcome.
    pub(super) fn is_undecided_failure(&self) -> bool {
        let (status, extensions) = match self {
            Self::Whole(response) => (response.status(), response.extensions()),
            Self::Streamed(response, _) => (response.status(), response.extensions()),
        };
        status.is_server_error() && extensions.get::<Recording>().is_none()
    }

    pub(super) fn into_streaming(self) -> Response<ResponseBody> {
        match self {
            Self::Whole(response) => response.map(Into::into),
            Self::Streamed(response, _) => response,
        }
    }
}

/// A handler's answer, and what the caller gets in its place, if anything.
pub(super) struct Judged<E> {
    pub(super) result: Result<Answer, E>,
    pub(super) instead: Option<Instead>,
}

/// The problem that a caller gets in place of the handler's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instead {
    /// The front end can't deliver the handler's response.
    NotRetained,
    /// The handler failed as this text says, and its failure is to be recorded.
    OperationFailed(&'static str),
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Returns the answer for the caller. The key has been settled: `is_recorded` says whether the outcome is known to
    /// be recorded. If it isn't, a retry may run the operation again, so the layer mustn't say that the operation is
    /// done. The caller then gets the handler's answer, or `outcome-unknown` if the front end can't deliver it.
    pub(super) fn answered<E>(&self, judged: Judged<E>, is_recorded: bool) -> Result<Answer, E> {
        let Judged { result, instead } = judged;
        match instead.filter(|_| self.is_enforced()) {
            Some(Instead::NotRetained) => Ok(Answer::Whole(match is_recorded {
                true => self.not_retained(ProblemKind::NotRetained),
                false => self.problem(ProblemKind::OutcomeUnknown),
            })),
            Some(Instead::OperationFailed(how)) if is_recorded => {
                observe::failure_recorded(how, own_type::<E>().unwrap_or("Error"));
                Ok(Answer::Whole(self.problem(ProblemKind::OperationFailed)))
            }
            Some(Instead::OperationFailed(_)) | None => result,
        }
    }
}

/// How a layer reads its handlers' responses.
pub(super) trait Read<R> {
    /// Reads a response that may have to be recorded.
    fn read(&self, response: R) -> impl Future<Output = Answer> + Send;

    /// What the front end can deliver. `None` without a front end.
    fn delivery(context: Option<&RequestContext>) -> Option<Delivery>;

    /// Converts a response that isn't recorded.
    fn pass(response: R) -> impl Future<Output = Answer> + Send;
}

/// Reads every response whole, for a function that doesn't stream.
impl<R: IntoResponse + Send + 'static> Read<R> for HttpLayer {
    async fn read(&self, response: R) -> Answer {
        Self::pass(response).await
    }

    fn delivery(context: Option<&RequestContext>) -> Option<Delivery> {
        front_end::most_bytes(context).map(|most_bytes| Delivery { most_bytes: Some(most_bytes) })
    }

    async fn pass(response: R) -> Answer {
        match converted(response).await {
            Some(mut response) => {
                response.extensions_mut().insert(Exact);
                Answer::Whole(response)
            }
            None => Answer::Streamed(broken_off().map(Into::into), Streamed::Broken),
        }
    }
}

/// Reads a response whole, and converts it as `lambda_http` does. `None` if its body breaks off.
pub(super) async fn converted<R: IntoResponse + 'static>(response: R) -> Option<Response<Body>> {
    let mut response = Some(response);
    #[cfg(feature = "axum")]
    if let Some(response) =
        (&mut response as &mut dyn Any).downcast_mut::<Option<Response<axum::body::Body>>>()
    {
        // `lambda_http` would panic if this body broke off.
        let (parts, body) = response.take()?.into_parts();
        let whole = body.collect().await.ok()?.to_bytes();
        return Some(Response::from_parts(parts, http_body_util::Full::new(whole)).into_response().await);
    }
    // The type of any other body is unknown here. If panics abort the process, this can't help.
    match caught(response.take()?.into_response()).await {
        Ok(response) => Some(response),
        Err(panic) if is_of_broken_body(&*panic) => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Whether this is the panic of `lambda_http` 1.3.2 at a body that breaks off.
fn is_of_broken_body(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|text| text.starts_with("unable to read bytes from body"))
}

/// What the caller gets if the body of a response breaks off, and the failure isn't recorded.
pub(super) fn broken_off() -> Response<Body> {
    observe::broken_off();
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// What the front end can deliver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// The limit for the response as JSON; `None` if the function streams.
    pub(super) most_bytes: Option<usize>,
}

impl Delivery {
    /// Why the front end can't deliver this response, if it can't.
    pub(super) fn refuses(self, response: &Response<Body>) -> Option<Undeliverable> {
        if self.most_bytes.is_some_and(|most| response::delivered_bytes(response) > most) {
            return Some(Undeliverable::TooLarge);
        }
        self.refuses_headers(response.headers())
    }

    fn refuses_headers(self, headers: &HeaderMap) -> Option<Undeliverable> {
        (!response::is_text(headers)).then_some(Undeliverable::Header)
    }
}

/// Reads a response up to the limit for recording, and streams the rest, for a function that streams.
impl<B> Read<Response<B>> for HttpLayer<true>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn read(&self, response: Response<B>) -> Answer {
        let mut response = response.map(ResponseBody::streamed);
        if self.is_recorded_by_head(&response) == Some(false) {
            return Answer::Streamed(response, Streamed::Unrecorded);
        }
        let most = self.idempotency.settings().max_response;
        match response.body_mut().read(most).await {
            Extent::Whole => Answer::Whole(response.map(ResponseBody::into_read)),
            Extent::TooLarge => Answer::Streamed(response, Streamed::TooLarge),
            Extent::Broken => Answer::Streamed(response, Streamed::Broken),
        }
    }

    /// No limit is needed: Lambda streams up to 200 MB ("Lambda quotas", AWS Lambda developer guide), more than any
    /// store keeps.
    fn delivery(context: Option<&RequestContext>) -> Option<Delivery> {
        context.map(|_| Delivery { most_bytes: None })
    }

    async fn pass(response: Response<B>) -> Answer {
        Answer::Streamed(response.map(ResponseBody::streamed), Streamed::Unrecorded)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[test]
    fn bodies_report_known_length_and_end() {
        let read = ResponseBody::from(Body::from("abc"));
        let streamed = ResponseBody::streamed(Full::<Bytes>::from("abc"));
        let empty = ResponseBody::from(Body::Empty);
        for (body, length, is_end) in
            [(&read, Some(3), false), (&streamed, None, false), (&empty, Some(0), true)]
        {
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (length, is_end));
        }
    }
}
