//! A handler's writes in one `TransactWriteItems` with the record: the request, DynamoDB's possible answers, and
//! whether the store reports a failed transaction as not applied or as maybe applied.

mod alone;
mod secrets;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put as PutItem, ReturnValuesOnConditionCheckFailure::AllOld,
    Update,
};
use lambda_idempotency::{
    Idempotency, Key, RunError, staging,
    store::{
        CommitOutcome, Outcome, Place, Put, PutOutcome, Record, State, Store, StoreError, StoreErrorKind,
        StoredResponse,
        dynamodb::{Declined, DynamoDbStore, Transaction},
    },
};
use testkit::clock::SetClock;
use testkit::puts::{self, Settlement};

use super::{
    emulator::{TABLE, Table, hasty, on, resending},
    fixtures::{
        SETTLED_UNTIL, completed, concluded, inline, item, key, lasting_lock, owner, s, settle, started,
        with_state,
    },
    wire::{Reply, Wire},
};

const TOKEN: &str = "01234567-89ab-8def-8123-456789abcdef";
const EFFECT: &str = "an effect of the handler";

fn put(id: &str) -> PutItem {
    let put = PutItem::builder().table_name(TABLE).item("id", s(id)).item("colour", s("red"));
    put.condition_expression("attribute_not_exists(id)")
        .return_values_on_condition_check_failure(AllOld)
        .build()
        .unwrap()
}

/// An update that counts how often it's applied.
fn count(id: &str) -> Update {
    let update = Update::builder().table_name(TABLE).key("id", s(id)).update_expression("ADD n :one");
    update.expression_attribute_values(":one", AttributeValue::N("1".into())).build().unwrap()
}

fn exists(id: &str) -> ConditionCheck {
    let check = ConditionCheck::builder().table_name(TABLE).key("id", s(id));
    check.condition_expression("attribute_exists(id)").build().unwrap()
}

fn one() -> Transaction {
    Transaction::new().update(count(EFFECT))
}

fn complete() -> Put {
    settle(Settlement::Complete(inline(), SETTLED_UNTIL))
}

fn conclude(seen: Option<&Record>) -> Put {
    puts::conclude(seen, if seen.is_some() { concluded() } else { completed() })
}

async fn commit(
    store: &DynamoDbStore,
    write: &Put,
    writes: &Transaction,
) -> Result<CommitOutcome, StoreError> {
    store.transactions().unwrap().commit(&key(), write, writes, TOKEN).await
}

fn written(committed: Result<CommitOutcome, StoreError>) -> PutOutcome {
    match committed.unwrap() {
        CommitOutcome::Answered(written) => written,
        CommitOutcome::Declined(_) => panic!("a condition of the handler failed"),
    }
}

/// Returns the position of each failed condition, and whether DynamoDB returned the item that failed the condition.
fn declined(committed: Result<CommitOutcome, StoreError>) -> Vec<(usize, bool)> {
    let CommitOutcome::Declined(details) = committed.unwrap() else { panic!("no condition failed") };
    let details: &dyn std::any::Any = &*details;
    let conditions = details.downcast_ref::<Declined>().unwrap().conditions();
    conditions.map(|(place, item)| (place, item.is_some())).collect()
}

impl Table {
    /// Returns how often the effect was applied.
    async fn effects(&self) -> u32 {
        let item = self.item(EFFECT).await;
        item.map_or(0, |item| item["n"].as_n().unwrap().parse().unwrap())
    }
}

/// DynamoDB's answer when it cancels a transaction. Each reason has a code and an optional item.
fn cancelled(reasons: &[(&str, Option<&str>)]) -> Reply {
    let reasons: Vec<_> = reasons
        .iter()
        .map(|(code, item)| match item {
            Some(item) => format!(r#"{{"Code":"{code}","Message":"why","Item":{item}}}"#),
            None if *code == "None" => r#"{"Code":"None"}"#.to_owned(),
            None => format!(r#"{{"Code":"{code}","Message":"why"}}"#),
        })
        .collect();
    let body = format!(
        r#"{{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled",
        "CancellationReasons":[{}]}}"#,
        reasons.join(",")
    );
    Reply::Answer(400, body)
}

fn json(body: &str) -> serde_json::Value {
    serde_json::from_str(body).unwrap()
}

/// Returns the body of the request that commits `write`, as indented JSON.
async fn sent(write: &Put) -> String {
    let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
    assert_eq!(written(commit(&on(&wire).await, write, &one()).await), PutOutcome::Applied);
    let [body] = wire.bodies().try_into().unwrap();
    serde_json::to_string_pretty(&json(&body)).unwrap() + "\n"
}

/// Compares `sent` with the golden file of this name. If `IDEMPOTENCY_WRITE_GOLDEN` is set, writes `sent` to the
/// file first.
fn golden(name: &str, sent: &str) {
    let path = format!("{}/tests/dynamodb/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("IDEMPOTENCY_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, sent).unwrap();
    }
    assert_eq!(sent, std::fs::read_to_string(&path).unwrap(), "{name}");
}

#[tokio::test]
async fn transaction_requests_are_pinned() {
    golden("commit_t8.json", &sent(&complete()).await);
    golden("commit_conclude_absent.json", &sent(&conclude(None)).await);
    let expired = with_state(State::Completed(inline()));
    golden("commit_conclude_settled.json", &sent(&conclude(Some(&expired))).await);
    golden("commit_conclude_stale.json", &sent(&conclude(Some(&started()))).await);
    golden("commit_conclude_lasting.json", &sent(&conclude(Some(&lasting_lock().into()))).await);
}

#[tokio::test]
async fn retries_send_the_same_request() {
    let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
    let store = on(&wire).await;
    let many = Transaction::new().put(put("1")).update(count("2")).check(exists("3"));
    for write in [complete(), conclude(None)] {
        for _ in 0..8 {
            assert_eq!(written(commit(&store, &write, &many).await), PutOutcome::Applied);
        }
    }
    let bodies: Vec<_> = wire.bodies().iter().map(|body| json(body)).collect();
    for same in bodies.chunks(8) {
        assert!(
            same.iter().all(|body| *body == same[0]),
            "the requests must be identical, although maps have no order"
        );
        assert_eq!(same[0]["ClientRequestToken"], TOKEN);
    }
    // The SDK's own retry sends identical bytes.
    let wire = Wire::scripted(None, &[Reply::internal(), Reply::Answer(200, "{}".into())]).await;
    assert_eq!(written(commit(&on(&wire).await, &complete(), &many).await), PutOutcome::Applied);
    let bodies = wire.bodies();
    assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]));
}

#[tokio::test]
async fn emulator_deduplicates_by_token() {
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    for _ in 0..3 {
        assert_eq!(written(commit(&table.store, &complete(), &one()).await), PutOutcome::Applied);
    }
    assert_eq!(
        (table.effects().await, table.store.read(&key()).await.unwrap()),
        (1, Some(completed_as_sent()))
    );
    // A different request with the same token is rejected. The error says that the write may have been applied, since
    // an earlier request with this token was applied.
    let error = commit(&table.store, &complete(), &one().update(count("more"))).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, true), "{error}");
    // A request with another token finds the completed record.
    let other = table.store.transactions().unwrap().commit(&key(), &complete(), &one(), "another").await;
    assert_eq!(written(other), PutOutcome::Refused(Some(completed_as_sent())));
    assert_eq!(table.effects().await, 1);
}

fn completed_as_sent() -> Record {
    complete().apply_to(Some(&started())).unwrap()
}

#[tokio::test]
async fn transactions_are_atomic_and_report_failed_conditions() {
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    table.put([("id".to_owned(), s("taken"))].into()).await;
    let writes = one().put(put("free")).put(put("taken")).check(exists("nobody")).check(exists("taken-not"));
    assert_eq!(
        declined(commit(&table.store, &complete(), &writes).await),
        [(2, true), (3, false), (4, false)]
    );
    assert_eq!(table.store.read(&key()).await.unwrap(), Some(started()));
    assert_eq!((table.effects().await, table.items().await.len()), (0, 2));
    // The record's own condition takes precedence over every other failure.
    let taken_over = Record { owner: owner(0xbb), ..started() };
    table.put(item(&key(), &taken_over)).await;
    assert_eq!(
        written(commit(&table.store, &complete(), &writes).await),
        PutOutcome::Refused(Some(taken_over))
    );
    assert_eq!(table.effects().await, 0);
}

#[tokio::test]
async fn conclusions_require_absent_or_unchanged_records() {
    for sort_key in [None, Some("sk")] {
        let table = Table::with(|builder| match sort_key {
            Some(name) => builder.sort_key(name),
            None => builder,
        })
        .await;
        // The effect's item has no sort key, so a table with a sort key rejects the effect. For that table, the test
        // commits only the record.
        let writes = if sort_key.is_some() { Transaction::new() } else { one() };
        assert_eq!(written(commit(&table.store, &conclude(None), &writes).await), PutOutcome::Applied);
        assert_eq!(table.store.read(&key()).await.unwrap(), Some(completed()));
        let transactions = table.store.transactions().unwrap();
        let again = transactions.commit(&key(), &conclude(None), &writes, "another").await;
        assert_eq!(written(again), PutOutcome::Refused(Some(completed())));
        let next = concluded();
        let replace = puts::conclude(Some(&completed()), next.clone());
        assert_eq!(
            written(transactions.commit(&key(), &replace, &writes, "third").await),
            PutOutcome::Applied
        );
        let late = transactions.commit(&key(), &replace, &writes, "fourth").await;
        assert_eq!(written(late), PutOutcome::Refused(Some(next.clone())));
        // No record can have this version: a STARTED record has a lease.
        let nowhere = with_state(State::Released);
        let write = puts::conclude(Some(&nowhere), completed());
        let refused = transactions.commit(&key(), &write, &writes, "fifth").await;
        assert_eq!(written(refused), PutOutcome::Refused(Some(next)));
    }
}

#[tokio::test]
async fn each_cancellation_reason_maps_to_its_result() {
    const CONDITION: &str = "ConditionalCheckFailed";
    let ours = item(&key(), &started());
    let ours = format!(r#"{{"id":{{"S":"{}"}},"x":{{"S":"y"}}}}"#, ours["id"].as_s().unwrap());
    let met = r#"{"id":{"S":"met"}}"#;
    let three = one().put(put("1")).check(exists("2"));
    enum Is {
        Declined(&'static [(usize, bool)]),
        Refused,
        Error(StoreErrorKind),
    }
    use Is::{Declined, Error, Refused};
    use StoreErrorKind::{Conflict, Corrupt, Rejected, Unavailable, Unstorable};
    let none = ("None", None);
    let mut cases = vec![
        (vec![none, (CONDITION, None), none, none], Declined(&[(0, false)])),
        (vec![none, none, (CONDITION, Some(met)), (CONDITION, None)], Declined(&[(1, true), (2, false)])),
        (vec![(CONDITION, None), none, none, none], Refused),
        (vec![(CONDITION, None), (CONDITION, Some(met)), ("TransactionConflict", None), none], Refused),
        // The condition failed on an item that isn't a valid record.
        (vec![(CONDITION, Some(ours.as_str())), none, none, none], Error(Corrupt)),
        (vec![none, none, none, none], Error(Conflict)),
        (vec![], Error(Conflict)),
    ];
    for (code, kind) in [
        ("TransactionConflict", Conflict),
        ("ProvisionedThroughputExceeded", Unavailable),
        ("ThrottlingError", Unavailable),
        ("RequestLimitExceeded", Unavailable),
    ] {
        for place in 0..4 {
            let mut reasons = vec![none; 4];
            reasons[place] = (code, None);
            cases.push((reasons.clone(), Error(kind)));
            // One of the handler's conditions failed too. That condition may hold at the next attempt, so the
            // transient reason counts.
            reasons[(place + 1).max(2) % 4] = (CONDITION, None);
            // For the last place, it's the record's condition instead, which isn't this case.
            if reasons[0].0 != CONDITION {
                cases.push((reasons, Error(kind)));
            }
        }
    }
    cases.push((vec![none, ("ThrottlingError", None), ("TransactionConflict", None), none], Error(Conflict)));
    for (code, of_the_record, of_the_handler) in [
        ("ValidationError", Rejected, Unstorable),
        ("ItemCollectionSizeLimitExceeded", Unstorable, Unstorable),
        ("SomethingNew", Rejected, Rejected),
    ] {
        for place in 0..4 {
            let mut reasons = vec![none; 4];
            reasons[place] = (code, None);
            cases.push((reasons, Error(if place == 0 { of_the_record } else { of_the_handler })));
        }
    }
    for (reasons, expected) in cases {
        let cancelled = cancelled(&reasons);
        // A refusal without the record is followed by a read, which finds none.
        let decide = move |_: usize, operation: &str| match operation {
            "GetItem" => Reply::Answer(200, "{}".to_owned()),
            _ => cancelled.clone(),
        };
        let wire = Wire::new(None, decide).await;
        let committed = commit(&on(&wire).await, &complete(), &three).await;
        let requests = ["TransactWriteItems", "GetItem"];
        let expected_requests = if matches!(expected, Refused) { &requests[..] } else { &requests[..1] };
        match expected {
            Declined(conditions) => assert_eq!(declined(committed), conditions, "{reasons:?}"),
            Refused => assert_eq!(written(committed), PutOutcome::Refused(None), "{reasons:?}"),
            Error(kind) => {
                let error = committed.unwrap_err();
                assert_eq!((error.kind(), error.is_maybe_applied()), (kind, false), "{reasons:?}: {error}");
                let place = reasons.iter().position(|(code, _)| *code == "SomethingNew");
                let named = match place {
                    Some(0) => "because of the record in table `idempotency`: SomethingNew: why".to_owned(),
                    Some(place) => format!("because of the handler's write {} (", place - 1),
                    None => String::new(),
                };
                assert!(error.to_string().contains(&named), "{error}");
            }
        }
        assert_eq!(wire.requests(), expected_requests, "{reasons:?}");
    }
}

#[tokio::test]
async fn writes_are_reported_unapplied_only_if_certain() {
    use StoreErrorKind::{Conflict, Rejected, Unavailable, Unstorable};
    let in_progress = || Reply::error(400, "TransactionInProgressException", "ongoing");
    let mismatch = || Reply::error(400, "IdempotentParameterMismatchException", "other");
    let conflict = || cancelled(&[("None", None), ("TransactionConflict", None)]);
    let wrong = || cancelled(&[("None", None), ("ValidationError", None)]);
    for (name, script, kind, maybe_applied) in [
        ("500", vec![Reply::internal()], Unavailable, true),
        ("throttled", vec![Reply::throttled()], Unavailable, false),
        ("500, then throttled", vec![Reply::internal(), Reply::throttled()], Unavailable, true),
        ("closed", vec![Reply::Close], Unavailable, true),
        ("no answer", vec![Reply::Hang], Unavailable, true),
        ("in progress", vec![in_progress()], Conflict, true),
        ("500, then in progress", vec![Reply::internal(), in_progress()], Conflict, true),
        ("contention", vec![conflict()], Conflict, false),
        ("500, then contention", vec![Reply::internal(), conflict()], Conflict, true),
        ("500, then invalid", vec![Reply::internal(), wrong()], Unstorable, true),
        ("the token of another request", vec![mismatch()], Rejected, true),
        ("invalid", vec![Reply::error(400, "ValidationException", "two on one item")], Unstorable, false),
        ("cancelled as invalid", vec![wrong()], Unstorable, false),
        (
            "cancelled as throttled",
            vec![cancelled(&[("None", None), ("ThrottlingError", None)])],
            Unavailable,
            false,
        ),
        ("expired", vec![Reply::error(400, "ExpiredTokenException", "no")], Unavailable, false),
        ("no table", vec![Reply::error(400, "ResourceNotFoundException", "no")], Rejected, false),
        ("denied", vec![Reply::error(400, "AccessDeniedException", "no")], Rejected, false),
        ("no reasons", vec![Reply::error(400, "TransactionCanceledException", "?")], Conflict, false),
    ] {
        let hangs = matches!(script[..], [Reply::Hang]);
        let wire = Wire::new(None, move |nth, operation| match operation {
            "TransactWriteItems" => script[nth.min(script.len() - 1)].clone(),
            // After an invalid request the store describes the table.
            _ => Reply::error(400, "AccessDeniedException", "no"),
        })
        .await;
        let store = if hangs { hasty(&wire).await } else { on(&wire).await };
        let error = commit(&store, &complete(), &one()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (kind, maybe_applied), "{name}: {error}");
        assert!(
            name != "no table" || error.to_string().contains("or a table of the handler's writes"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn resent_transactions_are_recognised_by_token_or_record() {
    for lost in [Reply::ForwardThenClose, Reply::ForwardThenHang] {
        let table = Table::new().await;
        table.put(item(&key(), &started())).await;
        let wire = Wire::scripted(Some(table.address), &[lost.clone(), Reply::Forward]).await;
        let committed = commit(&resending(&wire).await, &complete(), &one()).await;
        assert_eq!(written(committed), PutOutcome::Applied);
        assert_eq!((wire.requests().len(), table.effects().await), (2, 1));
    }
    let table = Table::new().await;
    table.put(item(&key(), &completed_as_sent())).await;
    assert_eq!(
        written(commit(&table.store, &complete(), &one()).await),
        PutOutcome::Refused(Some(completed_as_sent()))
    );
}

#[tokio::test]
async fn invalid_transactions_are_refused_before_sending() {
    let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
    let store = on(&wire).await;
    let many =
        |n: usize| (0..n).fold(Transaction::new(), |all, nth| all.update(count(&format!("effect {nth}"))));
    let large = |bytes| {
        let put = PutItem::builder().table_name(TABLE).item("id", s("large")).item("x", s("x".repeat(bytes)));
        Transaction::new().put(put.build().unwrap())
    };
    let own = Delete::builder().table_name(TABLE).key("id", s(key().as_str())).build().unwrap();
    for (writes, says) in [
        (many(100), "100 writes are staged"),
        (large(400 * 1024), "DynamoDB allows 409600 per item"),
        (one().update(count(EFFECT)), "are on the same item"),
        (Transaction::new().delete(own), "the idempotency record itself"),
    ] {
        let transactions = store.transactions().unwrap();
        let checked = transactions.check(&key(), &writes).unwrap_err();
        let sent = commit(&store, &complete(), &writes).await.unwrap_err();
        for (error, kind) in [(checked, StoreErrorKind::Rejected), (sent, StoreErrorKind::Unstorable)] {
            assert_eq!((error.kind(), error.is_maybe_applied()), (kind, false));
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    let of_another = store.transactions().unwrap().check(&key(), &"a text").unwrap_err();
    assert!(of_another.to_string().contains("store::dynamodb::Transaction"), "{of_another}");
    assert!(wire.requests().is_empty());

    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    assert_eq!(written(commit(&table.store, &complete(), &many(99)).await), PutOutcome::Applied);
    assert_eq!(table.items().await.len(), 100);
}

/// Ten items of 399 KB make 3.9 MB, next to a record of less than 1 KB. DynamoDB's limit for a transaction is 4 MB.
#[tokio::test]
async fn transactions_hold_nearly_four_megabytes() {
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    let large = |id: usize| {
        let put = PutItem::builder().table_name(TABLE).item("id", s(id.to_string()));
        put.item("x", s("x".repeat(399 * 1024))).build().unwrap()
    };
    let writes = (0..10).fold(Transaction::new(), |all, id| all.put(large(id)));
    table.store.transactions().unwrap().check(&key(), &writes).unwrap();
    assert_eq!(written(commit(&table.store, &complete(), &writes).await), PutOutcome::Applied);
    assert_eq!(table.store.read(&key()).await.unwrap(), Some(completed_as_sent()));
    // A response of 120,000 bytes puts the transaction over the limit, so the store sends nothing.
    let response = Outcome::Retained(StoredResponse {
        deflated: false,
        length: 120_000,
        sha256: [1; 32],
        labels: None,
        place: Place::Inline(vec![b'x'; 120_000].into()),
    });
    for over in [
        settle(Settlement::Complete(response.clone(), SETTLED_UNTIL)),
        puts::conclude(None, with_state(State::Failed(response))),
    ] {
        let error = commit(&table.store, &over, &writes).await.unwrap_err();
        // The error is permanent: every retry would fail too.
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unstorable, false));
        assert!(error.to_string().contains("bytes together"), "{error}");
    }
}

#[tokio::test]
async fn two_writes_on_one_item_commit_nothing() {
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    let blue =
        PutItem::builder().table_name(TABLE).item("id", s("1")).item("colour", s("blue")).build().unwrap();
    let twice = Transaction::new().put(put("1")).put(blue);
    table.store.transactions().unwrap().check(&key(), &twice).unwrap();
    let error = commit(&table.store, &complete(), &twice).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unstorable, false), "{error}");
    assert!(error.to_string().contains("one of the handler's writes is invalid"), "{error}");
    assert_eq!(table.store.read(&key()).await.unwrap(), Some(started()));
    assert_eq!(table.items().await.len(), 1);
}

/// A record whose response is too large is rejected together with the handler's writes. Without the response, the same
/// transaction commits.
#[tokio::test]
async fn oversized_records_are_unstorable_in_transactions() {
    let large = Outcome::Retained(StoredResponse {
        deflated: false,
        length: 410_000,
        sha256: [1; 32],
        labels: None,
        place: Place::Inline(vec![b'x'; 410_000].into()),
    });
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    let complete = |outcome| settle(Settlement::Complete(outcome, SETTLED_UNTIL));
    let error = commit(&table.store, &complete(large), &one()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unstorable, false), "{error}");
    assert_eq!((table.effects().await, table.store.read(&key()).await.unwrap()), (0, Some(started())));
    let transactions = table.store.transactions().unwrap();
    let omitted = transactions.commit(&key(), &complete(Outcome::Omitted), &one(), "another").await;
    assert_eq!((written(omitted), table.effects().await), (PutOutcome::Applied, 1));
    // DynamoDB's own answer: it cancels the transaction, and gives the size as the reason for the record's write.
    let reason =
        r#"{"Code":"ValidationError","Message":"Item size to update has exceeded the maximum allowed size"}"#;
    let body = format!(
        r#"{{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"cancelled",
        "CancellationReasons":[{reason},{{"Code":"None"}}]}}"#
    );
    let wire = Wire::scripted(None, &[Reply::Answer(400, body)]).await;
    let error = commit(&on(&wire).await, &complete(Outcome::Omitted), &one()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unstorable, false), "{error}");
}

/// Runs an operation that has one effect and answers with `length` bytes.
async fn run(
    idempotency: &Idempotency,
    length: usize,
) -> Result<String, RunError<lambda_idempotency::Error>> {
    idempotency
        .operation("charge")
        .unwrap()
        .run(Key::new("one").unwrap(), &1, || async {
            staging().unwrap().add(one())?;
            // Text that stays large when the library compresses it.
            let text = (0..length).map(|n| char::from(b'!' + ((n * n + n / 97) % 89) as u8));
            Ok(text.collect())
        })
        .await
}

#[tokio::test]
async fn large_responses_are_chunked_in_transactions() {
    for is_optimistic in [false, true] {
        let table = Table::with(|builder| builder.inline_limit(1024)).await;
        let idempotency = Idempotency::builder(table.store.clone()).function("tests").build().unwrap();
        let idempotency =
            if is_optimistic { idempotency.optimistic_reading_first().unwrap() } else { idempotency };
        let answer = run(&idempotency, 900_000).await.unwrap();
        assert_eq!(run(&idempotency, 900_000).await.unwrap(), answer, "replayed byte for byte");
        assert_eq!(table.effects().await, 1);
        assert!(table.items().await.len() >= 3, "the record, the effect and the response's chunks");
    }
}

/// Injects each fault into one request, or into four in a row, starting at each of the first four requests. With
/// `ForwardThenClose`, the request is applied and its answer is lost. With the other faults, the request isn't applied.
/// Each case runs with and without a claim, and the SDK retries. In the end there's one effect, and a run succeeds only
/// if the effect was applied.
#[tokio::test]
async fn network_failures_leave_one_effect() {
    let faults =
        [Reply::Close, Reply::ForwardThenClose, Reply::internal(), Reply::throttled(), Reply::Garbage];
    for is_optimistic in [false, true] {
        for fault in &faults {
            for (from, faulty) in (0..4).flat_map(|from| [(from, 1), (from, 4)]) {
                let table = Table::new().await;
                let (broken, healed) = (fault.clone(), Arc::new(AtomicBool::new(false)));
                let is_healed = healed.clone();
                let wire = Wire::new(Some(table.address), move |nth, _| {
                    let is_broken = (from..from + faulty).contains(&nth) && !is_healed.load(Ordering::SeqCst);
                    if is_broken { broken.clone() } else { Reply::Forward }
                })
                .await;
                let store = on(&wire).await;
                let clock = SetClock::system();
                let builder = Idempotency::builder(store).function("tests").clock(clock.clone());
                let idempotency = builder.build().unwrap();
                let idempotency = if is_optimistic { idempotency.optimistic().unwrap() } else { idempotency };
                let what = format!("{fault:?} from request {from} for {faulty}, optimistic: {is_optimistic}");
                if run(&idempotency, 3).await.is_ok() {
                    assert_eq!(table.effects().await, 1, "{what}");
                } else {
                    healed.store(true, Ordering::SeqCst);
                    // With the clock 120 s ahead, the lease has expired.
                    clock.set_ahead(120);
                    assert!(run(&idempotency, 3).await.is_ok(), "{what}");
                }
                assert_eq!(table.effects().await, 1, "{what}");
                healed.store(true, Ordering::SeqCst);
                assert_eq!(run(&idempotency, 3).await.unwrap().len(), 3, "{what}");
                assert_eq!(table.effects().await, 1, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn debug_hides_a_transactions_items() {
    let secret = "secret-of-the-handler";
    let transaction = Transaction::new().put(put(secret)).check(exists("secret-of-another"));
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    table.put([("id".to_owned(), s(secret))].into()).await;
    let CommitOutcome::Declined(details) = commit(&table.store, &complete(), &transaction).await.unwrap()
    else {
        panic!("no condition failed")
    };
    let details: &dyn std::any::Any = &*details;
    let shown = format!("{transaction:?} {:?}", details.downcast_ref::<Declined>().unwrap());
    assert!(!shown.contains("secret") && !shown.contains("red"), "{shown}");
}
