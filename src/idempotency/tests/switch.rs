//! The modes that don't enforce idempotency: off keeps no records, and shadow only reports.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize},
    time::Duration,
};

use super::{
    bank::{Deposits, Short},
    *,
};
use crate::{
    Begun, Claim, Idempotency, NotCommitted, Settled, settings::Mode, staging, store::memory::MemoryStore,
};

const NOT_ENFORCED: [Mode; 2] = [Mode::Off, Mode::Shadow];

/// The faults that a single call to the store can meet.
const FAULTS: [Script; 9] = [
    Meets(Fault::LoseAnswer),
    Meets(Fault::LoseRequest),
    Meets(Fault::Throttle),
    Meets(Fault::Refuse),
    Meets(Fault::Unstorable),
    Meets(Fault::Silence),
    Meets(Fault::SilenceAfter),
    Meets(Fault::Unreadable),
    Meets(Fault::Conflict),
];

/// The longest delay that shadow mode may add to a delivery.
const MOST: Duration = Duration::from_millis(100);

fn bench(mode: Mode) -> Bench {
    Bench::with(|builder| builder.mode(mode))
}

async fn hold(bench: &Bench, key: &str) -> Claim {
    match bench.operation().begin(Key::new(key).unwrap(), Fingerprint::of(&1).unwrap()).await.unwrap() {
        Begun::Claimed(claim) => claim,
        Begun::Replay(replay) => panic!("{replay:?}"),
    }
}

/// Returns one text for each report of shadow mode while `future` runs: what enforcing would have done, the kind of a
/// refusal, and whether the handler's answer is the same as the recorded one.
async fn reports(bench: &Bench, future: impl Future) -> Vec<String> {
    let events = bench.recorded(future).await;
    let shadow = events.iter().filter(|event| event.contains(r#"event="shadow""#));
    let field = |event: &str, name: &str| {
        let at = event.find(&format!(" {name}="))? + name.len() + 2;
        event[at..].split('"').nth(1).map(str::to_owned)
    };
    let fields = ["would", "kind", "answer"];
    shadow
        .map(|event| fields.iter().filter_map(|name| field(event, name)).collect::<Vec<_>>().join(" "))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn mode_off_sends_no_requests() {
    let bench = bench(Mode::Off);
    for nth in 1..=2 {
        assert_eq!(bench.run("k", 1).await.unwrap(), format!("run {nth}"));
    }
    assert!(matches!(bench.fail("k", 1).await, Err(RunError::Handler(TestError))));
    bench.panic("k", 1).await;
    for settle in [0, 1, 2] {
        let mut claim = hold(&bench, "k").await;
        claim.extend(Duration::from_secs(3600)).await.unwrap();
        assert_eq!(claim.handle().lease_until(), bench.now().saturating_add(Duration::from_secs(3600)));
        match settle {
            0 => assert!(matches!(claim.complete("x").await, Ok(Settled::Recorded))),
            1 => assert!(matches!(claim.fail("x").await, Ok(Settled::Recorded))),
            _ => claim.release().await.unwrap(),
        }
    }
    drop(hold(&bench, "k").await);
    assert_eq!(bench.store.take_calls(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn derived_keys_are_equal_in_all_modes() {
    let mut derived = Vec::new();
    for mode in [Mode::Enforce, Mode::Shadow, Mode::Off] {
        let bench = bench(mode);
        let handler = async { Ok(current().unwrap().derive_key("charge")) };
        derived.push(bench.with_handler("k", 1, handler).await.unwrap());
        derived.push(hold(&bench, "k2").await.handle().derive_key("charge"));
    }
    assert!(derived.chunks(2).all(|of_mode| of_mode == &derived[..2]), "{derived:?}");
    let handle = hold(&bench(Mode::Off), "k").await.handle();
    assert_eq!((handle.attempt(), handle.is_takeover()), (1, false));
}

/// Without enforcement, the library neither refuses a delivery that has no time left, nor cuts a handler off at its
/// deadline.
#[tokio::test(start_paused = true)]
async fn unenforced_handlers_have_no_time_limit() {
    for mode in NOT_ENFORCED {
        let bench = bench(mode);
        let late = bench.in_invocation(bench.now());
        let slow = async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok("done".to_owned())
        };
        assert_eq!(late.with_handler("k", 1, slow).await.unwrap(), "done", "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_modes_commit_staged_writes() {
    for mode in NOT_ENFORCED {
        let bench = bench(mode);
        let deposit = || async {
            staging().unwrap().add(Deposits::of("till", 1)).unwrap();
            Ok("paid".to_owned())
        };
        for bench in [bench.clone(), bench.optimistic(false), bench.optimistic(true)] {
            bench.with_handler("k", 1, deposit()).await.unwrap();
        }
        assert_eq!(bench.store.bank.balance("till"), 3, "{mode:?}");
        let claim = hold(&bench, "by hand").await;
        assert!(matches!(claim.commit("x", Deposits::of("till", 1)).await, Ok(Settled::Recorded)));
        assert_eq!(bench.store.bank.balance("till"), 4, "{mode:?}");
        assert!(bench.store.inner.all().iter().all(|(key, _)| key.as_str().contains("~shadow#")));
        // A failed handler's writes are dropped.
        let failing = async {
            staging().unwrap().add(Deposits::of("till", 1)).unwrap();
            Err(TestError)
        };
        assert!(bench.with_handler("k", 1, failing).await.is_err());
        assert_eq!(bench.store.bank.balance("till"), 4, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn memory_store_commits_writes_without_record() {
    use crate::internal::testing::Transaction;
    for mode in NOT_ENFORCED {
        let store = MemoryStore::new();
        let builder = Idempotency::builder(store.clone()).function("tests").mode(mode);
        let step = builder.build().unwrap().operation("step").unwrap();
        let run = async || {
            let place = || async {
                let order = Transaction::new().absent("orders", "17").put("orders", "17", "placed");
                staging().unwrap().add(order).unwrap();
                Ok::<_, TestError>(())
            };
            step.run(Key::new("k").unwrap(), &1, place).await
        };
        run().await.unwrap();
        assert_eq!(store.item("orders", "17").as_deref(), Some("placed"), "{mode:?}");
        assert_eq!(kind(run().await), ErrorKind::Declined, "the write's condition fails the second time");
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_modes_still_handle_declined_writes() {
    let short = || Deposits::of("till", 1).if_balance_is_at_least(1);
    for mode in NOT_ENFORCED {
        let bench = bench(mode);
        let answered = async {
            let staging = staging().unwrap();
            staging.add(short()).unwrap();
            staging.on_declined(|short: &Short| Ok::<_, TestError>(format!("has {}", short.has)));
            Ok("paid".to_owned())
        };
        assert_eq!(bench.with_handler("k", 1, answered).await.unwrap(), "has 0");
        let unanswered = async {
            staging().unwrap().add(short()).unwrap();
            Ok("paid".to_owned())
        };
        assert_eq!(kind(bench.with_handler("k", 1, unanswered).await), ErrorKind::Declined);
        let not_committed: NotCommitted =
            hold(&bench, "by hand").await.commit("x", short()).await.expect_err("declined");
        assert_eq!(not_committed.details::<Short>(), Some(&Short { account: "till", has: 0 }));
        not_committed.into_claim().unwrap().release().await.unwrap();
        assert_eq!(bench.store.bank.balance("till"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_transactions_retry_with_one_token() {
    for (script, expected, balance) in [
        (vec![Meets(Fault::LoseAnswer)], None, 1),
        (vec![Meets(Fault::LoseRequest), Meets(Fault::Conflict)], None, 1),
        (vec![Meets(Fault::Throttle), Script::InFlight], None, 1),
        (vec![Meets(Fault::Silence)], None, 1),
        (vec![Meets(Fault::SilenceAfter)], None, 1),
        (vec![Meets(Fault::Throttle); 200], Some(ErrorKind::Unavailable), 0),
        (vec![Meets(Fault::LoseRequest); 200], Some(ErrorKind::Unrecorded), 0),
        (vec![Meets(Fault::LoseAnswer); 200], Some(ErrorKind::Unrecorded), 1),
        (vec![Meets(Fault::Unstorable)], Some(ErrorKind::Invalid), 0),
    ] {
        let bench = bench(Mode::Off);
        bench.store.script(script.clone());
        let deposit = async {
            staging().unwrap().add(Deposits::of("till", 1)).unwrap();
            Ok("paid".to_owned())
        };
        let result = bench.with_handler("k", 1, deposit).await;
        match expected {
            None => assert_eq!(result.unwrap(), "paid", "{script:?}"),
            Some(expected) => assert_eq!(kind(result), expected, "{:?}", script[0]),
        }
        assert_eq!(bench.store.bank.balance("till"), balance, "{:?}", script[0]);
        let tokens = bench.store.bank.tokens();
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
        bench.store.end_script();
    }
}

/// If the store doesn't answer, the library stops retrying in time to answer the caller. But it sends the first call
/// even if the deadline has passed.
#[tokio::test(start_paused = true)]
async fn unenforced_transactions_keep_the_answer_reserve() {
    let bench = bench(Mode::Off);
    let deposit = || async {
        staging().unwrap().add(Deposits::of("till", 1)).unwrap();
        Ok("paid".to_owned())
    };
    let begun = bench.now();
    let inside = bench.in_invocation(begun.saturating_add(Duration::from_millis(550)));
    bench.store.script([Meets(Fault::Silence); 10]);
    assert_eq!(kind(inside.with_handler("k", 1, deposit()).await), ErrorKind::Unrecorded);
    let took = begun.until(bench.now());
    assert!(took <= Duration::from_millis(300), "250 ms are reserved for the answer: {took:?}");
    bench.store.end_script();
    let late = bench.in_invocation(bench.now());
    assert_eq!(late.with_handler("k", 1, deposit()).await.unwrap(), "paid");
}

#[tokio::test(start_paused = true)]
async fn shadow_reports_refused_callers() {
    use lambda_http::{Body, Request, Response};
    use tower::{Layer as _, Service as _, service_fn};

    let bench = bench(Mode::Shadow);
    let post = |authorization: Option<&str>| {
        let mut request = Request::new(Body::from("{}"));
        *request.method_mut() = ::http::Method::POST;
        request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
        if let Some(authorization) = authorization {
            request.headers_mut().insert("authorization", authorization.parse().unwrap());
        }
        request
    };
    let handler =
        service_fn(async |_: Request| Ok::<_, std::convert::Infallible>(Response::new(Body::Empty)));
    let mut service = bench.idempotency.http().require_caller(true).layer(handler);
    let of_nobody = reports(&bench, service.call(post(None))).await;
    let of_unnamed = reports(&bench, service.call(post(Some("Bearer x")))).await;
    assert_eq!(
        (of_nobody, of_unnamed),
        (vec!["refuse CallerMissing".into()], vec!["refuse CallerUnknown".into()])
    );
}

#[tokio::test(start_paused = true)]
async fn shadow_reports_what_enforcing_would_do() {
    let bench = bench(Mode::Shadow);
    let run = async |key: &str, payload: u8, answer: &str| {
        let (runs, answer) = (AtomicUsize::new(0), answer.to_owned());
        let handler = async {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(answer.clone())
        };
        assert_eq!(bench.with_handler(key, payload, handler).await.unwrap(), answer);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    };
    assert_eq!(reports(&bench, run("k", 1, "a")).await, ["run"]);
    assert_eq!(reports(&bench, run("k", 1, "a")).await, ["replay same"]);
    assert_eq!(reports(&bench, run("k", 1, "b")).await, ["replay different"]);
    assert_eq!(reports(&bench, bench.fail("k", 1)).await, ["replay different"]);
    assert_eq!(reports(&bench, run("k", 2, "a")).await, ["refuse Mismatch"]);
    // A failed handler's shadow record is released, so the next delivery is reported as `run`.
    assert_eq!(reports(&bench, bench.fail("f", 1)).await, ["run"]);
    assert_eq!(reports(&bench, run("f", 1, "a")).await, ["run"]);
    // This handler never ends. At first, its claim is live. After 63 s, the claim is stale.
    bench.abandon_in_shadow("s").await;
    assert_eq!(reports(&bench, run("s", 1, "a")).await, ["refuse InProgress"]);
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(reports(&bench, run("s", 1, "a")).await, ["take over"]);
    bench.store.script([Meets(Fault::Throttle)]);
    assert_eq!(reports(&bench, run("k", 1, "a")).await, ["unknown"]);
    bench.store.script(std::iter::once(Script::Pass).chain([Meets(Fault::Refuse); 50]));
    assert_eq!(reports(&bench, run("n", 1, "a")).await, ["unknown"]);
    bench.store.end_script();
    // With enforcement, an operation that runs inside itself is refused. The outer run is reported as usual.
    let inner = async {
        run("nested", 1, "inner").await;
        Ok("outer".to_owned())
    };
    let nested = reports(&bench, bench.with_handler("nested", 1, inner)).await;
    assert_eq!(nested, ["refuse Invalid", "run"]);
}

impl Bench {
    /// Claims a key in shadow mode, and drops the future while the handler waits.
    async fn abandon_in_shadow(&self, key: &str) {
        let _ = tokio::time::timeout(Duration::from_millis(1), self.hang(key, 1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn manual_claims_are_reported_in_shadow_mode() {
    let bench = bench(Mode::Shadow);
    let complete = async |answer: &'static str| {
        let _ = hold(&bench, "k").await.complete(answer).await.unwrap();
    };
    assert_eq!(reports(&bench, complete("a")).await, ["run"]);
    assert_eq!(reports(&bench, complete("a")).await, ["replay same"]);
    assert_eq!(reports(&bench, complete("b")).await, ["replay different"]);
    let extended = async {
        let mut claim = hold(&bench, "e").await;
        claim.extend(Duration::from_secs(3600)).await.unwrap();
        drop(claim);
    };
    assert_eq!(reports(&bench, extended).await, [""; 0], "the claim was dropped without an outcome");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let again = async { hold(&bench, "e").await.release().await.unwrap() };
    assert_eq!(reports(&bench, again).await, ["refuse InProgress"], "the shadow record's lease was extended");
}

/// After an unresolved commit, the caller doesn't get the claim back, and can't settle the shadow record. So the commit
/// settles that record.
#[tokio::test(start_paused = true)]
async fn unresolved_shadow_commit_settles_its_record() {
    let bench =
        Bench::with(|builder| builder.mode(Mode::Shadow).settings(|s| s.settle_within = Duration::ZERO));
    let commit = async {
        let claim = hold(&bench, "k").await;
        bench.store.script([Meets(Fault::LoseRequest)]);
        let not_committed = claim.commit("x", Deposits::of("till", 1)).await.unwrap_err();
        assert_eq!(not_committed.into_claim().unwrap_err().kind(), ErrorKind::Unrecorded);
    };
    assert_eq!(reports(&bench, commit).await, ["run"]);
    let statuses: Vec<_> = bench.store.inner.all().iter().map(|(_, record)| record.status()).collect();
    assert_eq!(statuses, [Status::Released]);
}

#[tokio::test(start_paused = true)]
async fn optimistic_shadow_compares_with_first_outcome() {
    for reads_first in [false, true] {
        let bench = bench(Mode::Shadow).optimistic(reads_first);
        assert_eq!(reports(&bench, bench.run("k", 1)).await, ["run"]);
        assert_eq!(reports(&bench, bench.run("k", 1)).await, ["replay different"]);
        assert_eq!(bench.runs(), 2);
    }
}

/// Store failures change neither when the handler starts nor what it returns, no matter which call fails first.
#[tokio::test(start_paused = true)]
async fn store_failures_never_change_a_shadowed_outcome() {
    for fault in FAULTS {
        for healthy in 0..3 {
            for outcome in ["value", "error", "panic", "by hand"] {
                let bench = bench(Mode::Shadow);
                let _ = bench.run("seen", 1).await;
                let script = std::iter::repeat_n(Script::Pass, healthy).chain([fault; 50]);
                bench.store.script(script);
                let begun = bench.now();
                match outcome {
                    "value" => {
                        let started = AtomicU64::new(u64::MAX);
                        let handler = async {
                            started.store(begun.until(bench.now()).as_millis() as u64, Ordering::SeqCst);
                            Ok("mine".to_owned())
                        };
                        assert_eq!(bench.with_handler("k", 1, handler).await.unwrap(), "mine");
                        assert_eq!(started.load(Ordering::SeqCst), 0, "{fault:?}");
                    }
                    "error" => assert!(matches!(bench.fail("k", 1).await, Err(RunError::Handler(TestError)))),
                    "panic" => {
                        let payload = bench.panic("k", 1).await;
                        assert_eq!(payload.downcast_ref(), Some(&"the handler's own panic"));
                    }
                    _ => {
                        let claim = hold(&bench, "k").await;
                        assert!(matches!(claim.complete("x").await, Ok(Settled::Recorded)));
                    }
                }
                let took = begun.until(bench.now());
                assert!(took <= MOST, "{fault:?} after {healthy} calls, {outcome}: {took:?}");
                bench.store.end_script();
            }
        }
    }
}

/// If the store never answers, shadow mode stops waiting before the time that's reserved for the answer.
#[tokio::test(start_paused = true)]
async fn shadow_keeps_the_answer_reserve() {
    let bench = bench(Mode::Shadow);
    let deadline = bench.now().saturating_add(Duration::from_millis(280));
    let bench = bench.in_invocation(deadline);
    bench.store.script([Meets(Fault::Silence); 3]);
    let begun = bench.now();
    bench.run("k", 1).await.unwrap();
    assert_eq!(begun.until(bench.now()), Duration::from_millis(30), "250 ms are reserved for the answer");
}

#[tokio::test(start_paused = true)]
async fn shadow_and_enforce_share_no_records() {
    let enforced = Bench::new();
    let shadow = enforced.beside(|builder| builder.mode(Mode::Shadow));
    assert_eq!(shadow.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(enforced.run("k", 1).await.unwrap(), "run 2", "the shadow's record isn't replayed");
    assert_eq!(enforced.run("k", 1).await.unwrap(), "run 2");
    // Shadow mode doesn't see the enforced record either.
    assert_eq!(enforced.run("m", 1).await.unwrap(), "run 3");
    assert_eq!(reports(&shadow, shadow.run("m", 1)).await, ["run"]);
    let keys: Vec<_> = enforced.store.inner.all().into_iter().map(|(key, _)| key.to_string()).collect();
    let (of_shadow, of_enforce): (Vec<_>, Vec<_>) =
        keys.iter().partition(|key| key.starts_with("tests/run:step~shadow#"));
    assert_eq!((of_shadow.len(), of_enforce.len()), (2, 2), "{keys:?}");
    assert!(crate::Scope::new("tests", "run:step~shadow").is_err(), "users can't create this scope");
}

#[tokio::test(start_paused = true)]
async fn unenforced_modes_bypass_the_local_cache() {
    for mode in NOT_ENFORCED {
        let bench = Bench::with(|builder| builder.settings(|s| s.local_cache = 1 << 20));
        bench.run("k", 1).await.unwrap();
        let step = bench.operation().with_settings(|settings| settings.mode = mode).unwrap();
        let run = || async { Ok::<_, TestError>("again".to_owned()) };
        assert_eq!(step.run(Key::new("k").unwrap(), &1, run).await.unwrap(), "again", "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_modes_return_the_handlers_error() {
    for mode in NOT_ENFORCED {
        let bench =
            Bench::with(|builder| builder.mode(mode).settings(|s| s.on_handler_error = Recording::Record));
        for _ in 0..2 {
            assert!(matches!(bench.fail("k", 1).await, Err(RunError::Handler(TestError))), "{mode:?}");
        }
        let at_most_once = Bench::with(|builder| builder.mode(mode).execution(Execution::AtMostOnce));
        for nth in 1..=2 {
            assert_eq!(at_most_once.run("k", 1).await.unwrap(), format!("run {nth}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unserialisable_payloads_are_accepted_when_unenforced() {
    let unserialisable = [((1, 2), 3)].into_iter().collect::<std::collections::HashMap<_, _>>();
    let run =
        async |bench: &Bench| bench.with_handler("k", &unserialisable, async { Ok("ran".to_owned()) }).await;
    assert_eq!(kind(run(&Bench::new()).await), ErrorKind::Invalid);
    for mode in NOT_ENFORCED {
        assert_eq!(run(&bench(mode)).await.unwrap(), "ran", "{mode:?}");
    }
}

/// A panic in the store counts as a store failure, not as the handler's panic.
#[tokio::test(start_paused = true)]
async fn shadow_treats_panicking_store_as_failed() {
    #[derive(Debug)]
    struct Panics;
    impl crate::store::Store for Panics {
        fn put<'a>(
            &'a self,
            _: &'a crate::StoredKey,
            _: &'a crate::store::Put,
        ) -> crate::future::BoxFuture<'a, Result<crate::store::PutOutcome, crate::store::StoreError>>
        {
            Box::pin(async { panic!("the store's own panic") })
        }
        fn read<'a>(
            &'a self,
            _: &'a crate::StoredKey,
        ) -> crate::future::BoxFuture<'a, Result<Option<Record>, crate::store::StoreError>> {
            Box::pin(async { panic!("the store's own panic") })
        }
    }
    let idempotency = Idempotency::builder(Panics).function("tests").mode(Mode::Shadow).build().unwrap();
    let step = idempotency.operation("step").unwrap();
    let slow = || async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, TestError>("mine".to_owned())
    };
    assert_eq!(step.run(Key::new("k").unwrap(), &1, slow).await.unwrap(), "mine");
}

#[tokio::test(start_paused = true)]
async fn shadow_reports_a_wait_as_refusal() {
    let wait = Duration::from_secs(5);
    let bench = Bench::with(|builder| builder.mode(Mode::Shadow).settings(|s| s.wait_in_progress = wait));
    bench.abandon_in_shadow("k").await;
    let begun = bench.now();
    assert_eq!(reports(&bench, bench.run("k", 1)).await, ["refuse InProgress"]);
    assert_eq!(begun.until(bench.now()), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn unenforced_modes_warn_once_at_start() {
    for (mode, expected) in [(Mode::Enforce, 0), (Mode::Shadow, 1), (Mode::Off, 1)] {
        let seen = Bench::new();
        let events = seen.recorded(async {
            let bench = bench(mode);
            for _ in 0..3 {
                bench.run("k", 1).await.unwrap();
            }
        });
        let events = events.await;
        let warned = events.iter().filter(|event| event.contains(r#"event="not_enforced""#));
        assert_eq!(warned.count(), expected, "{mode:?}: {events:?}");
    }
}
