mod payloads;
mod unreadable;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lambda_idempotency::{
    Error, ErrorKind, Idempotency, Invocation, Key, KeyFields, Operation, RunError, current,
    lambda::{event::IntoKey, keys},
    settings::{Execution, Recording},
};
use lambda_runtime::{Context, Diagnostic, LambdaEvent, tower::ServiceExt};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tower::{Layer, Service, service_fn};

use crate::{api::CANARY, recording, store::empty_store};

#[derive(Deserialize)]
struct Order {
    id: Option<String>,
    #[serde(default)]
    fail: bool,
    #[serde(default)]
    panic: bool,
}

fn key(order: &Order) -> Result<Option<Key>, Error> {
    order.id.as_ref().map(Key::new).transpose()
}

fn idempotency() -> Idempotency {
    let idempotency = Idempotency::builder(empty_store()).function("orders").build().unwrap();
    recording::shown(&idempotency);
    idempotency
}

/// Builds an event with a canary in its `id`, which is the key, so that the audit in `silence.rs` finds any output that
/// contains the key. An empty `id` stays empty.
fn event(json: &str) -> LambdaEvent<Box<RawValue>> {
    let known = [r#""id":""#, r#""id": ""#]
        .into_iter()
        .fold(json.to_owned(), |json, id| json.replace(id, &format!("{id}{CANARY}-")));
    as_it_is(if json.contains(r#""id":"""#) { json } else { &known })
}

fn as_it_is(json: &str) -> LambdaEvent<Box<RawValue>> {
    recording::secrets(|secrets| secrets.add_body(json));
    LambdaEvent::new(RawValue::from_string(json.to_owned()).unwrap(), Context::default())
}

#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The handler of most tests. It counts its runs, and fails or panics if the order says so.
fn handler(
    runs: &Runs,
) -> impl Service<
    LambdaEvent<Order>,
    Response = String,
    Error = lambda_runtime::Error,
    Future = impl Future<Output = Result<String, lambda_runtime::Error>> + Send,
> + Clone
+ Send
+ 'static {
    let runs = runs.clone();
    service_fn(move |event: LambdaEvent<Order>| {
        let runs = runs.clone();
        async move {
            let nth = runs.next();
            assert!(!event.payload.panic, "this panic is intended");
            recording::secrets(|secrets| secrets.add(format!("order {nth}")));
            if event.payload.fail { Err("out of stock".into()) } else { Ok(format!("order {nth}")) }
        }
    })
}

fn kind<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RunError<E>>) -> ErrorKind {
    match result {
        Err(RunError::Idempotency(error)) => {
            recording::error(&error);
            error.kind()
        }
        other => panic!("not the library's error: {other:?}"),
    }
}

#[tokio::test]
async fn repeated_events_run_once_and_replay() {
    let runs = Runs::default();
    let service = idempotency().events(key).layer(handler(&runs));
    let first = service.clone().oneshot(event(r#"{"id":"17","note":"caf\u00e9"}"#)).await.unwrap();
    let again = service.clone().oneshot(event(r#"{ "note": "café", "id": "17" }"#)).await.unwrap();
    assert_eq!((first.get(), again.get(), runs.count()), (r#""order 1""#, r#""order 1""#, 1));
    // `note` isn't a field of `Order`, but it's compared too: the same key with another note is a mismatch.
    let other = service.oneshot(event(r#"{"id":"17","note":"tea"}"#)).await;
    assert_eq!((kind(other), runs.count()), (ErrorKind::Mismatch, 1));
}

/// When EventBridge replays an event from an archive, it adds the field `replay-name` and keeps the detail. An event
/// with the same id and another detail is a mismatch.
#[tokio::test]
async fn archive_replays_get_the_recorded_answer() {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = service_fn(move |_: LambdaEvent<serde_json::Value>| {
        let nth = counted.next();
        async move { Ok::<_, lambda_runtime::Error>(nth) }
    });
    let service = idempotency().events_by::<serde_json::Value>(keys::event_bridge()).layer(handler);
    let put = serde_json::json!({
        "version": "0", "id": "archived-e7f3", "source": "archived-shop", "detail-type": "archived-order",
        "account": "archived-account", "time": "archived-time", "resources": [], "detail": { "order": 17 },
    });
    let mut again = put.clone();
    again["replay-name"] = "archived-november".into();
    for delivery in [&put, &again] {
        let answer = service.clone().oneshot(event(&delivery.to_string())).await.unwrap();
        assert_eq!((answer.get(), runs.count()), ("1", 1));
    }
    again["detail"]["order"] = 18.into();
    let other = service.clone().oneshot(event(&again.to_string())).await;
    assert_eq!((kind(other), runs.count()), (ErrorKind::Mismatch, 1));
}

#[tokio::test]
async fn changed_sns_attributes_are_mismatches() {
    let service = idempotency()
        .events_by(keys::sns())
        .layer(service_fn(async |_: LambdaEvent<serde_json::Value>| Ok::<_, lambda_runtime::Error>("done")));
    let mut message = serde_json::json!({ "Records": [{
        "EventSource": "aws:sns",
        "Sns": { "MessageId": "sns-0f3b", "Message": "sns-kettle", "MessageAttributes": { "channel": "sns-web" } },
    }] });
    service.clone().oneshot(event(&message.to_string())).await.unwrap();
    message["Records"][0]["Sns"]["MessageAttributes"]["channel"] = "sns-shop".into();
    assert_eq!(kind(service.oneshot(event(&message.to_string())).await), ErrorKind::Mismatch);
}

#[tokio::test]
async fn numbers_are_compared_exactly() {
    let runs = Runs::default();
    let service = idempotency().events(key).layer(handler(&runs));
    service.clone().oneshot(event(r#"{"id":"17","n":9007199254740993}"#)).await.unwrap();
    let other = service.oneshot(event(r#"{"id":"17","n":9007199254740992}"#)).await;
    assert_eq!(kind(other), ErrorKind::Mismatch);
}

#[tokio::test]
async fn every_result_is_replayed_exactly() {
    async fn both<T: Serialize + Clone + Send + Sync + 'static>(value: T) -> (String, String) {
        let service = idempotency().events(key).layer(service_fn(move |_: LambdaEvent<Order>| {
            let value = value.clone();
            async move { Ok::<_, lambda_runtime::Error>(value) }
        }));
        let first = service.clone().oneshot(event(r#"{"id":"1"}"#)).await.unwrap();
        let again = service.oneshot(event(r#"{"id":"1"}"#)).await.unwrap();
        (first.get().to_owned(), again.get().to_owned())
    }
    for (first, again) in [
        both(()).await,
        both(None::<u8>).await,
        both(0).await,
        both(false).await,
        both("").await,
        both(Vec::<u8>::new()).await,
        both(u64::MAX).await,
        both(0.1 + 0.2).await,
        both("café ☕").await,
    ] {
        assert_eq!(first, again);
    }
}

#[tokio::test]
async fn keyless_events_are_refused_or_run_unprotected() {
    let runs = Runs::default();
    let refusing = idempotency().events(key).layer(handler(&runs));
    assert_eq!(kind(refusing.oneshot(event("{}")).await), ErrorKind::MissingKey);
    assert_eq!(runs.count(), 0);
    let running = idempotency().events(key).required(false).layer(handler(&runs));
    for nth in 1..=2 {
        let answer = running.clone().oneshot(event("{}")).await.unwrap();
        assert_eq!(answer.get(), format!("\"order {nth}\""));
    }
}

#[tokio::test]
async fn bad_keys_and_events_run_nothing() {
    let runs = Runs::default();
    let service = idempotency().events(key).layer(handler(&runs));
    assert_eq!(kind(service.clone().oneshot(event(r#"{"id":""}"#)).await), ErrorKind::InvalidKey);
    let Err(RunError::Idempotency(error)) = service.oneshot(event(r#"{"id":["c4n4ry-secret"]}"#)).await
    else {
        panic!("not refused")
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!format!("{error:?}").contains("c4n4ry-secret"), "{error:?}");
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn invalid_event_errors_name_only_missing_fields() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Strict {
        id: String,
        amount: u64,
    }
    let layer = idempotency().events(|strict: &Strict| Key::new(&strict.id));
    let handler = service_fn(|_: LambdaEvent<Strict>| async { Ok::<_, lambda_runtime::Error>("ran") });
    let refused = async |json: &str| {
        let error = layer.layer(handler).oneshot(as_it_is(json)).await.unwrap_err();
        let RunError::Idempotency(error) = error else { panic!("the handler ran: {error:?}") };
        assert_eq!(error.kind(), ErrorKind::Invalid);
        recording::error(&error);
        recording::shown(&layer);
        format!("{error}; {error:?}")
    };
    let missing = refused(r#"{"id": "c4n4ry-secret"}"#).await;
    assert!(missing.contains("it has no field `amount`, line 1, column 23; nothing ran"), "{missing}");
    for wrong in [
        r#"{"id": "id", "amount": "c4n4ry-secret"}"#,
        r#"["c4n4ry-secret"]"#,
        r#""missing field `c4n4ry-secret`""#,
    ] {
        let told = refused(wrong).await;
        assert!(told.contains("doesn't parse as") && !told.contains("c4n4ry-secret"), "{told}");
    }
}

#[tokio::test]
async fn handler_errors_pass_through_and_release_key() {
    let runs = Runs::default();
    let service = idempotency().events(key).layer(handler(&runs));
    for _ in 0..2 {
        let Err(RunError::Handler(error)) = service.clone().oneshot(event(r#"{"id":"1","fail":true}"#)).await
        else {
            panic!("not the handler's error")
        };
        assert_eq!(error.to_string(), "out of stock");
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn at_most_once_failures_are_replayed() {
    let runs = Runs::default();
    let idempotency = Idempotency::builder(empty_store())
        .function("orders")
        .execution(Execution::AtMostOnce)
        .build()
        .unwrap();
    let service = idempotency.events(key).layer(handler(&runs));
    let mut diagnostics = Vec::new();
    for _ in 0..2 {
        let error = service.clone().oneshot(event(r#"{"id":"1","fail":true}"#)).await.unwrap_err();
        diagnostics.push(Diagnostic::from(error));
    }
    assert_eq!(diagnostics[0], diagnostics[1]);
    assert_eq!(diagnostics[0].error_message, "out of stock");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn panics_propagate_and_free_the_key() {
    let runs = Runs::default();
    let service = idempotency().events(key).layer(handler(&runs));
    let panicking = tokio::spawn(service.clone().oneshot(event(r#"{"id":"1","panic":true}"#)));
    assert!(panicking.await.unwrap_err().is_panic());
    let again = tokio::spawn(service.oneshot(event(r#"{"id":"1","panic":true}"#)));
    assert!(again.await.unwrap_err().is_panic(), "the first panic must free the key");
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn errors_reach_lambda_with_stable_types() {
    let service = idempotency().events(key).layer(handler(&Runs::default()));
    let error = service.oneshot(event("{}")).await.unwrap_err();
    assert_eq!(Diagnostic::from(error).error_type, "Idempotency.MissingKey");
}

#[tokio::test]
async fn the_handler_sees_its_claim() {
    let service = idempotency().events(key).layer(service_fn(|_: LambdaEvent<Order>| async {
        let claim = current().ok_or("no claim")?;
        Ok::<_, lambda_runtime::Error>(claim.key().as_str().to_owned())
    }));
    let answer = service.oneshot(event(r#"{"id":"1"}"#)).await.unwrap();
    assert!(answer.get().starts_with("\"orders/event#"), "{}", answer.get());
}

#[tokio::test]
async fn keys_are_separate_for_each_tenant() {
    let runs = Runs::default();
    let service = idempotency().events(key).layer(handler(&runs));
    for tenant in [None, Some("c4n4ry-a"), Some("c4n4ry-b"), Some("c4n4ry-a")] {
        recording::secrets(|secrets| secrets.add(tenant.unwrap_or_default()));
        let mut event = event(r#"{"id":"1"}"#);
        event.context.tenant_id = tenant.map(str::to_owned);
        service.clone().oneshot(event).await.unwrap();
    }
    assert_eq!(runs.count(), 3);
}

/// Both tenants have an invoice with the same key. Each tenant's step `charge` must have its own record, outside and
/// inside a layer.
#[tokio::test]
async fn steps_are_separate_for_each_tenant() {
    let idempotency = idempotency();
    let charge = idempotency.operation("charge").unwrap();
    let invoice = Key::new("invoice-17").unwrap();
    for (nth, tenant) in ["c4n4ry-blue", "c4n4ry-green"].into_iter().enumerate() {
        recording::secrets(|secrets| secrets.add(tenant));
        let mut context = Context::default();
        context.tenant_id = Some(tenant.to_owned());
        let of_context = idempotency.for_context(&context).operation("charge").unwrap();
        let receipt = async |charge: &Operation| {
            charge.run(&invoice, &1, || async { Ok::<_, std::io::Error>(nth) }).await.unwrap()
        };
        assert_eq!(receipt(&of_context).await, nth, "each tenant must get its own receipt");
        assert_ne!(of_context.stored_key(&invoice), charge.stored_key(&invoice));
        let of_caller = of_context.for_caller("c4n4ry-caller").unwrap();
        assert_eq!(receipt(&of_caller).await, nth, "a caller's step must keep the tenant");

        let mut event = event(&format!(r#"{{"id":"{nth}"}}"#));
        event.context.tenant_id = Some(tenant.to_owned());
        let (step, at, expected) = (charge.clone(), invoice.clone(), of_context.stored_key(&invoice));
        let service = idempotency.events(key).layer(service_fn(move |_: LambdaEvent<Order>| {
            let (step, at, expected) = (step.clone(), at.clone(), expected.clone());
            async move {
                assert_eq!(step.stored_key(&at), expected, "a step in a layer must have the event's tenant");
                let bare = step.for_invocation(Invocation::unknown());
                assert_eq!(bare.stored_key(&at), expected, "setting another deadline must keep the tenant");
                Ok::<_, lambda_runtime::Error>(())
            }
        }));
        service.oneshot(event).await.unwrap();
    }
}

#[tokio::test]
async fn operations_run_with_a_lambda_context() {
    let idempotency = idempotency();
    let mut context = Context::default();
    context.request_id = "request".into();
    let answer = idempotency
        .for_context(&context)
        .operation("step")
        .unwrap()
        .run(Key::new("k").unwrap(), &1, || async { Ok::<_, std::io::Error>(7) })
        .await
        .unwrap();
    assert_eq!(answer, 7);
}

/// Checks that a layered handler meets the trait bounds of `lambda_runtime::run` and `run_concurrent`. No test calls
/// this.
#[expect(dead_code, reason = "it only has to compile")]
async fn it_works_under_run_and_run_concurrent() -> Result<(), lambda_runtime::Error> {
    let idempotency = idempotency();
    let service = || idempotency.events(|order: &Order| Key::new(order.id.as_deref().unwrap_or_default()));
    lambda_runtime::run(service().layer(handler(&Runs::default()))).await?;
    lambda_runtime::run_concurrent(service().layer(handler(&Runs::default()))).await
}

#[test]
fn key_closures_may_return_options_and_results() {
    let key = || Key::new("k").unwrap();
    assert!(key().into_key().unwrap().is_some());
    assert!(None::<Key>.into_key().unwrap().is_none());
    assert!(Ok::<_, Error>(Some(key())).into_key().unwrap().is_some());
    assert!(Key::new("").into_key().is_err());
}

#[tokio::test]
async fn keys_come_from_fields_or_request_ids() {
    let runs = Runs::default();
    let by_fields = KeyFields::new(["/id", "/line"]).unwrap();
    let service = idempotency().events_by::<Order>(by_fields).layer(handler(&runs));
    for (json, expected) in [
        (r#"{"id": "o", "line": 1}"#, Ok(1)),
        (r#"{"line": 1, "id": "o"}"#, Ok(1)),
        (r#"{"id": "o", "line": 2}"#, Ok(2)),
        (r#"{"id": "o"}"#, Ok(3)),
        (r#"{"id": null, "line": null}"#, Err(ErrorKind::MissingKey)),
    ] {
        let answer = service.clone().oneshot(event(json)).await;
        assert_eq!(kind_of(&answer), expected.err(), "{json}");
        assert_eq!(runs.count(), expected.unwrap_or(3), "{json}");
    }

    let service = idempotency().events_by_request_id::<Order>().layer(handler(&runs));
    for (request, runs_by_then) in [("r1", 4), ("r1", 4), ("r2", 5)] {
        let mut event = event("{}");
        event.context.request_id = request.into();
        service.clone().oneshot(event).await.unwrap();
        assert_eq!(runs.count(), runs_by_then);
    }
    let answer = service.oneshot(event("{}")).await;
    assert_eq!(kind_of(&answer), Some(ErrorKind::MissingKey));
}

#[tokio::test]
async fn only_chosen_fields_are_compared() {
    let runs = Runs::default();
    let layer = idempotency().events(key).fingerprint_fields(["/id", "/amount"]).unwrap();
    let service = layer.layer(handler(&runs));
    for (json, kind) in [
        (r#"{"id": "o", "amount": 1.50, "at": 1}"#, None),
        (r#"{"at": 2, "amount": 1.50, "id": "o"}"#, None),
        (r#"{"id": "o", "amount": 1.5, "at": 1}"#, Some(ErrorKind::Mismatch)),
        (r#"{"id": "o"}"#, Some(ErrorKind::Mismatch)),
    ] {
        assert_eq!(kind_of(&service.clone().oneshot(event(json)).await), kind, "{json}");
    }
    assert_eq!(runs.count(), 1);
    let error = idempotency().events(key).fingerprint_fields([]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// A replay returns the handler's answer unchanged, whatever its type.
#[tokio::test]
async fn every_answer_type_is_replayed_exactly() {
    async fn twice<R: Serialize + Clone + Send + Sync + 'static>(answer: R) {
        let expected = serde_json::to_string(&answer).unwrap();
        let runs = Runs::default();
        let counted = runs.clone();
        let service = idempotency().events(key).layer(service_fn(move |_: LambdaEvent<Order>| {
            counted.next();
            let answer = answer.clone();
            async move { Ok::<_, lambda_runtime::Error>(answer) }
        }));
        for _ in 0..2 {
            let answer = service.clone().oneshot(event(r#"{"id": "o"}"#)).await.unwrap();
            assert_eq!(answer.get(), expected);
        }
        assert_eq!(runs.count(), 1, "{expected}");
    }
    twice(()).await;
    twice(None::<u8>).await;
    twice(0).await;
    twice(false).await;
    twice("").await;
    twice(Vec::<u8>::new()).await;
    twice(9_007_199_254_740_993_u64).await;
    twice(u64::MAX).await;
    twice(i64::MIN).await;
    twice(0.1 + 0.2).await;
    twice(1e300).await;
    twice("caf\u{e9} \u{1f600} \u{0}\n\"").await;
    twice(serde_json::json!({"b": [1.0, {"a": null}], "a": "x"})).await;
}

#[tokio::test]
async fn operations_with_equal_keys_have_separate_claims() {
    let idempotency = idempotency();
    let runs = Runs::default();
    let charge = idempotency.events(key).operation("charge").unwrap().layer(handler(&runs));
    let ship = idempotency.events(key).operation("ship").unwrap().layer(handler(&runs));
    for _ in 0..2 {
        charge.clone().oneshot(event(r#"{"id": "o"}"#)).await.unwrap();
        ship.clone().oneshot(event(r#"{"id": "o"}"#)).await.unwrap();
    }
    assert_eq!(runs.count(), 2);

    // Operations inside a handler may use the handler's key: each operation has its own claim. Inside an operation,
    // `current()` returns the operation's claim.
    let steps = Runs::default();
    let (inner, counted) = (idempotency.clone(), steps.clone());
    let nest = idempotency.events(key).operation("nest").unwrap().layer(service_fn(
        move |order: LambdaEvent<Order>| {
            let (inner, counted) = (inner.clone(), counted.clone());
            async move {
                let order = Key::new(order.payload.id.unwrap())?;
                let outer = current().unwrap().key().clone();
                let step = |name: &'static str| {
                    let (inner, counted, order) =
                        (inner.operation(name).unwrap(), counted.clone(), order.clone());
                    async move {
                        let run = inner.run(order, "payload", || async move {
                            tokio::task::yield_now().await;
                            counted.next();
                            Ok::<_, std::io::Error>(current().unwrap().key().to_string())
                        });
                        run.await.map_err(|error| error.to_string())
                    }
                };
                let (first, second) = tokio::join!(step("first"), step("second"));
                assert_eq!(*current().unwrap().key(), outer, "the outer claim must be current again");
                let mut keys = vec![outer.to_string(), first?, second?, step("first").await?];
                keys.sort();
                keys.dedup();
                Ok::<_, lambda_runtime::Error>(keys.len())
            }
        },
    ));
    for _ in 0..2 {
        let answer = nest.clone().oneshot(event(r#"{"id": "o"}"#)).await.unwrap();
        assert_eq!((answer.get(), steps.count()), ("3", 2));
    }
}

fn kind_of<T, E>(answer: &Result<T, RunError<E>>) -> Option<ErrorKind> {
    match answer {
        Err(RunError::Idempotency(error)) => Some(error.kind()),
        _ => None,
    }
}

/// With `max_response(0)`, no answer is stored. Duplicates of a success get the substitute from `on_not_retained`.
/// Duplicates of a failure still get an error.
#[tokio::test]
async fn duplicates_of_unretained_answers_get_the_substitute() {
    let done = serde_json::json!({"done": true});
    for (json, first, again) in [
        (r#"{"id":"a"}"#, Some("\"order 1\""), Some(r#"{"done":true}"#)),
        (r#"{"id":"b","fail":true}"#, None, None),
    ] {
        let builder = Idempotency::builder(empty_store()).function("orders").settings(|s| s.max_response = 0);
        let idempotency = builder.settings(|s| s.on_handler_error = Recording::Record).build().unwrap();
        recording::shown(&idempotency);
        let service = idempotency.events(key).on_not_retained(done.clone()).layer(handler(&Runs::default()));
        for expected in [first, again] {
            let answer = service.clone().oneshot(event(json)).await.ok();
            assert_eq!(answer.as_deref().map(RawValue::get), expected);
        }
    }
}
