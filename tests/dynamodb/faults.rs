//! Connections that fail before or after the request arrives. After a failed write, the store reports "not applied"
//! only if that's certain, and otherwise "maybe applied".

use std::{
    error::Error,
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Config, Region, retry::RetryConfig},
    types::Delete,
};
use futures_util::future::join_all;
use lambda_idempotency::{
    StoredKey,
    store::{
        PutOutcome, ResponseChunks, Store, StoreError, StoreErrorKind,
        dynamodb::{DynamoDbStore, Transaction},
    },
};
use testkit::puts;
use tokio::net::TcpSocket;

use super::{
    emulator::{TABLE, Table, builder, config, hasty, on, patient, resending},
    fixtures::{
        SETTLED_UNTIL, completed, item, key, lock, next_lock, owner, release, resolve, settle, settlements,
        started,
    },
    wire::{Reply, Wire},
};

async fn claim(script: &[Reply]) -> (Result<PutOutcome, StoreError>, usize) {
    let wire = Wire::scripted(None, script).await;
    let hangs = script.iter().any(|reply| matches!(reply, Reply::Hang));
    let store = if hangs { hasty(&wire).await } else { on(&wire).await };
    let written = store.put(&key(), &puts::claim(lock())).await;
    (written, wire.requests().len())
}

fn chain(error: &StoreError) -> String {
    let mut text = format!("{error} / {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(" / {error} / {error:?}"));
        source = error.source();
    }
    text
}

/// A name, the wire's script, and what the store reports: the error kind, and whether the write may have been applied.
/// Last, the number of requests, or `None` if that depends on timing.
type Case = (&'static str, Vec<Reply>, StoreErrorKind, bool, Option<usize>);

#[tokio::test]
async fn each_failure_reports_kind_and_maybe_applied() {
    use Reply::{Close, Garbage, Hang, Reset};
    use StoreErrorKind::{Conflict, Rejected, Unavailable, Unstorable};
    let denied = || Reply::error(400, "AccessDeniedException", "no PutItem for you");
    let conflict = || Reply::error(400, "TransactionConflictException", "ongoing");
    let html = |status| Reply::Answer(status, "<html>secret</html>".into());
    let unreadable = || Reply::Answer(200, "secret".into());
    let cases: Vec<Case> = vec![
        ("no answer", vec![Hang], Unavailable, true, None),
        ("only throttled", vec![Reply::throttled()], Unavailable, false, Some(3)),
        ("500, then throttled", vec![Reply::internal(), Reply::throttled()], Unavailable, true, Some(3)),
        (
            "throttled, 500, throttled",
            { vec![Reply::throttled(), Reply::internal(), Reply::throttled()] },
            Unavailable,
            true,
            Some(3),
        ),
        ("500 only", vec![Reply::internal()], Unavailable, true, Some(3)),
        ("503 of another service", vec![html(503)], Unavailable, true, Some(3)),
        ("garbage", vec![Garbage], Unavailable, true, None),
        ("closed", vec![Close], Unavailable, true, Some(3)),
        ("reset", vec![Reset], Unavailable, true, Some(3)),
        ("closed, then throttled", vec![Close, Reply::throttled()], Unavailable, true, Some(3)),
        ("an unreadable response", vec![unreadable()], Unavailable, true, None),
        ("a 400 of another service", vec![html(400)], Unavailable, true, Some(1)),
        ("a 413 of another service", vec![html(413)], Unavailable, true, Some(1)),
        ("denied", vec![denied()], Rejected, false, Some(1)),
        ("500, then denied", vec![Reply::internal(), denied()], Rejected, true, Some(2)),
        ("conflict", vec![conflict()], Conflict, false, None),
        ("500, then conflict", vec![Reply::internal(), conflict()], Conflict, true, None),
        ("too large", vec![Reply::error(413, "RequestEntityTooLarge", "x")], Unstorable, false, Some(1)),
    ];
    for (name, script, kind, maybe_applied, requests) in cases {
        let start = Instant::now();
        let (written, made) = claim(&script).await;
        let error = written.unwrap_err();
        // Calls that hang have a short timeout. No other call waits for its attempt timeout of 20 s.
        assert!(start.elapsed() < Duration::from_secs(15), "{name}: {:?}", start.elapsed());
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert_eq!(error.is_maybe_applied(), maybe_applied, "{name}: {error}");
        if let Some(requests) = requests {
            assert_eq!(made, requests, "{name}");
        }
        assert!(!chain(&error).contains("secret"), "{name}: {}", chain(&error));
    }
}

#[tokio::test]
async fn hangs_before_or_after_throttling_are_ambiguous() {
    let (written, _) = claim(&[Reply::throttled(), Reply::Hang]).await;
    let error = written.unwrap_err();
    assert!(error.is_maybe_applied());
    let (written, _) = claim(&[Reply::Hang, Reply::throttled()]).await;
    assert!(written.unwrap_err().is_maybe_applied());
}

#[tokio::test]
async fn timeouts_between_attempts_are_ambiguous() {
    // The SDK's backoff before the second attempt lasts until the operation times out.
    let wire = Wire::scripted(None, &[Reply::throttled()]).await;
    let waits = Duration::from_secs(10_000_000);
    let retries = RetryConfig::standard().with_initial_backoff(waits).with_max_backoff(waits);
    let client = Client::from_conf(config(wire.address).retry_config(retries).build());
    // The operation timeout is long enough for the first attempt, even on a busy machine.
    let builder = patient(DynamoDbStore::builder(TABLE).client(client));
    let store = builder.operation_timeout(Duration::from_secs(6)).build().await.unwrap();
    let error = store.put(&key(), &puts::claim(lock())).await.unwrap_err();
    assert!(error.to_string().contains("didn't answer in time"), "{error}");
    assert!(error.is_maybe_applied());
    assert_eq!(wire.requests().len(), 1);
}

#[tokio::test]
async fn refused_connections_fail_fast_as_unapplied() {
    // No other test can use this socket's port, and the socket never listens.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let store = builder(address).build().await.unwrap();
    for write in [puts::claim(lock()), settle(release(false))] {
        let start = Instant::now();
        let error = store.put(&key(), &write).await.unwrap_err();
        // The store doesn't wait for the attempt timeout, which is 20 s.
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!error.is_maybe_applied(), "no server could have applied the write");
        assert_eq!(
            error.to_string(),
            format!(
                "table `idempotency` in eu-west-1 at http://{address} couldn't be reached; check the Region, the \
                 endpoint and the network"
            )
        );
        assert!(error.source().unwrap().to_string().contains("Connection refused"), "{error:?}");
    }
}

#[tokio::test]
async fn without_credentials_nothing_is_sent() {
    let wire = Wire::scripted(None, &[Reply::Hang]).await;
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .endpoint_url(format!("http://{}", wire.address));
    let builder = DynamoDbStore::builder(TABLE).client(Client::from_conf(config.build()));
    let store = patient(builder).build().await.unwrap();
    let error = store.put(&key(), &puts::claim(lock())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(!error.is_maybe_applied(), "{error:?}");
    assert_eq!(
        error.to_string(),
        "the request to table `idempotency` wasn't sent, because no AWS credentials were found; set AWS_PROFILE, or \
         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the function a role"
    );
    assert_eq!(wire.requests().len(), 0);
}

#[tokio::test]
async fn unsendable_requests_are_certainly_not_applied() {
    let config = config("127.0.0.1:9".parse().unwrap()).endpoint_url("not a URL").build();
    let store = DynamoDbStore::new(Client::from_conf(config), TABLE).unwrap();
    let error = store.put(&key(), &puts::claim(lock())).await.unwrap_err();
    assert!(!error.is_maybe_applied(), "{error:?}");
}

#[tokio::test]
async fn lost_requests_are_retried() {
    let table = Table::new().await;
    let wire = Wire::scripted(Some(table.address), &[Reply::Close, Reply::Forward]).await;
    let store = on(&wire).await;
    assert_eq!(store.put(&key(), &puts::claim(lock())).await.unwrap(), PutOutcome::Applied);
    assert_eq!(wire.requests(), ["PutItem", "PutItem"]);
}

/// Measures ten reads. Each of them finds that its pooled connection is dead, as after a freeze. Returns the total time
/// of the eight fastest. The two slowest don't count, because a busy machine may pause the process.
async fn ten_reads_on_dead_connections(cut: Reply, retries: RetryConfig) -> Duration {
    let table = Table::new().await;
    let decide = move |nth: usize, _: &str| match nth % 3 {
        1 => cut.clone(),
        _ => Reply::Forward,
    };
    let wire = Wire::new(Some(table.address), decide).await;
    let client = config(wire.address).retry_config(retries).build();
    let builder = DynamoDbStore::builder(TABLE).client(Client::from_conf(client));
    let store = patient(builder).build().await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..10 {
        // The first read puts a connection into the pool. The second finds it dead.
        assert_eq!(store.read(&key()).await.unwrap(), None);
        let began = Instant::now();
        assert_eq!(store.read(&key()).await.unwrap(), None);
        waits.push(began.elapsed());
    }
    assert_eq!(wire.requests().len(), 30);
    waits.sort();
    waits[..8].iter().sum()
}

/// With the SDK's own first backoff of up to a second, the eight fastest reads together take over three seconds on
/// average.
#[tokio::test]
async fn dead_pooled_connections_cost_milliseconds() {
    // The store replaces the retry configuration if it's the SDK's default. This one has another maximum backoff, so
    // the store keeps it. In this test, it behaves like the default.
    let sdk = RetryConfig::standard().with_max_backoff(Duration::from_secs(19));
    eprintln!("with the SDK's retries: {:?}", ten_reads_on_dead_connections(Reply::Close, sdk).await);
    for cut in [Reply::Close, Reply::Reset] {
        let waited = ten_reads_on_dead_connections(cut, RetryConfig::standard()).await;
        eprintln!("with the store's retries: {waited:?}");
        assert!(waited < Duration::from_millis(1500), "{waited:?}");
    }
}

#[tokio::test]
async fn retried_writes_find_their_own_record() {
    let take_over = puts::take_over(&started(), next_lock());
    let reclaim = puts::reclaim(&completed(), next_lock());
    let mut cases = vec![
        ("T1", None, puts::claim(lock())),
        ("T3", Some(started()), take_over),
        ("T2", Some(completed()), reclaim),
    ];
    cases.extend(settlements().into_iter().map(|(name, done)| (name, Some(started()), settle(done))));
    // The first attempt is applied, but its answer is lost. The SDK's second attempt finds the first attempt's record.
    for lost in [Reply::ForwardThenClose, Reply::ForwardThenHang] {
        let table = Table::new().await;
        // The writes run concurrently, because each hanging attempt takes seconds.
        let writes = cases.iter().map(|(name, before, write)| {
            let (table, script) = (&table, [lost.clone(), Reply::Forward]);
            async move {
                let key = StoredKey::from_stored(*name);
                if let Some(before) = before {
                    table.put(item(&key, before)).await;
                }
                let wire = Wire::scripted(Some(table.address), &script).await;
                let written = resending(&wire).await.put(&key, write).await.unwrap();
                assert_eq!(written, PutOutcome::Refused(write.apply_to(before.as_ref())), "{name}");
            }
        });
        join_all(writes).await;
    }
}

#[tokio::test]
async fn writes_without_answers_are_ambiguous() {
    for lost in [Reply::ForwardThenClose, Reply::ForwardThenHang] {
        let table = Table::new().await;
        let wire = Wire::scripted(Some(table.address), &[lost]).await;
        let error = hasty(&wire).await.put(&key(), &puts::claim(lock())).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.is_maybe_applied());
        assert_eq!(table.store.read(&key()).await.unwrap(), Some(started()));
    }
}

#[tokio::test]
async fn failed_conditions_are_always_definite() {
    let table = Table::new().await;
    table.put(item(&key(), &completed())).await;
    let wire = Wire::scripted(Some(table.address), &[Reply::internal(), Reply::Forward]).await;
    let written = on(&wire).await.put(&key(), &puts::claim(lock())).await.unwrap();
    assert_eq!(written, PutOutcome::Refused(Some(completed())));
}

#[tokio::test]
async fn refusals_without_an_item_read_the_record() {
    // DynamoDB's refusal lacks the record, so the store reads it. If the store treated the record as absent, the
    // library would claim the key again and again.
    let table = Table::new().await;
    table.put(item(&key(), &completed())).await;
    let wire = Wire::new(Some(table.address), |_, operation| match operation {
        "PutItem" => Reply::error(400, "ConditionalCheckFailedException", "The conditional request failed"),
        _ => Reply::Forward,
    })
    .await;
    let written = on(&wire).await.put(&key(), &puts::claim(lock())).await.unwrap();
    assert_eq!(written, PutOutcome::Refused(Some(completed())));
    assert_eq!(wire.requests(), ["PutItem", "GetItem"]);
}

#[tokio::test]
async fn failed_reads_leave_the_claim_ambiguous() {
    // The claim is refused. The SDK doesn't show how many attempts it made, so an earlier one may have claimed the key.
    // Only a read would show that, and the read fails.
    let wire = Wire::new(None, |_, operation| match operation {
        "PutItem" => Reply::error(400, "ConditionalCheckFailedException", "The conditional request failed"),
        _ => Reply::error(400, "ThrottlingException", "later"),
    })
    .await;
    let error = on(&wire).await.put(&key(), &puts::claim(lock())).await.unwrap_err();
    assert!(error.is_maybe_applied(), "{error}");
}

#[tokio::test]
async fn every_transition_is_one_request() {
    let table = Table::new().await;
    let wire = Wire::scripted(Some(table.address), &[Reply::Forward]).await;
    let store = on(&wire).await;
    let take_over = puts::take_over(&started(), next_lock());
    let late = settle(release(false));
    let complete = puts::settle(&next_lock(), settlements().remove(0).1);
    let claim = puts::claim(lock());
    let mut record = None;
    for write in [&claim, &claim, &take_over, &late, &complete, &claim] {
        let expected = write.apply_to(record.as_ref());
        let written = store.put(&key(), write).await.unwrap();
        match expected {
            Some(after) => {
                assert_eq!(written, PutOutcome::Applied);
                record = Some(after);
            }
            None => assert_eq!(written, PutOutcome::Refused(record.clone())),
        }
    }
    // In order: a claim, a duplicate, a takeover, the late settlement of the claim that was taken over, the
    // completion, and a duplicate.
    assert_eq!(wire.requests(), ["PutItem", "PutItem", "UpdateItem", "UpdateItem", "UpdateItem", "PutItem"]);
    let reclaim = puts::reclaim(&record.unwrap(), lock());
    assert_eq!(store.put(&key(), &reclaim).await.unwrap(), PutOutcome::Applied);
    assert_eq!(wire.requests().len(), 7);
    // An operator's write is one update. Sending it again is one update that is refused.
    let release = resolve(&started(), release(true));
    assert_eq!(store.put(&key(), &release).await.unwrap(), PutOutcome::Applied);
    let released = release.apply_to(Some(&started()));
    assert_eq!(store.put(&key(), &release).await.unwrap(), PutOutcome::Refused(released));
    assert_eq!(wire.requests()[7..], ["UpdateItem", "UpdateItem"]);
}

#[tokio::test]
async fn writes_are_conditional_and_reads_consistent() {
    let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
    let store = on(&wire).await;
    let mut writes = vec![
        puts::claim(lock()),
        puts::reclaim(&completed(), lock()),
        puts::reclaim(&started(), lock()),
        puts::take_over(&started(), lock()),
    ];
    for base in [started(), completed()] {
        writes.extend(settlements().into_iter().map(|(_, settlement)| resolve(&base, settlement)));
    }
    writes.extend(settlements().into_iter().map(|(_, settlement)| settle(settlement)));
    for write in &writes {
        assert_eq!(store.put(&key(), write).await.unwrap(), PutOutcome::Applied);
    }
    for body in wire.bodies() {
        assert!(body.contains(r#""ConditionExpression":"#), "{body}");
        assert!(body.contains(r#""ReturnValuesOnConditionCheckFailure":"ALL_OLD""#), "{body}");
    }

    let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
    let store = on(&wire).await;
    assert_eq!(store.read(&key()).await.unwrap(), None);
    assert_eq!(store.read_chunks(&key(), owner(1), 1, 10).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    assert_eq!(wire.requests(), ["GetItem", "GetItem"]);
    for body in wire.bodies() {
        assert!(body.contains(r#""ConsistentRead":true"#), "{body}");
    }
}

#[tokio::test]
async fn unwritable_or_unreadable_chunks_are_errors() {
    let wire = Wire::scripted(None, &[Reply::error(400, "AccessDeniedException", "no")]).await;
    let store = on(&wire).await;
    let bytes = bytes::Bytes::from(vec![1; 4_000_000]);
    let error = store.write_chunks(&key(), owner(1), &bytes, SETTLED_UNTIL).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(wire.requests().len() <= 4, "the first four requests fail, so no more must follow");
    let error = store.read_chunks(&key(), owner(1), 3, 1_000_000).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(!error.is_maybe_applied());
}

#[tokio::test]
async fn at_most_four_chunks_are_sent_concurrently() {
    let wire = Wire::scripted(None, &[Reply::Hang]).await;
    let store = on(&wire).await;
    let (key, bytes) = (key(), bytes::Bytes::from(vec![1; 4_000_000]));
    let four_arrive = async {
        while wire.requests().len() < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    tokio::select! {
        _ = store.write_chunks(&key, owner(1), &bytes, SETTLED_UNTIL) => panic!("returned without a response"),
        () = four_arrive => assert_eq!(wire.requests().len(), 4),
    }
}

#[tokio::test]
async fn errors_show_the_message_but_no_items() {
    let (written, _) = claim(&[Reply::error(400, "AccessDeniedException", "no PutItem for you")]).await;
    let error = written.unwrap_err();
    assert_eq!(
        error.source().unwrap().to_string(),
        "AccessDeniedException: no PutItem for you (request REQUEST-0)"
    );
    // A failed condition returns a corrupt item. The error names only the attribute.
    let old = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
        "message":"The conditional request failed","Item":{"id":{"S":"x"},"response":{"B":"c2VjcmV0"},
        "status":{"S":"secret"}}}"#;
    let (written, _) = claim(&[Reply::Answer(400, old.into())]).await;
    let error = written.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().ends_with("`version` is missing"), "{error}");
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
}

/// DynamoDB always answers with a JSON object. Whatever answers without one may have passed the request on or not.
#[tokio::test]
async fn empty_answers_count_as_lost() {
    for (status, body) in [(200, ""), (204, "")] {
        let empty = || Reply::Answer(status, body.to_owned());
        let (written, requests) = claim(&[empty()]).await;
        let error = written.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, true), "{error}");
        assert!(requests > 1, "the SDK sends the request again");
        let wire = Wire::scripted(None, &[empty()]).await;
        let store = on(&wire).await;
        for write in [settle(release(false)), resolve(&started(), release(false))] {
            let error = store.put(&key(), &write).await.unwrap_err();
            assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, true));
        }
        // Otherwise, the record would count as absent.
        let error = store.read(&key()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, false));
        let own = Transaction::new()
            .delete(Delete::builder().table_name(TABLE).key("id", super::fixtures::s("x")).build().unwrap());
        let transactions = store.transactions().unwrap();
        let token = "01234567-89ab-8def-8123-456789abcdef";
        let commit = transactions.commit(&key(), &settle(release(false)), &own, token).await.unwrap_err();
        assert!(commit.is_maybe_applied(), "{commit}");
        assert!(transactions.commit_alone(&own, token).await.unwrap_err().is_maybe_applied());
    }
    // The request wasn't passed on, or its answer was lost. The second attempt finds out.
    let table = Table::new().await;
    let empty = Reply::Answer(200, String::new());
    let wire = Wire::scripted(Some(table.address), &[empty.clone(), Reply::Forward]).await;
    let store = on(&wire).await;
    assert_eq!(store.put(&key(), &puts::claim(lock())).await.unwrap(), PutOutcome::Applied);
    let wire = Wire::scripted(Some(table.address), &[empty, Reply::Forward]).await;
    let again = on(&wire).await.put(&key(), &puts::claim(lock())).await.unwrap();
    assert_eq!(again, PutOutcome::Refused(Some(started())));
}

/// Old emulators, such as dynalite, don't return the item that made the condition fail.
#[tokio::test]
async fn refusals_without_the_item_are_read() {
    let table = Table::new().await;
    let _ = table.store.put(&key(), &puts::claim(lock())).await.unwrap();
    let refusal = Reply::error(400, "ConditionalCheckFailedException", "The conditional request failed");
    let (seen, other) = (started(), next_lock());
    let writes = [
        puts::claim(other.clone()),
        puts::reclaim(&seen, other.clone()),
        puts::take_over(&seen, other.clone()),
        puts::settle(&other, release(false)),
        puts::conclude(None, completed()),
        puts::conclude(Some(&seen), completed()),
        resolve(&started(), release(false)),
    ];
    for write in writes {
        let wire = Wire::scripted(Some(table.address), &[refusal.clone(), Reply::Forward]).await;
        let written = on(&wire).await.put(&key(), &write).await.unwrap();
        assert_eq!(written, PutOutcome::Refused(Some(started())), "{write:?}");
        assert_eq!(wire.requests()[1..], ["GetItem"], "{write:?}");
        // If the read fails, an earlier attempt of this call may have been applied.
        let wire = Wire::scripted(None, &[refusal.clone(), Reply::throttled()]).await;
        let error = on(&wire).await.put(&key(), &write).await.unwrap_err();
        assert!(error.is_maybe_applied(), "{write:?}: {error}");
    }
}
