//! Takeovers: a delivery's lease has expired, another delivery runs, and the first delivery's answer comes last.

use std::time::Duration;

use serde_json::json;
use testkit::front_ends::{POST, event};
use tokio::sync::oneshot;

use super::{
    bench::{Function, Got, Lambda, Posted, posted},
    http_events::{created, header, status},
};

/// Makes the successor wait until the lease has expired, and gives the function the claim's facts.
const SETTINGS: &[(&str, &str)] =
    &[("IDEMPOTENCY_ON_IN_PROGRESS", "wait:20s"), ("IDEMPOTENCY_CLAIM_FIELD", "claim")];

/// Two deliveries of one event, both of which the function runs.
struct Takeover {
    lambda: Lambda,
    function: Function,
    /// The event of the delivery whose lease has expired, as the function got it.
    slow: Got,
    /// Receives the answer that Lambda gets for that delivery.
    fenced: oneshot::Receiver<Posted>,
    /// The event of the delivery that took over, as the function got it.
    next: Got,
    /// Receives the answer that Lambda gets for the delivery that took over.
    successor: oneshot::Receiver<Posted>,
}

impl Takeover {
    async fn of(key: &str, event: &str) -> Self {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[SETTINGS, &[("IDEMPOTENCY_KEY", key)]].concat()).await;
        let fenced = lambda.deliver_with(event, Duration::from_secs(4), &[]);
        let slow = function.next().await;
        let successor = lambda.deliver(event);
        let next = function.next().await;
        Self { lambda, function, slow, fenced, next, successor }
    }

    /// Answers the successor, then the fenced delivery. Returns the answers that Lambda got for them, and for one more
    /// delivery.
    async fn answer(self, event: &str, successors: &str, late: &str) -> [Posted; 3] {
        self.function.respond(&self.next, successors.to_owned()).await;
        let successor = posted(self.successor).await;
        let accepted = self.function.respond(&self.slow, late.to_owned()).await;
        assert_eq!(accepted.status, 202, "an error status can make a runtime client end its process");
        let fenced = posted(self.fenced).await;
        let again = self.lambda.deliver(event);
        assert!(self.function.gets_nothing().await);
        [successor, fenced, posted(again).await]
    }
}

#[tokio::test]
async fn claim_reports_the_earlier_attempt() {
    let Takeover { slow, next, .. } = Takeover::of("/id", r#"{"id": 1}"#).await;
    let [first, second] = [slow, next].map(|event| event.json()["claim"].clone());
    let facts =
        |claim: &serde_json::Value| [&claim["attempt"], &claim["earlierAttemptMayHaveRun"]].map(Clone::clone);
    assert_eq!(facts(&first), [json!(1), json!(false)]);
    assert_eq!(facts(&second), [json!(2), json!(true)]);
    let [before, after] = [&first, &second].map(|claim| claim["generation"].as_u64().unwrap());
    assert!(before < after, "{before} {after}");
    assert_eq!(first["key"], second["key"]);
}

#[tokio::test]
async fn fenced_event_gets_the_successors_answer() {
    let event = r#"{"id": 1}"#;
    let answers = Takeover::of("/id", event).await.answer(event, "\"successor\"", "\"late\"").await;
    for answer in answers {
        assert_eq!((answer.is_error, answer.text().as_str()), (false, "\"successor\""));
    }
}

#[tokio::test]
async fn fenced_request_gets_the_successors_response() {
    for front_end in ["http-api", "alb"] {
        let request = event(front_end, POST).to_string();
        let late = json!({ "statusCode": 200, "body": "late" }).to_string();
        let takeover = Takeover::of("header", &request).await;
        let [successor, fenced, again] = takeover.answer(&request, &created().to_string(), &late).await;
        assert_eq!(successor.json(), created());
        for replay in [fenced, again] {
            assert_eq!((status(&replay), &replay.json()["body"]), (201, &created()["body"]), "{front_end}");
            assert_eq!(header(&replay, "idempotent-replayed").as_deref(), Some("true"), "{front_end}");
        }
    }
}
