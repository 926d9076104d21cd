//! The edge of the proxy: large headers, streams, broken requests, and requests that it passes on.

use std::time::Duration;

use bytes::Bytes;
use testkit::random::{Random, fresh_seed};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::bench::{Function, Got, INIT_ERROR, Lambda, SECOND_INIT_ERROR, posted};

const KEY: &[(&str, &str)] = &[("IDEMPOTENCY_KEY", "/id")];

#[tokio::test]
async fn non_invocation_requests_pass_unchanged() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    for (method, path) in [
        ("POST", "/2018-06-01/runtime/init/error"),
        ("GET", "/2018-06-01/runtime/restore/next"),
        ("POST", "/2018-06-01/runtime/restore/error"),
        ("PUT", "/2022-07-01/telemetry?a=b%20c"),
    ] {
        let got = function.send(method, path, &[("x-mine", "1")], Bytes::from_static(b"body")).await;
        assert_eq!((got.status, &*got.body, got.header("x-other")), (202, &b"other"[..], "1"));
        let sent = lambda.others().pop().unwrap();
        assert_eq!(
            (sent.method.as_str(), sent.path.as_str(), sent.body.as_slice()),
            (method, path, &b"body"[..])
        );
        assert_eq!(sent.headers["x-mine"], "1");
    }
    let unknown = function.send("POST", "/2018-06-01/runtime/invocation/x/response", &[], Bytes::new()).await;
    assert_eq!(unknown.status, 400, "Lambda's refusal of the unknown invocation must pass through");
}

/// A runtime that reports its init error twice must get Lambda's own refusal.
#[tokio::test]
async fn refusal_of_init_error_reaches_function() {
    let lambda = Lambda::start().await;
    let mut function = Function::start(&lambda, KEY).await;
    for (status, body) in [(202, &b"other"[..]), (403, SECOND_INIT_ERROR), (403, SECOND_INIT_ERROR)] {
        let got = function.send("POST", INIT_ERROR, &[], Bytes::from_static(b"{}")).await;
        assert_eq!((got.status, &*got.body), (status, body));
    }
    assert!(function.child.try_wait().unwrap().is_none(), "{}", function.log());
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    function.respond(&function.next().await, "1").await;
    assert_eq!(posted(waiting).await.text(), "1");
}

#[tokio::test]
async fn one_mebibyte_header_reaches_lambda() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let cause = "x".repeat(1024 * 1024);
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    let event = function.next().await;
    let headers = [("lambda-runtime-function-xray-error-cause", cause.as_str())];
    function.post(&event, "error", &headers, Bytes::from_static(b"{\"errorType\":\"E\"}")).await;
    let failed = posted(waiting).await;
    assert_eq!(failed.error_type(), "E");
    assert!(failed.headers["lambda-runtime-function-xray-error-cause"] == cause);
}

#[tokio::test]
async fn stale_invocation_ids_settle_nothing() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    let event = function.next().await;
    let stale = [("lambda-runtime-invocation-id", "another")];
    // The proxy passes the stale answer on, and Lambda decides about it. The simulated Lambda accepts any answer to the
    // request id, even a stale one.
    function.post(&event, "response", &stale, Bytes::from_static(b"0")).await;
    assert_eq!(posted(waiting).await.headers["lambda-runtime-invocation-id"], "another");
    let current = event.header("lambda-runtime-invocation-id");
    function
        .post(&event, "response", &[("lambda-runtime-invocation-id", current)], Bytes::from_static(b"1"))
        .await;
    let again = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(again).await.text(), "1");
}

/// Sends a chunked response with these trailers on a raw connection. The head has no `Trailer` header that announces
/// the trailers. Returns the HTTP version and the status of the answer.
async fn stream(function: &Function, event: &Got, chunks: &[&[u8]], trailers: &str) -> String {
    let mut connection = TcpStream::connect(function.address()).await.unwrap();
    let id = event.header("lambda-runtime-aws-request-id");
    let head = format!(
        "POST /2018-06-01/runtime/invocation/{id}/response HTTP/1.1\r\nHost: runtime\r\nContent-Type: text/plain\r\n\
         Lambda-Runtime-Function-Response-Mode: streaming\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    for chunk in chunks {
        connection.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await.unwrap();
        connection.write_all(chunk).await.unwrap();
        connection.write_all(b"\r\n").await.unwrap();
    }
    connection.write_all(format!("0\r\n{trailers}\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    connection.read_exact(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn streams_are_recorded_and_replayed() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let first = lambda.deliver(r#"{"id": 1}"#);
    let event = function.next().await;
    assert_eq!(stream(&function, &event, &[b"one ", b"two"], "").await, "HTTP/1.1 202");
    let again = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await);
    for waiting in [first, again] {
        let streamed = posted(waiting).await;
        assert_eq!(streamed.text(), "one two");
        assert_eq!(streamed.headers["content-type"], "text/plain");
        assert_eq!(streamed.headers["lambda-runtime-function-response-mode"], "streaming");
        assert_eq!(streamed.headers["transfer-encoding"], "chunked");
    }
}

/// The trailers of a stream that ends with an error.
const BROKE: &str =
    "Lambda-Runtime-Function-Error-Type: Broke\r\nLambda-Runtime-Function-Error-Body: e30=\r\n";

#[tokio::test]
async fn broken_stream_releases_the_key() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    for _ in 0..2 {
        let waiting = lambda.deliver(r#"{"id": 1}"#);
        let event = function.next().await;
        stream(&function, &event, &[b"one "], BROKE).await;
        let broken = posted(waiting).await;
        assert_eq!(broken.text(), "one ");
        // Without the trailers, Lambda would treat the stream as complete.
        assert_eq!(broken.trailers["lambda-runtime-function-error-type"], "Broke");
        assert_eq!(broken.trailers["lambda-runtime-function-error-body"], "e30=");
    }
}

#[tokio::test]
async fn oversized_streams_pass_but_are_not_retained() {
    let lambda = Lambda::start().await;
    let function =
        Function::start(&lambda, &[KEY, &[("IDEMPOTENCY_MAX_RESPONSE", "1000000")]].concat()).await;
    let first = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(10), &[]);
    let event = function.next().await;
    let chunk: &[u8] = &[b'x'; 300_000];
    assert_eq!(stream(&function, &event, &[chunk; 10], "").await, "HTTP/1.1 202");
    assert_eq!(posted(first).await.body.len(), 3_000_000);
    let again = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(again).await.error_type(), "Idempotency.NotRetained");
}

#[tokio::test]
async fn errors_of_oversized_streams_reach_lambda() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[KEY, &[("IDEMPOTENCY_MAX_RESPONSE", "1000")]].concat()).await;
    let waiting = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(10), &[]);
    let event = function.next().await;
    let chunk: &[u8] = &[b'x'; 3000];
    stream(&function, &event, &[chunk; 3], BROKE).await;
    let broken = posted(waiting).await;
    assert_eq!(broken.body.len(), 9000);
    assert_eq!(broken.trailers["lambda-runtime-function-error-type"], "Broke");
    assert_eq!(broken.trailers["lambda-runtime-function-error-body"], "e30=");
}

#[tokio::test]
async fn mode_off_passes_errors_of_streams() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_MODE", "off")]).await;
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    stream(&function, &function.next().await, &[b"one "], BROKE).await;
    let broken = posted(waiting).await;
    assert_eq!(broken.text(), "one ");
    assert_eq!(broken.trailers["lambda-runtime-function-error-type"], "Broke");
}

#[tokio::test]
async fn truncated_answers_settle_nothing() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    let event = function.next().await;
    let mut connection = TcpStream::connect(function.address()).await.unwrap();
    let id = event.header("lambda-runtime-aws-request-id");
    let head = format!(
        "POST /2018-06-01/runtime/invocation/{id}/response HTTP/1.1\r\nHost: r\r\nContent-Length: 10\r\n\r\n12345"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    drop(connection);
    tokio::time::sleep(Duration::from_millis(100)).await;
    function.respond(&event, "\"whole\"").await;
    assert_eq!(posted(waiting).await.text(), "\"whole\"");
}

/// Sends requests made of random parts, some with a random byte, and hangs up. A panic ends only the connection's
/// task, so the test searches the log for panics.
#[tokio::test]
async fn broken_requests_never_stop_the_proxy() {
    const PARTS: [&str; 16] = [
        "POST ",
        "GET ",
        "/2018-06-01/runtime/invocation/next",
        "/2018-06-01/runtime/invocation/x/response",
        "/2018-06-01/runtime/invocation//error",
        " HTTP/1.1\r\n",
        "Host: r\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: chunked\r\n",
        "\r\n",
        "5\r\nabcde\r\n",
        "fffffffffffffffff\r\n",
        "0\r\n",
        "Lambda-Runtime-Function-Error-Type: E\r\n",
        "\u{0}\u{ff}",
    ];
    let seed = fresh_seed();
    let mut random = Random::new(seed);
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    const POLL: &[u8] = b"GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\n";
    for _ in 0..1000 {
        let mut sent = Vec::new();
        for _ in 0..random.index(14) {
            sent.extend_from_slice(random.pick(&PARTS).unwrap().as_bytes());
        }
        if random.percent(25) && !sent.is_empty() {
            let place = random.index(sent.len());
            sent[place] = random.bits() as u8;
        }
        // Skip input that contains a complete poll. If more bytes follow the poll, hyper doesn't notice that the
        // connection has ended, and this poll would get the event below.
        if sent.windows(POLL.len()).any(|part| part == POLL) {
            continue;
        }
        let mut connection = TcpStream::connect(function.address()).await.unwrap();
        // The proxy may have closed the connection already.
        let _ = connection.write_all(&sent).await;
        drop(connection);
    }
    let waiting = lambda.deliver(r#"{"id": "after"}"#);
    function.respond(&function.next().await, "1").await;
    assert_eq!(posted(waiting).await.text(), "1", "seed {seed}");
    let log = function.log();
    assert!(!log.contains("panicked"), "seed {seed}: {log}");
}
