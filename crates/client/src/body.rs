//! Reads a problem from a response's body, and returns the response with its whole body.

use std::{
    mem::take,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::response::Builder;
use http_body::{Frame, SizeHint};
use reqwest::{Body, Response, ResponseBuilderExt, header::CONTENT_TYPE};

use super::judge::Problem;

/// The longest body to parse as a problem, in bytes.
const LONGEST: usize = 64 * 1024;

/// The response's problem, and the response unchanged.
///
/// # Errors
///
/// `reqwest`'s error, if the body breaks off while it's read.
pub(super) async fn read_problem(mut response: Response) -> Result<(Problem, Response), reqwest::Error> {
    if !is_problem(&response) || response.content_length().is_some_and(|length| length > LONGEST as u64) {
        return Ok((Problem::default(), response));
    }
    let mut read = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        read.extend_from_slice(&chunk);
        if read.len() > LONGEST {
            return Ok((
                Problem::default(),
                with_body(response, |rest| Body::wrap(Resumed(read.into(), rest))),
            ));
        }
    }
    let problem = Problem::parse(&read);
    Ok((problem, with_body(response, |_| read.into())))
}

fn is_problem(response: &Response) -> bool {
    let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|text| text.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/problem+json")
}

/// Returns the same response, with `change` applied to the unread part of its body.
fn with_body(response: Response, change: impl FnOnce(Body) -> Body) -> Response {
    let url = response.url().clone();
    let (mut parts, rest) = http::Response::from(response).into_parts();
    // `reqwest` stores the URL in an extension. The extension's type is private, so only this builder can create it.
    if let Some(extensions) = Builder::new().url(url).extensions_mut() {
        parts.extensions.extend(take(extensions));
    }
    http::Response::from_parts(parts, change(rest)).into()
}

/// A body that returns first the data that was already read, and then the unread rest.
struct Resumed(Bytes, Body);

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        if !self.0.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(take(&mut self.0)))));
        }
        Pin::new(&mut self.1).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        let (read, rest) = (self.0.len() as u64, self.1.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}
