//! HTTP events: the library's layer implements the whole `Idempotency-Key` contract.

mod cors;
mod envelope;

pub(crate) use envelope::Head;
#[cfg(feature = "fuzz")]
pub(crate) use envelope::{LONGEST_HEAD, is_stream};

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use lambda_http::{Body, IntoResponse, request::LambdaRequest};
use lambda_idempotency::{
    ErrorKind, Idempotency,
    lambda::http::{HttpLayer, ProblemKind, guarded_with},
    settings::Recording,
};
use lambda_runtime::LambdaEvent;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::{
    answer::{Answer, accept, in_time},
    callers,
    config::{KeyOf, Rules},
    event::Event,
    recorded,
    turn::{Protection, Turn},
};
use envelope::FrontEnd;

/// Marks the function's own response, on its way through the library's layer.
#[derive(Clone, Copy)]
struct Own;

/// Marks a replay of the function's response.
#[derive(Clone, Copy)]
struct Replayed;

/// Marks the answer of `IDEMPOTENCY_ON_NOT_RETAINED`.
#[derive(Clone, Copy)]
struct NotRetained;

/// A function's response whose body is recorded as it is. `lambda_http` would convert a body to text if the response
/// has no content type, and replace the bytes that aren't UTF-8.
struct Exact(Response<Body>);

impl IntoResponse for Exact {
    fn into_response(self) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> {
        Box::pin(std::future::ready(self.0))
    }
}

/// The facts that the proxy needs about the response of the library's layer.
#[derive(Default)]
struct Seen {
    /// Whether it's the function's own response.
    is_own: AtomicBool,
    /// The response as a stream, if the function streams its responses.
    streamed: Mutex<Option<Bytes>>,
    /// Whether it's the problem `not-retained`, its substitute, or `outcome-unknown`. The library sends one of them in place of a
    /// response that's too large for the front end: `not-retained` if it recorded the operation as done,
    /// `outcome-unknown` if it doesn't know whether the record was written.
    is_withheld: AtomicBool,
}

/// Protects an HTTP request. `None` if its answer was sent already.
pub(crate) async fn request(protection: &Arc<Protection>, event: &Arc<Event>) -> Option<Answer> {
    let Ok(request) = serde_json::from_slice::<LambdaRequest>(&event.body) else {
        return Some(Answer::refused(
            protection,
            ErrorKind::Invalid,
            "the event isn't an HTTP request of a known front end",
        ));
    };
    let front_end = FrontEnd::of(&request);
    let turn = Turn::new(protection, event);
    let layer = for_turn(protection.http.clone(), &turn);
    let seen = Arc::new(Seen::default());
    let (function, learns) = (turn.clone(), Arc::clone(protection));
    let inner = service_fn(move |_: Request<Body>| {
        let (function, learns) = (function.clone(), Arc::clone(&learns));
        async move {
            let (mut response, is_stream) =
                function.run(|posted| envelope::response(posted, front_end)).await?;
            if is_stream {
                learns.streams.store(true, Ordering::Relaxed);
            }
            let recording = learns.rules.records(response.status());
            let recording = recording.map(|is| if is { Recording::Record } else { Recording::Release });
            recording.map(|recording| response.extensions_mut().insert(recording));
            response.extensions_mut().insert(Own);
            Ok(Exact(response))
        }
    });
    let sees = {
        let (seen, protection, event) = (Arc::clone(&seen), Arc::clone(protection), Arc::clone(event));
        move |mut response: Response<Body>| {
            // A front end that buffers streams can't read the layer's own answer as a stream.
            let streams = front_end.streams() && protection.streams.load(Ordering::Relaxed);
            seen.see(&protection.rules, &event, &mut response, streams);
            response
        }
    };
    let (refusing, sees_refusal) = (layer.clone(), sees.clone());
    let refusal = move || sees_refusal(refusing.refusal(ProblemKind::RequestUnreadable));
    let service = named(protection, event, layer.clone(), layer.layer(inner)).map_response(sees);
    let service = guarded_with(service, refusal);
    let calling = service.oneshot(LambdaEvent::new(request, event.context.clone()));
    let ended: Result<_, lambda_idempotency::Failure> = in_time(protection, event, &turn, calling).await?;
    let own = turn.take().map(Box::new);
    Some(match (ended, own) {
        (Ok(_), Some(own)) if seen.is_own.load(Ordering::Relaxed) => Answer::Own(own),
        // The record has no response, since the response is too large to record, or its recorded form is too large for
        // the front end. The layer still sends the function's own answer if the front end can deliver it.
        (Ok(_), Some(own))
            if seen.is_withheld.load(Ordering::Relaxed)
                && !turn.is_replay()
                && (recorded::is_streamed(&own.headers) || !own.is_larger_than(front_end.most_bytes())) =>
        {
            Answer::Own(own)
        }
        (Err(_), Some(own)) => Answer::Own(own),
        (Err(failure), None) => Answer::error(failure),
        (Ok(response), own) => {
            if let Some(own) = own {
                accept(own.reply);
            }
            seen.streamed().map_or_else(|| Answer::json_of(&response), stream)
        }
    })
}

/// Names each request's caller before `service`, the library's layer, gets the request.
fn named<S>(
    protection: &Arc<Protection>,
    event: &Arc<Event>,
    layer: HttpLayer,
    service: S,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = S::Error, Future: Send> + Clone + Send + 'static
where
    S: Service<Request<Body>, Response = Response<Body>, Future: Send> + Clone + Send + 'static,
    S::Error: Send,
{
    let (protection, event) = (Arc::clone(protection), Arc::clone(event));
    service_fn(move |mut request: Request<Body>| {
        let (protection, event) = (Arc::clone(&protection), Arc::clone(&event));
        let (layer, service) = (layer.clone(), service.clone());
        async move {
            let callers = &protection.rules.callers;
            callers.name(&layer, &mut request, &event).await;
            let mut response = service.oneshot(request).await?;
            callers.challenge(&mut response);
            Ok(response)
        }
    })
}

/// A stream with this head and body.
fn stream(body: Bytes) -> Answer {
    let content_type = HeaderValue::from_static(recorded::STREAM_TYPE);
    let headers: HeaderMap = recorded::headers_of(Some(content_type), true);
    Answer::Made { is_error: false, headers, body: recorded::body_of(body, true) }
}

/// The layer for one request.
fn for_turn(layer: HttpLayer, turn: &Turn) -> HttpLayer {
    let replayed = turn.clone();
    // Uses `replay_if` because `on_replay` isn't called if the recorded response wasn't retained.
    layer.replay_if(move |_, _| {
        replayed.replays();
        std::future::ready(true)
    })
}

/// The library's layer with the user's rules.
///
/// # Errors
///
/// If the library refuses one of the rules.
pub(crate) fn layer(
    rules: &Rules,
    idempotency: &Idempotency,
) -> Result<HttpLayer, lambda_idempotency::Error> {
    let Rules { key, passes_unkeyed, callers, compare, http, not_retained, .. } = rules;
    // No CORS layer can be outside the proxy, so the function sends its own CORS headers.
    let mut layer =
        http.of(callers.begin(idempotency.http()))?.replay_cors(true).on_replay(|replay, response| {
            if !replay.is_failure() {
                response.extensions_mut().insert(Replayed);
            }
        });
    // By default, a request without a key runs unprotected only if the key is the header.
    let passes = passes_unkeyed.unwrap_or(matches!(key, KeyOf::Header));
    layer = layer.required(!passes);
    if let KeyOf::Fields(fields) = key {
        layer = layer.key_fields(fields.clone());
    }
    if let Some(answer) = not_retained {
        let answer = answer.to_string();
        layer = layer.on_not_retained(move || {
            let mut response = Response::new(Body::Text(answer.clone()));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response.extensions_mut().insert(NotRetained);
            response
        });
    }
    if let Some(fields) = compare {
        layer = layer.fingerprint_fields(fields.iter().map(String::as_str))?;
    }
    Ok(callers.apply(layer))
}

impl Seen {
    /// Notes the response of the library's layer, and adds its CORS headers unless it's the function's own.
    fn see(&self, rules: &Rules, event: &Event, response: &mut Response<Body>, streams: bool) {
        if response.extensions().get::<Own>().is_some() {
            return self.is_own.store(true, Ordering::Relaxed);
        }
        if response.extensions().get::<Replayed>().is_some() {
            cors::expose_marker(rules, event, response.headers_mut());
        } else {
            cors::allow(rules, event, response.headers_mut());
            let code = code(response.body());
            let is_withheld = response.extensions().get::<NotRetained>().is_some()
                || matches!(code.as_deref(), Some("not-retained" | "outcome-unknown"));
            self.is_withheld.fetch_or(is_withheld, Ordering::Relaxed);
            if code.as_deref() == Some("caller-unknown") {
                callers::advise();
            }
        }
        if streams {
            *self.streamed.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(envelope::streamed(response));
        }
    }

    /// Takes the response as a stream, if the function streams its responses.
    fn streamed(&self) -> Option<Bytes> {
        self.streamed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The field `code` of a problem's JSON.
fn code(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Problem {
        code: String,
    }
    serde_json::from_slice::<Problem>(body).ok().map(|problem| problem.code)
}
