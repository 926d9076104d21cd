//! The draft, clause by clause (draft-ietf-httpapi-idempotency-key-header-07): what a server can show of each, through
//! every front end. D26, the registration of the header's name, is not a server's.

use std::sync::Mutex;

use tokio::sync::Notify;

use super::*;
use crate::front_ends::{FRONT_ENDS, POST, Sent, UUID, event};
use lambda_http::lambda_runtime::tower::util::BoxCloneService;
use lambda_idempotency::{Timestamp, lambda::http::HttpLayer};

/// One front end, and a layered handler behind it.
#[derive(Clone)]
struct Api {
    front_end: &'static str,
    service: BoxCloneService<Request, Response<Body>, Infallible>,
    runs: Runs,
}

impl Api {
    fn new(front_end: &'static str, layer: HttpLayer) -> Self {
        let runs = Runs::default();
        let service = BoxCloneService::new(layer.layer(handler(&runs)));
        Self { front_end, service, runs }
    }

    /// Status, and whether it was a replay.
    async fn send(&self, sent: Sent) -> (u16, bool) {
        let answer = self.answer(sent).await;
        (answer.status().as_u16(), is_replay(&answer))
    }

    async fn answer(&self, sent: Sent) -> Response<Body> {
        self.service.clone().oneshot(self.request(sent)).await.unwrap()
    }

    /// The event that the front end makes of it, as `lambda_http` reads it.
    fn request(&self, sent: Sent) -> Request {
        lambda_http::request::from_str(&event(self.front_end, sent).to_string()).unwrap()
    }
}

fn plain() -> HttpLayer {
    idempotency().http()
}

fn apis(layer: impl Fn() -> HttpLayer) -> impl Iterator<Item = Api> {
    FRONT_ENDS.into_iter().map(move |front_end| Api::new(front_end, layer()))
}

#[tokio::test]
async fn d01_the_value_is_a_string_item() {
    for api in apis(plain) {
        assert_eq!(api.send(Sent { key: Some("\"k\""), ..POST }).await, (201, false), "{}", api.front_end);
        assert_eq!(api.send(Sent { key: Some("k"), ..POST }).await, (201, true), "bare, as clients send it");
        for wrong in ["\"k", "\"k\" x", "\"k\\x\"", "\"a\", \"b\"", "k l", "\"\"", "\"  \""] {
            assert_eq!(api.send(Sent { key: Some(wrong), ..POST }).await, (400, false), "{wrong}");
        }
    }
    let strict = || plain().key_syntax(lambda_idempotency::lambda::http::KeySyntax::Strict);
    for api in apis(strict) {
        for (key, answer) in [("k", 400), ("1", 400), ("?1", 400), (":aGk=:", 400), ("\"k\"", 201)] {
            assert_eq!(api.send(Sent { key: Some(key), ..POST }).await.0, answer, "{key}");
        }
    }
}

#[tokio::test]
async fn d02_and_d17_a_key_is_not_used_again_with_another_payload() {
    for api in apis(plain) {
        api.send(POST).await;
        for other in [
            Sent { body: r#"{"amount":2,"currency":"EUR"}"#, ..POST },
            Sent { body: r#"{"amount":1.0,"currency":"EUR"}"#, ..POST },
            Sent { query: "a=1", ..POST },
            Sent { method: "PATCH", ..POST },
        ] {
            let answer = api.answer(other).await;
            assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (422, "key-reused"), "{other:?}");
        }
        assert_eq!((api.send(POST).await, api.runs.count()), ((201, true), 1), "{}", api.front_end);
    }
}

#[tokio::test]
async fn d03_and_d25_a_key_is_its_callers() {
    for api in apis(plain) {
        api.send(POST).await;
        assert_eq!(api.send(Sent { session: "two", ..POST }).await, (201, true), "a role is one caller");
        let stranger = Sent { role: "TILL", body: "{}", ..POST };
        // A load balancer verifies nobody: one namespace for all.
        let expected = if api.front_end == "alb" { (422, false) } else { (201, false) };
        assert_eq!(api.send(stranger).await, expected, "{}", api.front_end);
    }
}

#[tokio::test]
async fn d04_a_uuid_is_a_key() {
    for api in apis(|| plain().key_format(lambda_idempotency::lambda::http::KeyFormat::Uuid)) {
        for version in [UUID, "01890a5d-ac96-774b-bcce-b302099a8057"] {
            assert_eq!(api.send(Sent { key: Some(version), ..POST }).await, (201, false));
        }
    }
}

/// The system's clock, set forward by the test.
#[derive(Clone, Debug, Default)]
struct Ahead(Arc<Mutex<Duration>>);

impl lambda_idempotency::Clock for Ahead {
    fn now(&self) -> Timestamp {
        lambda_idempotency::SystemClock.now().saturating_add(*self.0.lock().unwrap())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        lambda_idempotency::SystemClock.sleep(duration)
    }
}

#[tokio::test]
async fn d05_and_d11_a_key_that_has_expired_begins_anew() {
    for front_end in FRONT_ENDS {
        let clock = Ahead::default();
        let engine = Idempotency::builder(empty_store()).function("payments").clock(clock.clone()).build();
        let api = Api::new(front_end, engine.unwrap().http());
        api.send(POST).await;
        *clock.0.lock().unwrap() = Duration::from_secs(23 * 60 * 60);
        assert_eq!(api.send(POST).await, (201, true));
        *clock.0.lock().unwrap() = Duration::from_secs(25 * 60 * 60);
        assert_eq!((api.send(Sent { body: "{}", ..POST }).await, api.runs.count()), ((201, false), 2));
    }
}

#[test]
fn d06_d09_d10_d22_and_d23_the_specification_is_there_to_be_published() {
    let page = include_str!("../../../src/guide/idempotency_specification.md");
    for said in
        ["`Idempotency-Key`", "1 to 255", "24 hours", "POST and PATCH", "401, 403, 408, 409", "`key-reused`"]
    {
        assert!(page.contains(said), "{said}");
    }
}

#[tokio::test]
async fn d07_the_fingerprint_is_of_what_the_request_says() {
    for api in apis(plain) {
        api.send(Sent { query: "a=1&b=2", ..POST }).await;
        let again = Sent { query: "b=2&a=1", body: "{ \"currency\": \"EUR\", \"amount\": 1 }", ..POST };
        assert_eq!(api.send(again).await, (201, true), "{}", api.front_end);
    }
}

#[tokio::test]
async fn d08_a_key_that_nobody_asked_for_does_no_harm() {
    for api in apis(plain) {
        for method in ["GET", "DELETE", "PUT"] {
            for key in [UUID, "\"open"] {
                assert_eq!(api.send(Sent { method, key: Some(key), ..POST }).await, (201, false), "{method}");
            }
        }
    }
}

#[tokio::test]
async fn d12_to_d16_a_first_request_is_processed_and_a_retry_gets_its_result() {
    for api in apis(plain) {
        for (nth, status) in ["201", "200", "303", "400", "404", "412"].into_iter().enumerate() {
            let key = Some(["k0", "k1", "k2", "k3", "k4", "k5"][nth]);
            let sent = Sent { key, status, ..POST };
            let (first, again) = (api.answer(sent).await, api.answer(sent).await);
            assert_eq!((is_replay(&first), is_replay(&again)), (false, true), "{status}");
            assert_eq!((first.status(), first.body()), (again.status(), again.body()));
            assert_eq!(first.headers()["location"], again.headers()["location"]);
        }
        assert_eq!(api.runs.count(), 6, "{}", api.front_end);
    }
}

#[tokio::test]
async fn d18_a_retry_before_completion_is_a_conflict_and_another_payload_is_none() {
    for front_end in FRONT_ENDS {
        let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (entered, go) = (Arc::clone(&entered), Arc::clone(&go));
            service_fn(move |_: Request| {
                let (entered, go) = (Arc::clone(&entered), Arc::clone(&go));
                async move {
                    entered.notify_one();
                    go.notified().await;
                    Ok::<_, Infallible>(Response::new(Body::Empty))
                }
            })
        };
        let service = BoxCloneService::new(plain().layer(slow));
        let api = Api { front_end, service, runs: Runs::default() };
        let meanwhile = async {
            entered.notified().await;
            let answer = api.answer(POST).await;
            assert_eq!(
                (answer.status().as_u16(), code(&answer).as_str()),
                (409, "in-progress"),
                "{front_end}"
            );
            let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((1..=60).contains(&wait), "{wait}");
            let other = api.send(Sent { body: "{}", ..POST }).await;
            assert_eq!(other, (422, false), "the payload is decided first");
            go.notify_one();
        };
        assert_eq!(tokio::join!(api.send(POST), meanwhile).0, (200, false));
        assert_eq!(api.send(POST).await, (200, true));
    }
}

#[tokio::test]
async fn d19_and_d20_a_missing_key_is_400_and_linked_to_the_documentation() {
    for api in apis(|| plain().required().documentation("https://api.example/idempotency")) {
        let answer = api.answer(Sent { key: None, ..POST }).await;
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (400, "key-missing"));
        let link = answer.headers()["link"].to_str().unwrap();
        assert!(link.contains("https://api.example/idempotency") && link.contains("describedby"), "{link}");
        let body: Value = serde_json::from_slice(answer.body()).unwrap();
        assert_eq!(body["type"], "https://api.example/idempotency#key-missing");
        assert_eq!(api.runs.count(), 0);
    }
}

#[tokio::test]
async fn d21_a_request_that_is_not_corrected_goes_on_failing_and_never_runs() {
    for api in apis(|| plain().required()) {
        api.send(Sent { body: "{}", ..POST }).await;
        for (wrong, status) in
            [(Sent { key: None, ..POST }, 400), (Sent { key: Some("\"open"), ..POST }, 400), (POST, 422)]
        {
            for _ in 0..3 {
                assert_eq!(api.send(wrong).await, (status, false), "{}: {wrong:?}", api.front_end);
            }
        }
        assert_eq!(api.runs.count(), 1);
    }
}

#[tokio::test]
async fn d22_passing_failures_are_not_the_result() {
    for api in apis(plain) {
        for status in ["401", "403", "408", "409", "413", "421", "423", "425", "429", "500", "503"] {
            let before = api.runs.count();
            let sent = Sent { status, ..POST };
            assert_eq!(api.send(sent).await, (status.parse().unwrap(), false));
            assert_eq!(api.send(sent).await, (status.parse().unwrap(), false));
            assert_eq!(api.runs.count(), before + 2, "{}: {status}", api.front_end);
        }
    }
}

#[tokio::test]
async fn d24_a_key_is_validated_before_anything_is_looked_up() {
    let down = || Idempotency::builder(Down).function("payments").build().unwrap().http();
    for api in apis(down) {
        for key in ["", "\"open", "a b", "\"\"", "a,b", "k;v=1"] {
            assert_eq!(api.send(Sent { key: Some(key), ..POST }).await, (400, false), "{key}");
        }
        let answer = api.answer(POST).await;
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (503, "store-unavailable"));
        assert!(answer.headers().contains_key("retry-after"));
        assert_eq!(api.runs.count(), 0, "{}", api.front_end);
    }
}
