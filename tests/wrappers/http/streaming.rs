//! Functions with streaming responses.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use lambda_http::{http::response::Builder, lambda_runtime::tower::util::BoxCloneService};
use lambda_idempotency::{
    lambda::http::{HttpLayer, ResponseBody},
    settings::Recording,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;

type Part = Result<&'static [u8], io::Error>;

/// A body whose chunks arrive when the test sends them.
struct Gated(UnboundedReceiver<Part>);

impl http_body::Body for Gated {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, io::Error>>> {
        let part = ready!(self.0.poll_recv(cx));
        Poll::Ready(part.map(|part| part.map(|part| http_body::Frame::data(Bytes::from_static(part)))))
    }
}

/// A streaming function, and the sender that feeds its latest response body.
#[derive(Clone)]
struct Function {
    service: BoxCloneService<Request, Response<ResponseBody>, Infallible>,
    runs: Runs,
    sender: Arc<std::sync::Mutex<Option<UnboundedSender<Part>>>>,
}

impl Function {
    fn new(layer: HttpLayer, head: impl Fn() -> Builder + Clone + Send + 'static) -> Self {
        let (runs, sender) = (Runs::default(), Arc::default());
        let of_handler: (Runs, Arc<std::sync::Mutex<_>>) = (runs.clone(), Arc::clone(&sender));
        let handler = service_fn(move |_: Request| {
            let (send, receive) = unbounded_channel();
            of_handler.0.0.fetch_add(1, Ordering::SeqCst);
            *of_handler.1.lock().unwrap() = Some(send);
            let response = head().body(Gated(receive)).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        Self { service: BoxCloneService::new(layer.streaming().layer(handler)), runs, sender }
    }

    /// Sends the request, and returns the response. If the handler runs, its response body has the chunks `parts` and
    /// then ends.
    async fn answer(
        &self,
        request: Request,
        parts: impl IntoIterator<Item = Part>,
    ) -> Response<ResponseBody> {
        let send = async {
            while self.sender.lock().unwrap().is_none() {
                tokio::task::yield_now().await;
            }
            let sender = self.sender.lock().unwrap().take().unwrap();
            parts.into_iter().for_each(|part| sender.send(part).unwrap_or_default());
        };
        let response = self.service.clone().oneshot(request);
        tokio::select! {
            // The layer may answer without running the handler.
            response = response => response.unwrap(),
            response = async { send.await; std::future::pending::<Response<ResponseBody>>().await } => response,
        }
    }
}

/// Returns the response as soon as its head arrives. Its body has no chunk yet.
async fn head(function: &Function, request: Request) -> Response<ResponseBody> {
    let answer = function.service.clone().oneshot(request);
    tokio::time::timeout(Duration::from_secs(10), answer).await.expect("the head waited for a body").unwrap()
}

async fn text(response: Response<ResponseBody>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

/// Returns the status and code of the layer's own answer.
async fn problem(response: Response<ResponseBody>) -> (u16, String) {
    let status = response.status().as_u16();
    let problem: Value = serde_json::from_str(&text(response).await).unwrap();
    (status, problem["code"].as_str().unwrap().to_owned())
}

fn marked(response: &Response<ResponseBody>) -> bool {
    response.headers().get_all("idempotent-replayed").iter().eq(["true"])
}

/// Returns a layer that records at most this many bytes.
fn up_to(bytes: usize) -> HttpLayer {
    Idempotency::builder(empty_store())
        .function("exports")
        .settings(|s| s.max_response = bytes)
        .build()
        .unwrap()
        .http()
}

fn created() -> Builder {
    Response::builder().status(201).header("content-type", "text/csv").header("idempotent-replayed", "true")
}

#[tokio::test]
async fn recordable_streams_are_buffered_and_replayed() {
    for content_type in ["text/csv", "image/png"] {
        let head = move || Response::builder().status(201).header("content-type", content_type);
        let function = Function::new(up_to(1000), head);
        let first = function.answer(post(Some("k"), "{}"), [Ok(&b"a,b"[..]), Ok(b""), Ok(b",c")]).await;
        let again = function.answer(post(Some("k"), "{}"), []).await;
        assert!(!marked(&first) && marked(&again));
        assert_eq!((first.status(), again.status()), (StatusCode::CREATED, StatusCode::CREATED));
        assert_eq!(again.headers()["content-type"], content_type);
        assert_eq!((text(first).await, text(again).await), ("a,b,c".into(), "a,b,c".into()));
        assert_eq!(function.runs.count(), 1);
    }
}

/// `lambda_http` would decode these bodies as text, and so change them: bytes without a content type, text in another
/// character set, and bytes that begin with a byte-order mark.
#[tokio::test]
async fn streamed_bytes_are_never_reencoded() {
    let bodies: [(Option<&str>, &'static [u8]); 4] = [
        (None, b"\xff\x00\xfe\x80abc"),
        (Some("text/csv"), b"\xef\xbb\xbfa,b"),
        (Some("text/plain; charset=iso-8859-1"), b"caf\xe9"),
        (Some("application/json"), b"\xff\xfe"),
    ];
    for (content_type, bytes) in bodies {
        let head = move || {
            let head = Response::builder().header("content-length", bytes.len());
            content_type.iter().fold(head, |head, of| head.header("content-type", *of))
        };
        let function = Function::new(up_to(1000), head);
        for is_replayed in [false, true] {
            let answer = function.answer(post(Some("k"), "{}"), [Ok(bytes)]).await;
            assert_eq!(marked(&answer), is_replayed);
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), bytes, "{content_type:?}");
        }
    }
}

#[tokio::test]
async fn large_streams_are_recorded_before_sending() {
    let function = Function::new(up_to(8), created);
    let service = function.service.clone();
    let first = tokio::spawn(service.oneshot(post(Some("k"), "{}")));
    while function.sender.lock().unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    let sender = function.sender.lock().unwrap().take().unwrap();
    sender.send(Ok(b"12345678")).unwrap();
    let duplicate = || function.answer(post(Some("k"), "{}"), []);
    assert_eq!(
        problem(duplicate().await).await,
        (409, "in-progress".into()),
        "the layer must not settle while the body may still fit"
    );
    sender.send(Ok(b"9")).unwrap();
    let first = first.await.unwrap().unwrap();
    assert!(!marked(&first), "the layer must remove the handler's own `idempotent-replayed`");
    assert_eq!(problem(duplicate().await).await, (409, "not-retained".into()));

    sender.send(Ok(b" and more")).unwrap();
    drop(sender);
    assert_eq!(text(first).await, "123456789 and more", "the caller must get all chunks in order");
    let other = function.answer(post(Some("k"), "[]"), []).await;
    assert_eq!((problem(other).await, function.runs.count()), ((422, "key-reused".into()), 1));
}

#[tokio::test]
async fn response_heads_count_towards_the_limit() {
    let function = Function::new(up_to(8), created);
    let first = function.answer(post(Some("k"), "{}"), [Ok(&b"12345678"[..])]).await;
    assert_eq!(text(first).await, "12345678");
    let again = function.answer(post(Some("k"), "{}"), []).await;
    assert_eq!(problem(again).await, (409, "not-retained".into()));
}

#[tokio::test]
async fn transient_failure_streams_release_the_key() {
    let unavailable = || Response::builder().status(503);
    let released = || created().extension(Recording::Release);
    for function in [Function::new(up_to(8), unavailable), Function::new(up_to(8), released)] {
        for run in 1..=2 {
            let answer = head(&function, post(Some("k"), "{}")).await;
            let sender = function.sender.lock().unwrap().take().unwrap();
            sender.send(Ok(b"later than its head")).unwrap();
            drop(sender);
            assert_eq!(text(answer).await, "later than its head");
            assert_eq!(function.runs.count(), run);
        }
    }
}

#[tokio::test]
async fn record_when_sees_answers_within_limit() {
    let layer = || up_to(1000).record_when(|response| response.body().as_ref() == b"final");
    let function = Function::new(layer(), created);
    for (body, is_replayed) in [("passing", false), ("final", false), ("", true)] {
        let answer = function.answer(post(Some("k"), "{}"), [Ok(body.as_bytes())]).await;
        assert_eq!(marked(&answer), is_replayed, "{body}");
    }
    let large = Function::new(layer(), created);
    let parts = [Ok(&[b'x'; 800][..]), Ok(&[b'x'; 800])];
    assert_eq!(text(large.answer(post(Some("l"), "{}"), parts).await).await.len(), 1600);
    let again = large.answer(post(Some("l"), "{}"), []).await;
    assert_eq!(problem(again).await, (409, "not-retained".into()));

    // `record_when` also sees a body whose length is exactly the limit.
    let full = Function::new(up_to(1000).record_when(|_| false), created);
    for run in 1..=2 {
        let answer = full.answer(post(Some("f"), "{}"), [Ok(&[b'x'; 1000][..])]).await;
        assert_eq!((text(answer).await.len(), full.runs.count()), (1000, run));
    }

    // `record_when` doesn't see a response that's over the limit. Its status decides, and a 503 releases the key.
    let passing = Function::new(layer(), || Response::builder().status(503));
    for run in 1..=2 {
        let parts = [Ok(&[b'x'; 800][..]), Ok(&[b'x'; 800])];
        assert_eq!(text(passing.answer(post(Some("p"), "{}"), parts).await).await.len(), 1600);
        assert_eq!(passing.runs.count(), run);
    }
}

#[tokio::test]
async fn truncated_response_bodies_are_never_recorded() {
    let broken = || [Ok(&b"a,b"[..]), Err(io::Error::other("the disk failed")), Ok(b"c")];
    let function = Function::new(up_to(1000), created);
    let first = function.answer(post(Some("k"), "{}"), broken()).await;
    let error = first.into_body().collect().await.unwrap_err();
    assert_eq!(error.to_string(), "the disk failed");
    let again = function.answer(post(Some("k"), "{}"), [Ok(&b"a,b,c"[..])]).await;
    assert_eq!((marked(&again), text(again).await, function.runs.count()), (false, "a,b,c".into(), 2));

    let builder = Idempotency::builder(empty_store()).function("exports").execution(Execution::AtMostOnce);
    let once = Function::new(builder.build().unwrap().http(), created);
    let first = once.answer(post(Some("k"), "{}"), broken()).await;
    assert_eq!(
        problem(first).await,
        (500, "operation-failed".into()),
        "the first caller must get the same answer as duplicates"
    );
    let again = once.answer(post(Some("k"), "{}"), []).await;
    assert_eq!((problem(again).await, once.runs.count()), ((500, "operation-failed".into()), 1));
}

#[tokio::test]
async fn unprotected_routes_stream_without_the_store() {
    let down = Idempotency::builder(store_that_is_down()).function("exports").build().unwrap().http();
    let layer = down.pass_through_when(|request| request.uri.path() == "/payments");
    let function = Function::new(layer, created);
    for request in [post(Some("k"), "{}"), post(Some("\"open"), "{}"), post(None, "{}")] {
        let answer = head(&function, request).await;
        assert!(!marked(&answer), "the layer must remove the handler's own `idempotent-replayed`");
        let sender = function.sender.lock().unwrap().take().unwrap();
        sender.send(Ok(b"later")).unwrap();
        drop(sender);
        assert_eq!(text(answer).await, "later");
    }
    let mut elsewhere = post(Some("k"), "{}");
    *elsewhere.uri_mut() = "/elsewhere".parse().unwrap();
    assert_eq!(function.answer(elsewhere, []).await.status(), 503);
    assert_eq!(function.runs.count(), 3);
}

#[tokio::test]
async fn axum_routes_can_stream() {
    use axum::{Router, body::Body as AxumBody, routing};
    let pay = || async { Response::new(AxumBody::from("paid")) };
    let router =
        Router::new().route("/payments", routing::post(pay)).route_layer(idempotency().http().streaming());
    for is_replayed in [false, true] {
        let request = axum::extract::Request::post("/payments").header("idempotency-key", "k");
        let answer = router.clone().oneshot(request.body(AxumBody::from("{}")).unwrap()).await.unwrap();
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), is_replayed);
        assert_eq!(axum::body::to_bytes(answer.into_body(), 100).await.unwrap(), "paid");
    }
}

#[tokio::test]
async fn large_buffered_responses_pass_unretained() {
    let answer = |_: Request| async { Ok::<_, Infallible>(Response::new(Body::from("x".repeat(1000)))) };
    let service = up_to(999).layer(service_fn(answer));
    let first = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    assert_eq!(first.body().len(), 1000);
    let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
    assert_eq!((again.status().as_u16(), code(&again).as_str()), (409, "not-retained"));
}

/// Checks that a layered router meets the trait bounds of `run_with_streaming_response`. No test calls this.
#[expect(dead_code, reason = "it only has to compile")]
async fn it_works_under_the_streaming_run() -> Result<(), lambda_http::Error> {
    let layer = || idempotency().http().streaming();
    lambda_http::run_with_streaming_response(layer().layer(axum::Router::new())).await?;
    lambda_http::run_with_streaming_response_concurrent(layer().layer(axum::Router::new())).await
}
