//! The HTTP contract through every front end, by the function as it is deployed.

use lambda_idempotency_cli::rehearse::{answer::Answer, event::Event};
use serde_json::Value;

use super::{
    front_ends::{FRONT_ENDS, POST, Sent, UUID, event},
    stage::{Running, database},
};

/// What is answered: the status, and the problem's code or whether it is a replay.
type Expected = (u64, &'static str);

const ORDER: &str = r#"{"order_id":"order-1","amount_cents":1250,"currency":"EUR"}"#;
const FIRST: Sent = Sent { body: ORDER, ..POST };

/// One after the other, on one table.
fn cases(front_end: &str) -> Vec<(&'static str, Sent, Expected)> {
    // A load balancer verifies nobody: one namespace for all.
    let strangers = if front_end == "alb" { (422, "key-reused") } else { (201, "") };
    let of = |sent: Sent| Sent { body: ORDER, ..sent };
    vec![
        ("first", FIRST, (201, "")),
        ("again", FIRST, (201, "replayed")),
        (
            "again, quoted",
            of(Sent { key: Some("\"8e03978e-40d5-43dd-bc93-6894a57f9324\""), ..POST }),
            (201, "replayed"),
        ),
        ("again, by another session", of(Sent { session: "two", ..POST }), (201, "replayed")),
        (
            "again, the body's names in another order",
            Sent { body: r#"{ "currency": "EUR", "amount_cents": 1250, "order_id": "order-1" }"#, ..POST },
            (201, "replayed"),
        ),
        (
            "another amount",
            Sent { body: r#"{"order_id":"order-1","amount_cents":125,"currency":"EUR"}"#, ..POST },
            (422, "key-reused"),
        ),
        ("another query", of(Sent { query: "a=1", ..POST }), (422, "key-reused")),
        (
            "another caller",
            Sent { role: "TILL", body: r#"{"order_id":"o","amount_cents":1,"currency":"EUR"}"#, ..POST },
            strangers,
        ),
        ("an open quote", of(Sent { key: Some("\"open"), ..POST }), (400, "key-invalid")),
        ("an empty key", of(Sent { key: Some(""), ..POST }), (400, "key-invalid")),
        ("two keys in one", of(Sent { key: Some("a,b"), ..POST }), (400, "key-invalid")),
        ("no key", of(Sent { key: None, ..POST }), (201, "")),
        ("no order", Sent { key: Some("k"), body: "{}", ..POST }, (400, "")),
        ("no order, again", Sent { key: Some("k"), body: "{}", ..POST }, (400, "replayed")),
        ("a GET, whatever its key", of(Sent { method: "GET", key: Some("\"open"), ..POST }), (404, "")),
        ("a PUT, whatever its key", of(Sent { method: "PUT", key: Some(UUID), ..POST }), (404, "")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_is_one_through_every_front_end() {
    for front_end in FRONT_ENDS {
        let database = database().await;
        let mut running = Running::start("payments", &database).await;
        for (case, sent, expected) in cases(front_end) {
            let answer = running.deliver_event(&Event::new(event(front_end, sent))).await;
            assert_eq!(found(&answer), (expected.0, expected.1.to_owned()), "{front_end}, {case}");
        }
        // The first, the other caller's where there are callers, and the one without a key.
        let payments = if front_end == "alb" { 2 } else { 3 };
        assert_eq!(running.marks().await, payments, "{front_end}");
    }
}

fn found(answer: &Answer) -> (u64, String) {
    let Answer::Http(http) = answer else { panic!("{answer:?}") };
    if answer.is_marked_replay() {
        return (http.status, "replayed".into());
    }
    let body: Value = serde_json::from_str(&http.body).unwrap_or_default();
    (http.status, body["code"].as_str().unwrap_or_default().to_owned())
}
