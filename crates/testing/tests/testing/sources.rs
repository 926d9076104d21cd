//! The kit's events of every source, each delivered through the wrapper for its source.

use std::time::Duration;

use lambda_http::{Body, Request, Response, service_fn, tower::ServiceBuilder};
use lambda_idempotency::{
    ErrorKind, Failure, Idempotency, Key, current,
    lambda::{batch::SqsMessage, keys},
    staging,
};
use lambda_idempotency_testing::{Bench, Event, FrontEnd, Function, Given, Ledger, Survival, survive};
use lambda_runtime::LambdaEvent;
use serde_json::{Value, json, value::RawValue};

use super::Error;

async fn effect(ledger: Ledger, detail: String) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("effect");
    Ok(ledger.call("effect", Some(&key), detail).await?)
}

fn http(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handler = service_fn(move |request: Request| {
        let ledger = ledger.clone();
        async move {
            let body = String::from_utf8_lossy(request.body().as_ref()).into_owned();
            let receipt = effect(ledger, body).await?;
            Ok::<_, Error>(Response::builder().status(201).body(Body::Text(receipt))?)
        }
    });
    Function::http(ServiceBuilder::new().layer(bench.idempotency().http().required(true)).service(handler))
}

const FRONT_ENDS: [FrontEnd; 4] =
    [FrontEnd::HttpApi, FrontEnd::RestApi, FrontEnd::FunctionUrl, FrontEnd::LoadBalancer];

#[test]
fn requests_of_every_front_end_are_replayed() {
    for front_end in FRONT_ENDS {
        let bench = Bench::new();
        let mut function = http(&bench);
        let request = |caller: &str, cents: u64| {
            let request = Event::request(front_end, "POST", "/payments").key("8e03978e");
            let request = request.caller("https://login.example.com", caller);
            request.json(&json!({ "cents": cents })).event()
        };
        let first = bench.deliver(&mut function, &request("anna", 1250));
        assert_eq!(first.assert_ran().answer().unwrap().status(), Some(201), "{front_end:?}");
        bench.deliver(&mut function, &request("anna", 1250).retried(1)).assert_replayed();
        bench.deliver(&mut function, &request("anna", 1300)).assert_refused(ErrorKind::Mismatch);
        // A load balancer verifies no caller, so the second caller's request would be a replay.
        if front_end != FrontEnd::LoadBalancer {
            bench.deliver(&mut function, &request("otto", 1250)).assert_ran();
        }
        let without = Event::request(front_end, "POST", "/payments").event();
        bench.deliver(&mut function, &without).assert_refused(ErrorKind::MissingKey);
    }
}

#[test]
fn http_handler_survives() {
    let request = |key| Event::request(FrontEnd::HttpApi, "POST", "/payments").key(key);
    let event = request("8e03978e").json(&json!({ "cents": 1250 })).event();
    let other = request("c1d2e3f4").json(&json!({ "cents": 990 })).event();
    let conflicting = request("8e03978e").json(&json!({ "cents": 990 })).event();
    let event = event.other(other.text()).conflicting(conflicting.text());
    Survival::new().schedules(150).play(http, &event).assert_safe();
}

async fn ship(message: SqsMessage, ledger: Ledger) -> Result<String, Failure> {
    effect(ledger, message.body().to_owned()).await.map_err(Failure::transient)
}

fn sqs(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handler = move |message: SqsMessage| ship(message, ledger.clone());
    Function::lambda::<_, Box<RawValue>>(
        bench.idempotency().sqs(|message| Key::from_json(message, "/id"), handler),
    )
}

#[test]
fn queue_redelivers_only_failed_messages() {
    let bodies = [r#"{"id":"order-17"}"#, r#"{"id":"order-18"}"#];
    let grouped = bodies.map(|body| ("customer-1", body));
    for event in [Event::sqs("orders", bodies), Event::fifo("orders.fifo", grouped)] {
        let bench = Bench::new();
        let mut function = sqs(&bench);
        bench.fail_effect();
        let first = bench.deliver(&mut function, &event);
        assert!(!first.answer().unwrap().returned().is_empty());
        bench.deliver(&mut function, &event.retried(1)).assert_ran();
        bench.deliver(&mut function, &event.retried(2)).assert_replayed();
        bench.ledger().assert_count("effect", 2);
        survive(sqs, &event).assert_safe();
    }
}

/// Calls `by`, which builds a function: a handler inside the layer for one source's events.
fn of_source(bench: &Bench, by: fn(&Idempotency, Ledger) -> Function) -> Function {
    by(&bench.idempotency(), bench.ledger())
}

macro_rules! typed {
    ($key:expr) => {
        typed!(by |idempotency: &Idempotency| idempotency.events_by::<Value>($key))
    };
    (by $layer:expr) => {
        |idempotency, ledger| {
            let handler = service_fn(move |event: LambdaEvent<Value>| {
                let ledger = ledger.clone();
                async move { effect(ledger, event.payload.to_string()).await }
            });
            let layer = ($layer)(idempotency);
            Function::lambda::<_, Box<RawValue>>(ServiceBuilder::new().layer(layer).service(handler))
        }
    };
}

#[test]
fn events_of_every_source_are_replayed() {
    type Build = fn(&Idempotency, Ledger) -> Function;
    let sources: [(Event, Build); 4] = [
        (Event::event_bridge("shop", "OrderPlaced", &json!({ "id": 17 })), typed!(keys::event_bridge())),
        (Event::schedule("sweep", "2026-11-20T09:00:00Z"), typed!(keys::scheduler())),
        (Event::sns("orders", "order 17"), typed!(keys::sns())),
        (Event::s3("uploads", "invoice.pdf"), typed!(keys::s3())),
    ];
    for (event, by) in sources {
        let bench = Bench::new();
        let mut function = of_source(&bench, by);
        bench.deliver(&mut function, &event).assert_ran();
        bench.deliver(&mut function, &event.retried(1)).assert_replayed();
    }
}

/// The ids come from the content and the place, so a redelivery keeps them.
#[test]
fn ids_differ_with_the_content() {
    let ids = |event: &Event| -> Vec<String> {
        let json: Value = serde_json::from_str(event.text()).unwrap();
        let of = |record: &Value| {
            let fields = [
                "/messageId",
                "/attributes/SequenceNumber",
                "/kinesis/sequenceNumber",
                "/dynamodb/SequenceNumber",
                "/eventID",
                "/Sns/MessageId",
                "/s3/object/sequencer",
                "/id",
                "/requestContext/requestId",
            ];
            let found = fields.iter().filter_map(|field| record.pointer(field)?.as_str());
            found.map(str::to_owned).collect::<Vec<_>>()
        };
        match json["Records"].as_array() {
            Some(records) => records.iter().flat_map(of).collect(),
            None => of(&json),
        }
    };
    let event_of = |content: &str| {
        let item = json!({ "id": { "S": content } });
        [
            Event::sqs("orders", [content, content]),
            Event::fifo("orders.fifo", [("customer-1", content), ("customer-1", content)]),
            Event::kinesis("orders", [("customer-1", content), ("customer-1", content)]),
            Event::dynamodb_stream("orders", &["id"], [item.clone(), item]),
            Event::event_bridge("shop", "OrderPlaced", &json!({ "id": content })),
            Event::schedule(content, "2026-11-20T09:00:00Z"),
            Event::sns("orders", content),
            Event::s3("uploads", content),
            Event::request(FrontEnd::HttpApi, "POST", "/payments").body(content).event(),
        ]
    };
    for (one, other) in event_of("one").iter().zip(&event_of("other")) {
        let (mut all, before) = (ids(one), ids(one).len());
        if !one.text().contains("requestContext") {
            assert_eq!(ids(&one.retried(1)), all, "{one:?}");
        }
        assert!(before > 0, "{one:?}");
        all.extend(ids(other));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * before, "{one:?}");
    }
    // A later record has a higher number.
    let fifo = ids(&Event::fifo("orders.fifo", ["b", "a", "c"].map(|body| ("customer-1", body))));
    assert!(fifo[1] < fifo[3] && fifo[3] < fifo[5], "{fifo:?}");
}

#[test]
fn stream_handlers_survive() {
    let kinesis = |bench: &Bench| {
        let ledger = bench.ledger();
        let handler = move |record: lambda_idempotency::lambda::batch::KinesisRecord| {
            let ledger = ledger.clone();
            async move {
                let detail = String::from_utf8_lossy(record.data()).into_owned();
                effect(ledger, detail).await.map_err(Failure::transient)
            }
        };
        let worker = bench.idempotency().kinesis(|record| record.sequence_key(), handler);
        Function::lambda::<_, Box<RawValue>>(worker)
    };
    let event = Event::kinesis("orders", [("customer-1", "one"), ("customer-2", "two")]);
    Survival::new().schedules(100).play(kinesis, &event).assert_safe();
    let table = |bench: &Bench| {
        let ledger = bench.ledger();
        let handler = move |record: lambda_idempotency::lambda::batch::DynamoDbRecord| {
            let ledger = ledger.clone();
            async move { effect(ledger, format!("{:?}", record.event_key())).await.map_err(Failure::transient) }
        };
        let worker = bench.idempotency().dynamodb_stream(|record| record.event_key(), handler);
        Function::lambda::<_, Box<RawValue>>(worker)
    };
    let event = Event::dynamodb_stream("orders", &["id"], [json!({ "id": { "S": "order-17" } })]);
    Survival::new().schedules(50).timeout(Duration::from_secs(60)).play(table, &event).assert_safe();
}

#[test]
fn request_id_keys_need_asynchronous_invocation() {
    let by_request_id = |bench: &Bench| {
        of_source(bench, typed!(by |idempotency: &Idempotency| idempotency.events_by_request_id::<Value>()))
    };
    let event = Event::json(r#"{"order":17}"#);
    let retried = Survival::new().schedules(60);
    retried.play(by_request_id, &event.clone().invoked_asynchronously()).assert_safe();
    let repeated_by_its_caller = retried.play(by_request_id, &event);
    assert!(!repeated_by_its_caller.findings().is_empty());
}

/// The function doesn't compare the note, and its effect contains the message's id, which another message has too.
#[test]
fn ids_in_effects_raise_no_alarm() {
    let make = |bench: &Bench| {
        let ledger = bench.ledger();
        let handler = move |message: SqsMessage| {
            let ledger = ledger.clone();
            async move { effect(ledger, message.message_id().to_owned()).await.map_err(Failure::transient) }
        };
        let worker = bench.idempotency().sqs(|message| Key::from_json(message, "/id"), handler);
        Function::lambda::<_, Box<RawValue>>(worker.fingerprint_fields(["/id"]).unwrap())
    };
    survive(make, &Event::sqs("orders", [r#"{"id":"order-17","note":"by noon"}"#])).assert_safe();
}

#[test]
fn failed_message_holds_back_only_its_group() {
    let body = |id: &str| format!(r#"{{"id":"{id}"}}"#);
    let event = Event::fifo(
        "orders.fifo",
        [("anna", body("a1")), ("otto", body("o1")), ("anna", body("a2")), ("otto", body("o2"))],
    );
    survive(sqs, &event).assert_safe();
    let bench = Bench::new();
    let mut function = sqs(&bench);
    bench.fail_effect();
    let first = bench.deliver(&mut function, &event);
    assert_eq!(first.answer().unwrap().returned().len(), 2, "{first}");
    let done: Vec<String> = first.effects().iter().map(|effect| effect.detail.clone()).collect();
    assert!([["a1", "a2"], ["o1", "o2"]].contains(&[&done[0][7..9], &done[1][7..9]]), "{done:?}");
}

#[test]
fn reports_say_why_records_return() {
    let worker = |bench: &Bench| {
        let ship = async |_: SqsMessage| Ok::<_, Failure>(());
        Function::lambda::<_, Box<RawValue>>(
            bench.idempotency().sqs(|message| Key::from_json(message, "/orderId"), ship),
        )
    };
    let report = survive(worker, &Event::sqs("orders", [r#"{"order_id":17}"#])).to_string();
    for part in [
        "MissingKey: it has no idempotency key",
        "the top level has `order_id`, so {",
        "→ No key was claimed",
    ] {
        assert!(report.contains(part), "{part} isn't in\n{report}");
    }
    let failing = |bench: &Bench| {
        let ship = async |_: SqsMessage| Err::<(), _>(Failure::from("the warehouse has no such article"));
        Function::lambda::<_, Box<RawValue>>(bench.idempotency().sqs(SqsMessage::message_key, ship))
    };
    let report = survive(failing, &Event::sqs("orders", ["17"])).to_string();
    assert!(report.contains("HandlerError: the warehouse has no such article, so {"), "{report}");
}

#[test]
fn reports_show_whole_errors() {
    let text = "a transfer is only made under its claim. ".repeat(8);
    let handler = move |_: LambdaEvent<Value>| {
        let error = Error::from(text.as_str());
        async move { Err::<(), _>(error) }
    };
    let report = survive(|_: &Bench| Function::lambda(service_fn(handler.clone())), &Event::json("17"));
    let whole =
        format!("the error Box<dyn Error>: {}", "a transfer is only made under its claim. ".repeat(8));
    assert!(report.to_string().contains(whole.trim_end()), "{report}");
}

#[test]
fn connections_are_explained_as_missing_network() {
    let connecting = |_: &Bench| {
        Function::new(async |_: Value| {
            tokio::net::TcpStream::connect(("127.0.0.1", 1)).await?;
            Ok::<_, Error>(())
        })
    };
    let report = survive(connecting, &Event::json("17")).to_string();
    assert!(report.contains("→ The kit has no network"), "{report}");
}

#[test]
fn answers_have_headers() {
    for front_end in FRONT_ENDS {
        let bench = Bench::new();
        bench.given(Given::InProgress(Duration::from_secs(3)));
        let request = Event::request(front_end, "POST", "/payments").key("8e03978e").event();
        let refused = bench.deliver(&mut http(&bench), &request);
        let header = |name| refused.answer().unwrap().header(name);
        assert_eq!(header("Retry-After").as_deref(), Some("5"), "{front_end:?}");
        assert_eq!(header("idempotent-replayed"), None);
    }
}

#[test]
fn dynamodb_limits_are_checked() {
    use aws_sdk_dynamodb::types::{AttributeValue, Delete};
    use lambda_idempotency::store::dynamodb::Transaction;

    let delete = |account: &str| {
        let id = AttributeValue::S(account.to_owned());
        Delete::builder().table_name("accounts").key("id", id).build().unwrap()
    };
    let closing = move |bench: &Bench| {
        let idempotency = bench.idempotency();
        Function::new(move |accounts: [String; 2]| {
            let idempotency = idempotency.clone();
            async move {
                let close = async || {
                    let writes = Transaction::new().delete(delete(&accounts[0])).delete(delete(&accounts[1]));
                    staging().ok_or("not protected")?.add(writes)?;
                    Ok::<_, Error>(())
                };
                Ok::<_, Error>(idempotency.operation("close")?.run(Key::new("1")?, &accounts, close).await?)
            }
        })
    };
    let bench = Bench::new();
    bench.deliver(&mut closing(&bench), &Event::json(r#"["anna","otto"]"#)).assert_ran();
    let twice = Bench::new();
    let refused = twice.deliver(&mut closing(&twice), &Event::json(r#"["anna","anna"]"#));
    refused.assert_refused(ErrorKind::Invalid);
    assert!(refused.to_string().contains("are on the same item"), "{refused}");
}
