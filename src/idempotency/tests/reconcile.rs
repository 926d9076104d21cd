//! Operations with a reconciler: an attempt that ended without an answer is asked for before the handler runs again.

use std::{error::Error as StdError, sync::atomic::AtomicUsize};

use super::*;
use crate::{
    ClaimHandle, Error, Failure, Found, Idempotency, RecordedFailure,
    settings::{Mode, Settings},
    store::Mark,
};

type Boxed = Box<dyn StdError + Send + Sync>;
type Answer = Result<Found<String>, Boxed>;

/// The lease, the time in which effects arrive, and the skew margin of these tests.
const LEASE: Duration = Duration::from_secs(60);
const ARRIVES: Duration = Duration::from_secs(30);
const MARGIN: Duration = Duration::from_secs(2);
const MOMENT: Duration = Duration::from_millis(1);

fn unknown() -> Answer {
    Ok(Found::NotKnownYet { ask_again_after: Duration::from_secs(90) })
}

fn found() -> Answer {
    Ok(Found::Happened("found".to_owned()))
}

fn absent() -> Answer {
    Ok(Found::DidNotHappen)
}

struct Asking {
    bench: Bench,
    asked: AtomicUsize,
}

impl Asking {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        Self { bench: Bench::with(|builder| builder.settings(change)), asked: AtomicUsize::new(0) }
    }

    /// Runs the operation with a question that has this answer.
    async fn run(&self, answer: Answer) -> Result<String, RunError<TestError>> {
        self.run_with("a", answer, || async {
            self.bench.count_run();
            Ok(format!("run {}", self.bench.runs()))
        })
        .await
    }

    async fn run_with<E: std::fmt::Display + 'static, Fut: Future<Output = Result<String, E>>>(
        &self,
        key: &str,
        answer: Answer,
        handler: impl FnOnce() -> Fut,
    ) -> Result<String, RunError<E>> {
        let answer = std::sync::Mutex::new(Some(answer));
        let question = async |claim: ClaimHandle| {
            assert!(claim.is_takeover());
            assert!(crate::staging().is_none(), "a question stages nothing");
            self.asked.fetch_add(1, Ordering::SeqCst);
            answer.lock().unwrap().take().unwrap()
        };
        let operation = self.bench.operation().reconcile(question).unwrap();
        operation.run(Key::new(key).unwrap(), &1, handler).await
    }

    /// Leaves an attempt without an answer, and waits until it may be asked for.
    async fn left() -> Self {
        Self::left_with(|_| {}).await
    }

    async fn left_with(change: impl FnOnce(&mut Settings)) -> Self {
        let asking = Self::with(change);
        asking.bench.abandon("a", 1).await;
        tokio::time::sleep(LEASE + ARRIVES + MARGIN + MOMENT).await;
        asking
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn kept(&self) -> (Status, Mark) {
        let record = self.bench.record("a");
        (record.status(), record.mark)
    }
}

fn library<E>(result: Result<String, RunError<E>>) -> Error {
    match result {
        Err(RunError::Idempotency(error)) => error,
        _ => panic!("not an error of the library"),
    }
}

#[tokio::test(start_paused = true)]
async fn first_runs_and_duplicates_ask_nothing() {
    let asking = Asking::new();
    assert_eq!(asking.run(found()).await.unwrap(), "run 1");
    assert_eq!(asking.bench.store.take_calls(), ["claim", "settle"]);
    assert_eq!(asking.run(found()).await.unwrap(), "run 1");
    assert_eq!((asking.asked(), asking.bench.store.take_calls().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn found_results_are_recorded() {
    let asking = Asking::left().await;
    let events =
        asking.bench.recorded(async { assert_eq!(asking.run(found()).await.unwrap(), "found") }).await;
    assert!(events.iter().any(|event| event.contains("\"reconciled\"")), "{events:?}");
    assert_eq!(asking.kept(), (Status::Completed, Mark::Reconciled));
    assert_eq!(asking.run(absent()).await.unwrap(), "found", "a duplicate replays");
    assert_eq!((asking.asked(), asking.bench.runs()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn found_failures_are_recorded() {
    let asking = Asking::left().await;
    let declined = || RecordedFailure::new("Declined", "the card is blocked");
    for _ in 0..2 {
        match asking.run(Ok(Found::Failed(declined()))).await {
            Err(RunError::Recorded(failure)) => assert_eq!(failure, declined()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(asking.kept(), (Status::Failed, Mark::Reconciled));
    assert_eq!((asking.asked(), asking.bench.runs()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn absent_effects_run_the_handler() {
    let asking = Asking::left().await;
    assert_eq!(asking.run(absent()).await.unwrap(), "run 1");
    assert_eq!(asking.kept(), (Status::Completed, Mark::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn questions_wait_until_effects_have_arrived() {
    let asking = Asking::new();
    asking.bench.abandon("a", 1).await;
    tokio::time::sleep(LEASE + ARRIVES + MARGIN).await;
    let error = library(asking.run(found()).await);
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::InProgress, Some(MOMENT)));
    assert_eq!(asking.asked(), 0);
}

/// The key isn't free: another payload is a mismatch, and the same one learns when to retry.
#[tokio::test(start_paused = true)]
async fn unknown_effects_keep_the_key() {
    let asking = Asking::left().await;
    let error = library(asking.run(unknown()).await);
    let wait = Duration::from_secs(90) + MARGIN + MOMENT;
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::InProgress, Some(wait)));
    assert_eq!(asking.kept(), (Status::Started, Mark::Unanswered));
    assert_eq!(library(asking.bench.run("a", 2).await).kind(), ErrorKind::Mismatch);
    tokio::time::sleep(wait - MOMENT).await;
    assert_eq!(library(asking.run(found()).await).retry_after(), Some(MOMENT));
    tokio::time::sleep(MOMENT).await;
    assert_eq!(asking.run(found()).await.unwrap(), "found");
    assert_eq!(asking.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_questions_keep_the_key() {
    let asking = Asking::left().await;
    let error = library(asking.run(Err("the gateway is down".into())).await);
    assert_eq!(error.kind(), ErrorKind::InProgress);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(10) + MARGIN + MOMENT));
    assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the gateway is down"));
    assert_eq!((asking.kept(), asking.bench.runs()), ((Status::Started, Mark::Unanswered), 0));
}

#[tokio::test(start_paused = true)]
async fn panicking_questions_keep_the_key() {
    let asking = Asking::left().await;
    let question = async |_: ClaimHandle| -> Answer { panic!("the question's own panic") };
    let operation = asking.bench.operation().reconcile(question).unwrap();
    let running = operation.run(Key::new("a").unwrap(), &1, || async { Ok::<_, TestError>(String::new()) });
    let ended = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(Box::pin(running))).await;
    assert!(ended.is_err(), "the panic resumes");
    assert_eq!(asking.kept(), (Status::Started, Mark::Unanswered));
}

/// The question is cut off like a handler. Its claim stays, and the next attempt asks again.
#[tokio::test(start_paused = true)]
async fn hanging_questions_are_cut_off() {
    let asking = Asking::left().await;
    let question = async |_: ClaimHandle| -> Answer { std::future::pending().await };
    let operation = asking.bench.operation().reconcile(question).unwrap();
    let ended =
        operation.run(Key::new("a").unwrap(), &1, || async { Ok::<_, TestError>(String::new()) }).await;
    let error = library(ended);
    assert_eq!(error.kind(), ErrorKind::InProgress);
    assert_eq!(asking.kept(), (Status::Started, Mark::Interrupted));
    tokio::time::sleep(error.retry_after().unwrap()).await;
    assert_eq!(asking.run(found()).await.unwrap(), "found");
}

/// A question that takes long leaves the handler less time, and at the end none.
#[tokio::test(start_paused = true)]
async fn time_is_judged_again_after_a_question() {
    let asking = Asking::left().await;
    let now = asking.bench.now();
    let bench = asking.bench.in_invocation(now.saturating_add(Duration::from_secs(5)));
    let question = async |_: ClaimHandle| -> Answer {
        tokio::time::sleep(Duration::from_millis(4900)).await;
        absent()
    };
    let operation = bench.operation().reconcile(question).unwrap();
    let ended =
        operation.run(Key::new("a").unwrap(), &1, || async { Ok::<_, TestError>(String::new()) }).await;
    assert_eq!(library(ended).kind(), ErrorKind::Unavailable);
    assert_eq!((asking.kept(), bench.runs()), ((Status::Started, Mark::Unanswered), 0));
}

/// The first attempt doesn't know; the second asks, once the effect has had the time to arrive.
#[tokio::test(start_paused = true)]
async fn unknown_failures_are_asked_for() {
    // An executor without a reconciler doesn't know how long its effect takes, so the next question waits for it.
    let (marked, short) = ((ARRIVES, Mark::Unanswered), (Duration::from_secs(10) + ARRIVES, Mark::None));
    for (has_reconciler, (wait, mark)) in [(true, marked), (false, short)] {
        let asking = Asking::new();
        let timed_out = || async { Err(Failure::unknown("timed out")) };
        if has_reconciler {
            asking.run_with("a", found(), timed_out).await.unwrap_err();
        } else {
            asking.bench.operation().run(Key::new("a").unwrap(), &1, timed_out).await.unwrap_err();
        }
        assert_eq!(asking.kept(), (Status::Started, mark));
        tokio::time::sleep(wait + MARGIN).await;
        assert_eq!(library(asking.run(found()).await).kind(), ErrorKind::InProgress);
        tokio::time::sleep(MOMENT).await;
        assert_eq!(asking.run(found()).await.unwrap(), "found");
    }
}

/// Without a reconciler, a panic releases the key. With one, the effect is asked for first.
#[tokio::test(start_paused = true)]
async fn panics_are_asked_for() {
    let asking = Asking::new();
    let panicking = || async { std::panic::panic_any("the handler's own panic") };
    let running = asking.run_with::<TestError, _>("a", found(), panicking);
    let ended = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(Box::pin(running))).await;
    assert!(ended.is_err());
    assert_eq!(asking.kept(), (Status::Started, Mark::Unanswered));
    tokio::time::sleep(ARRIVES + MARGIN + MOMENT).await;
    assert_eq!(asking.run(found()).await.unwrap(), "found");
}

#[tokio::test(start_paused = true)]
async fn at_most_once_settles_only_what_was_found() {
    let once = |s: &mut Settings| s.execution = Execution::AtMostOnce;
    let asking = Asking::left_with(once).await;
    for answer in [absent(), unknown(), Err("down".into())] {
        assert_eq!(library(asking.run(answer).await).kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(asking.kept(), (Status::Started, Mark::Unanswered));
        tokio::time::sleep(Duration::from_secs(100)).await;
    }
    assert_eq!(asking.run(found()).await.unwrap(), "found");
    assert_eq!((asking.asked(), asking.bench.runs()), (4, 0));

    let asking = Asking::left_with(|s| {
        once(s);
        s.rerun_when_absent = true;
    })
    .await;
    assert_eq!(asking.run(absent()).await.unwrap(), "run 1");
}

/// Each executor without a reconciler takes over as its own settings say, and the record's mark tells every later attempt.
#[tokio::test(start_paused = true)]
async fn builds_without_reconciler_take_over() {
    let asking = Asking::left().await;
    library(asking.run(unknown()).await);
    tokio::time::sleep(Duration::from_secs(90) + MARGIN + MOMENT).await;
    let without = asking.bench.beside(|builder| builder);
    let told = |bench: &Bench| {
        let bench = bench.clone();
        async move {
            let told = || async { Ok::<_, TestError>(current().unwrap().is_takeover().to_string()) };
            bench.operation().run(Key::new("a").unwrap(), &1, told).await
        }
    };
    assert_eq!(told(&without).await.unwrap(), "true");
    assert_eq!(asking.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_the_questions_outcome_are_found() {
    for fault in [Fault::LoseAnswer, Fault::Throttle] {
        let asking = Asking::left().await;
        // The first claim, the takeover, and the settlement.
        asking.bench.store.script([Script::Pass, Script::Pass, Script::Meets(fault)]);
        assert_eq!(asking.run(found()).await.unwrap(), "found", "{fault:?}");
        assert_eq!(asking.kept(), (Status::Completed, Mark::Reconciled), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn contradictory_reconcilers_are_refused() {
    let question = async |_: ClaimHandle| found();
    let refused = |idempotency: &Idempotency| {
        idempotency.operation("step").unwrap().reconcile(question).unwrap_err().kind()
    };
    let bench = Bench::new();
    assert_eq!(refused(&bench.idempotency.optimistic().unwrap()), ErrorKind::Invalid);
    let open = bench.idempotency.with_settings(|s| s.fail_open = true).unwrap();
    assert_eq!(refused(&open), ErrorKind::Invalid);
    let long = |s: &mut Settings| s.effects_arrive_within = Duration::from_secs(12 * 60 * 60 + 1);
    assert_eq!(bench.idempotency.with_settings(long).unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn unenforced_operations_ask_nothing() {
    for mode in [Mode::Off, Mode::Shadow] {
        let asking = Asking::left_with(|s| s.mode = mode).await;
        assert_eq!(asking.run(found()).await.unwrap(), "run 1", "{mode:?}");
        assert_eq!(asking.asked(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn records_are_reconciled_by_themselves() {
    let asking = Asking::left().await;
    let (key, record) = (asking.bench.stored_key("a"), asking.bench.record("a"));
    let idempotency = asking.bench.idempotency.operation("step").unwrap().idempotency().clone();
    let ask = async |answer: Answer| idempotency.reconcile_record(&key, &record, async |_| answer).await;
    assert!(!ask(absent()).await.unwrap());
    assert_eq!(asking.kept(), (Status::Started, Mark::Unanswered), "no handler can run here");
    tokio::time::sleep(MARGIN + MOMENT).await;
    assert_eq!(ask(unknown()).await.unwrap_err().kind(), ErrorKind::InProgress);
    tokio::time::sleep(Duration::from_secs(90) + MARGIN + MOMENT).await;
    assert!(ask(found()).await.unwrap());
    assert!(ask(absent()).await.unwrap(), "it's settled already");
    assert_eq!(asking.run(absent()).await.unwrap(), "found");
    // A record that's gone claims nothing.
    asking.bench.store.remove_all();
    assert!(!ask(found()).await.unwrap());
    assert_eq!(asking.bench.record("a").status(), Status::Released);
}

/// Services behind `lambda_http`, and spawned tasks, need futures that are `Send`.
#[tokio::test(start_paused = true)]
async fn reconciled_runs_are_send() {
    async fn send(gateway: &str, reference: &str) -> Result<String, TestError> {
        tokio::task::yield_now().await;
        Ok(format!("{gateway} {reference}"))
    }
    let bench = Bench::new();
    let gateway: std::sync::Arc<str> = "gateway".into();
    let ran = tokio::spawn(async move {
        let remote = gateway.clone();
        let question = async |claim: ClaimHandle| {
            let key = claim.derive_key(&remote);
            tokio::task::yield_now().await;
            Ok(Found::Happened(key))
        };
        let charge = bench.operation().reconcile(question).unwrap();
        charge.run(Key::new("a").unwrap(), &1, || send(&gateway, "a")).await
    });
    assert_eq!(ran.await.unwrap().unwrap(), "gateway a");
}
