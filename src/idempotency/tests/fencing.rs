//! Claims that another delivery took over, and low-level claims that are settled by hand.

use super::{
    bank::Deposits,
    support::{Script, elsewhere},
    *,
};

#[tokio::test(start_paused = true)]
async fn fenced_caller_gets_the_successors_outcome() {
    let bench = Bench::new();
    let successor = bench.clone();
    let result = bench
        .with_handler("k", 1, async move {
            successor.jump.store(70_000, Ordering::SeqCst);
            assert_eq!(elsewhere(successor.run("k", 1)).await.unwrap(), "run 1");
            successor.jump.store(0, Ordering::SeqCst);
            Ok("too late".to_owned())
        })
        .await;
    assert_eq!(result.unwrap(), "run 1");
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn fenced_error_never_says_nothing_ran() {
    for (script, expected) in
        [(Meets(Fault::Throttle), ErrorKind::InProgress), (Meets(Fault::Unreadable), ErrorKind::Corrupt)]
    {
        let bench = Bench::new();
        let taken_over = bench.clone();
        let result = bench
            .with_handler("k", 1, async move {
                let mut record = taken_over.record("k");
                record.owner = Owner::from_bytes([9; 16]);
                let response =
                    StoredResponse { place: Place::Chunks(1), ..StoredResponse::new("elsewhere".into()) };
                record.state = State::Completed(Outcome::Retained(response));
                taken_over.store.put("k", record);
                taken_over.store.script([Script::Pass, script]);
                Ok("too late".to_owned())
            })
            .await;
        let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
        assert_eq!(
            (error.kind(), bench.store.take_calls()),
            (expected, vec!["claim", "settle", "read chunks"])
        );
        assert!(!error.to_string().contains("nothing ran"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn fenced_by_running_successor_is_in_progress() {
    let bench = Bench::new();
    let successor = bench.clone();
    let result = bench
        .with_handler("k", 1, async move {
            successor.jump.store(70_000, Ordering::SeqCst);
            elsewhere(successor.abandon("k", 1)).await;
            Ok("too late".to_owned())
        })
        .await;
    assert_eq!(kind(result), ErrorKind::InProgress);
    assert_eq!(bench.record("k").attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn missing_record_is_recorded_again() {
    let bench = Bench::new();
    let sweeper = bench.clone();
    let result = bench
        .with_handler("k", 1, async move {
            sweeper.store.remove_all();
            Ok("in hand".to_owned())
        })
        .await;
    assert_eq!(result.unwrap(), "in hand");
    assert_eq!(bench.run("k", 1).await.unwrap(), "in hand");
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn low_level_claims_settle_by_value() {
    use crate::{Begun, Settled};
    let bench = Bench::new();
    let key = Key::new("k").unwrap();
    let fingerprint = Fingerprint::of(&1).unwrap();
    let Begun::Claimed(claim) = bench.operation().begin(&key, fingerprint).await.unwrap() else {
        panic!("replay")
    };
    assert_eq!(bench.operation().begin(&key, fingerprint).await.unwrap_err().kind(), ErrorKind::InProgress);
    claim.release().await.unwrap();
    let Begun::Claimed(claim) = bench.operation().begin(&key, fingerprint).await.unwrap() else {
        panic!("replay")
    };
    assert!(matches!(claim.complete("done").await.unwrap(), Settled::Recorded));
    let Begun::Replay(replay) = bench.operation().begin(&key, fingerprint).await.unwrap() else {
        panic!("claimed")
    };
    assert_eq!((replay.response().as_ref(), replay.is_failure()), (&b"done"[..], false));
    assert_eq!(replay.generation(), bench.record("k").generation);

    let other = Key::new("m").unwrap();
    let Begun::Claimed(claim) = bench.operation().begin(&other, fingerprint).await.unwrap() else {
        panic!("replay")
    };
    assert!(matches!(claim.fail("never").await.unwrap(), Settled::Recorded));
    let Begun::Replay(replay) = bench.operation().begin(&other, fingerprint).await.unwrap() else {
        panic!("claimed")
    };
    assert!(replay.is_failure());
    assert_eq!(replay.into_response().as_ref(), b"never");
}

#[tokio::test(start_paused = true)]
async fn fenced_and_unrecorded_are_distinct_errors() {
    use crate::Begun;
    let bench = Bench::with(|builder| builder.settle_within(Duration::ZERO));
    let fingerprint = Fingerprint::of(&1).unwrap();
    let begin = |key: &'static str| {
        let bench = bench.clone();
        async move {
            match bench.operation().begin(Key::new(key).unwrap(), fingerprint).await.unwrap() {
                Begun::Claimed(claim) => claim,
                Begun::Replay(_) => panic!("replay"),
            }
        }
    };
    let fenced = begin("k").await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    drop(begin("k").await);
    assert_eq!(fenced.complete("late").await.unwrap_err().kind(), ErrorKind::Fenced);
    let lost = begin("m").await;
    bench.store.script([Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    let error = lost.complete("x").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unrecorded, false));
}

/// The first attempt's answer is lost, and a condition fails at the second. If the first is applied later, its outcome
/// counts.
#[tokio::test(start_paused = true)]
async fn declined_commit_says_if_in_doubt() {
    for (script, in_doubt) in [(Script::Pass, false), (Meets(Fault::Late), true)] {
        let bench = Bench::new();
        let claim = bench.hold("k").await;
        bench.store.script([script]);
        let writes = Deposits::of("till", 1).if_balance_is_at_least(1);
        let not_committed = claim.commit("paid", writes).await.unwrap_err();
        let message = not_committed.error().to_string();
        assert_eq!(not_committed.error().kind(), ErrorKind::Declined, "{message}");
        assert_eq!(message.contains("nothing was written"), !in_doubt, "{message}");
        assert_eq!(message.contains("an earlier attempt may still be applied"), in_doubt, "{message}");
        bench.store.bank.pay_in("till", 1);
        if in_doubt {
            let _ = bench.store.apply_late();
        }
        let settled = not_committed.into_claim().unwrap().complete("sold out").await;
        assert_eq!(matches!(settled, Ok(crate::Settled::Superseded(_))), in_doubt, "{settled:?}");
    }
}
