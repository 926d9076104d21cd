//! Claims that another delivery took over, and low-level claims that are settled by hand.

use super::{
    bank::Deposits,
    support::{Plain, Script, elsewhere},
    *,
};
use crate::{Begun, Idempotency, Resolution, Settled, settings::Mode, staging};

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
                taken_over.store.set("k", record);
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
async fn unreadable_outcome_error_never_says_nothing_ran() {
    let bench = Bench::new();
    let successor = bench.clone();
    let result = bench
        .with_handler("k", 1, async move {
            let mut record = successor.record("k");
            record.owner = Owner::from_bytes([9; 16]);
            // The successor recorded a number, but this operation returns a string.
            record.state = State::Completed(Outcome::Retained(StoredResponse::new("17".into())));
            successor.store.set("k", record);
            Ok("too late".to_owned())
        })
        .await;
    let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!error.to_string().contains("nothing ran"), "{error}");
}

/// An operator settles the first claim's record. The second claim's record disappears.
#[tokio::test(start_paused = true)]
async fn fenced_error_names_every_possible_cause() {
    let bench = Bench::new();
    let settled = bench.hold("k").await;
    let (key, seen) = (bench.stored_key("k"), bench.record("k"));
    let resolution = Resolution::CompleteWithoutResponse;
    assert!(bench.idempotency.resolve(&key, &seen, resolution).await.unwrap().is_some());
    let settled = settled.release().await.unwrap_err();
    let mut gone = bench.hold("m").await;
    bench.store.remove_all();
    let gone = gone.extend(Duration::from_secs(3600)).await.unwrap_err();
    for (error, cause) in [(settled, "settled"), (gone, "gone")] {
        assert_eq!(error.kind(), ErrorKind::Fenced);
        let text = error.to_string();
        assert!(text.contains(cause) && !text.contains("outlived its lease"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn fencing_by_running_successor_gives_in_progress() {
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
async fn outcome_is_recorded_after_record_removal() {
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
async fn claims_settle_by_complete_fail_or_release() {
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
    let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
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

fn has(events: &[String], name: &str) -> bool {
    events.iter().any(|event| event.contains(&format!("event={name:?}")))
}

#[tokio::test(start_paused = true)]
async fn failed_release_is_logged_as_not_released() {
    let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
    let claim = bench.hold("k").await;
    bench.store.script([Meets(Fault::Throttle)]);
    let released = async {
        let error = claim.release().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unrecorded);
        let text = error.to_string();
        assert!(text.contains("it's unknown whether the key is released"), "{text}");
        assert!(!text.contains("the handler ran"), "{text}");
    };
    let events = bench.recorded(released).await;
    assert!(has(&events, "not_released") && !has(&events, "unrecorded"), "{events:?}");
}

/// The process freezes before its handler starts, and the release of its claim fails.
#[tokio::test(start_paused = true)]
async fn unrun_handler_is_never_logged_as_unrecorded() {
    let mut failed_releases = 0;
    for reads in 0..10 {
        let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
        bench.freeze_after(reads, 59_000);
        bench.store.script([Script::Pass, Meets(Fault::Throttle)]);
        let events = bench.recorded(bench.run("k", 1)).await;
        if bench.runs() == 0 {
            assert!(!has(&events, "unrecorded"), "frozen after {reads} reads: {events:?}");
            failed_releases += usize::from(has(&events, "not_released"));
        }
    }
    assert!(failed_releases > 0, "no freeze came between the claim and the handler");
}

/// When the library logs these failed commits, an attempt may have been applied, or may still be applied. So the event
/// mustn't say that nothing was written.
#[tokio::test(start_paused = true)]
async fn unresolved_commit_never_logs_nothing_was_written() {
    fn short() -> Deposits {
        Deposits::of("till", 1).if_balance_is_at_least(1)
    }
    let pay = || async {
        staging().unwrap().add(short()).unwrap();
        Ok("paid".to_owned())
    };
    let bench = Bench::new();
    let claim = bench.hold("k").await;
    bench.store.script([Meets(Fault::Late)]);
    let by_hand = bench.recorded(claim.commit("paid", short())).await;
    let bench = Bench::new();
    bench.store.script([Script::Pass, Meets(Fault::Late)]);
    let wrapped = bench.recorded(bench.with_handler("k", 1, pay())).await;
    let bench = Bench::with(|builder| builder.mode(Mode::Off).settings(|s| s.settle_within = Duration::ZERO));
    bench.store.script([Meets(Fault::LoseRequest)]);
    let unenforced = bench.recorded(bench.with_handler("k", 1, pay())).await;
    for events in [by_hand, wrapped, unenforced] {
        assert!(has(&events, "not_committed"), "{events:?}");
        for event in events.iter().filter(|event| event.contains("not_committed")) {
            assert!(!event.contains("neither") && !event.contains("nothing was written"), "{event}");
        }
    }
}

/// The answer to the first commit attempt is lost, and the second attempt fails a condition. If the store applies the
/// first attempt later, that attempt's outcome counts.
#[tokio::test(start_paused = true)]
async fn declined_commit_reports_an_unresolved_attempt() {
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
        assert_eq!(matches!(settled, Ok(Settled::Superseded(_))), in_doubt, "{settled:?}");
    }
}

/// All outcomes of one claim use the same chunk keys. While the first commit may still be applied, its chunks must
/// stay, so the library stores the second outcome without its response.
#[tokio::test(start_paused = true)]
async fn chunks_of_commit_in_doubt_are_kept() {
    for in_doubt in [false, true] {
        let bench = Bench::new();
        bench.store.limit_inline(1);
        let claim = bench.hold("k").await;
        bench.store.script([Script::Pass, if in_doubt { Meets(Fault::Late) } else { Script::Pass }]);
        let writes = Deposits::of("till", 1).if_balance_is_at_least(1);
        let not_committed = claim.commit("paid", writes).await.unwrap_err();
        assert!(bench.store.take_calls().contains(&"write chunks"));
        let settled = not_committed.into_claim().unwrap().complete("sold out").await;
        assert!(matches!(settled, Ok(Settled::Recorded)), "{settled:?}");
        assert_eq!(bench.store.take_calls().contains(&"write chunks"), !in_doubt);
        let State::Completed(outcome) = bench.record("k").state else { panic!("not completed") };
        assert_eq!(matches!(outcome, Outcome::Omitted), in_doubt);
    }
}

/// On a store without transactions, no retry can succeed. So the call fails at once, and returns the claim.
#[tokio::test(start_paused = true)]
async fn commit_needs_a_transactional_store() {
    let builder = Idempotency::builder(Plain::default()).function("tests");
    let idempotency = builder.settings(|s| s.settle_within = Duration::from_secs(1)).build().unwrap();
    let operation = idempotency.operation("step").unwrap();
    let begun = operation.begin(Key::new("k").unwrap(), Fingerprint::of(&1).unwrap()).await.unwrap();
    let Begun::Claimed(claim) = begun else { panic!("a replay") };
    let began = tokio::time::Instant::now();
    let not_committed = claim.commit("paid", Deposits::of("till", 1)).await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::ZERO);
    let error = not_committed.error();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("doesn't support transactional writes"), "{error}");
    let settled = not_committed.into_claim().unwrap().complete("done").await;
    assert!(matches!(settled, Ok(Settled::Recorded)), "{settled:?}");
}
