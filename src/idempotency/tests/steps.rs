//! How a handler's failure is settled if one of its steps was refused, and may succeed later.

use std::{error::Error as StdError, fmt::Display, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use tokio::sync::Mutex;

use super::*;
use crate::Failure;

type Boxed = Box<dyn StdError + Send + Sync>;
type Step = Result<String, RunError<TestError>>;

/// A handler with steps. Another delivery holds the claim of the step `held`.
struct Handler {
    outer: Bench,
    steps: Bench,
}

impl Handler {
    async fn new(execution: Execution) -> Self {
        let outer = Bench::with(|builder| {
            let builder = builder.execution(execution).settings(|s| s.on_handler_error = Recording::Record);
            builder.settings(|s| s.lease_fallback = Duration::from_secs(600))
        });
        let steps = outer.beside(|builder| builder);
        steps.abandon("held", 1).await;
        Self { outer, steps }
    }

    /// Runs the step `held`, and then a handler that returns `end`'s error. Returns the record's status.
    async fn ended_by<E: Display + 'static>(&self, end: impl FnOnce(Step) -> E) -> Status {
        let steps = self.steps.clone();
        self.status(async move || Err(end(steps.run("held", 1).await))).await
    }

    /// Runs the handler, and returns the record's status.
    async fn status<E: Display + 'static>(&self, handler: impl AsyncFnOnce() -> Result<String, E>) -> Status {
        let running = self.outer.operation();
        let running = running.run(Key::new("outer").unwrap(), &1, || async move { handler().await });
        let failed = AssertUnwindSafe(Box::pin(running)).catch_unwind().await.map_or(true, |it| it.is_err());
        assert!(failed, "the handler succeeded");
        let status = self.outer.record("outer").status();
        self.outer.store.inner.set(&self.outer.stored_key("outer"), None);
        status
    }

    /// Lets the step `held` succeed from now on.
    async fn free() {
        tokio::time::sleep(Duration::from_secs(63)).await;
    }
}

/// A handler's own error, whose text doesn't show its source.
#[derive(Debug)]
struct Charging<E>(E);

impl<E> Display for Charging<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the charge failed")
    }
}

impl<E: StdError + 'static> StdError for Charging<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

fn text(step: Step) -> String {
    format!("charge failed: {}", step.unwrap_err())
}

#[tokio::test(start_paused = true)]
async fn refused_step_releases_at_least_once_key() {
    let handler = Handler::new(Execution::AtLeastOnce).await;
    assert_eq!(handler.ended_by(text).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Boxed::from(text(step))).await, Status::Released);
    assert_eq!(handler.ended_by(|_| TestError).await, Status::Released, "the refusal is dropped");
    assert_eq!(handler.ended_by(|step| Failure::from(text(step))).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Failure::transient(text(step))).await, Status::Released);
    assert_eq!(handler.ended_by(|step| step.unwrap_err()).await, Status::Released);
    // The handler says that its failure is permanent.
    assert_eq!(handler.ended_by(|_| Failure::permanent("Final", "no")).await, Status::Failed);
    // A step that runs, and fails, isn't refused.
    let steps = handler.steps.clone();
    let failed = handler.status(async move || Err(format!("{:?}", steps.fail("failing", 1).await)));
    assert_eq!(failed.await, Status::Failed);
    // A panic is a failure too, and the next attempt learns of it.
    let steps = handler.steps.clone();
    let panicked = async move || Ok::<_, TestError>(steps.run("held", 1).await.unwrap());
    assert_eq!(handler.status(panicked).await, Status::Released);
    assert_eq!(
        handler.status(async || -> Result<String, TestError> { panic!("no step") }).await,
        Status::Failed
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_last_attempt_of_a_step_counts() {
    let handler = Handler::new(Execution::AtLeastOnce).await;
    // The step succeeds in its second attempt, and the handler fails for another reason.
    let steps = handler.steps.clone();
    let retried = handler.status(async move || {
        assert!(steps.run("held", 1).await.is_err());
        Handler::free().await;
        steps.run("held", 1).await.unwrap();
        Err(TestError)
    });
    assert_eq!(retried.await, Status::Failed);
    // One of two steps is refused.
    let steps = handler.steps.clone();
    steps.abandon("other", 1).await;
    let one_of_two = handler.status(async move || {
        assert!(steps.run("other", 1).await.is_err());
        assert!(steps.run("free", 1).await.is_ok());
        Err(TestError)
    });
    assert_eq!(one_of_two.await, Status::Released);
    // A claim made by hand is an attempt too.
    let steps = handler.steps.clone();
    let by_hand = handler.status(async move || {
        let begin = || async {
            steps.operation().begin(Key::new("other").unwrap(), Fingerprint::of(&1).unwrap()).await
        };
        assert!(begin().await.is_err());
        Handler::free().await;
        assert!(begin().await.is_ok());
        Err(TestError)
    });
    assert_eq!(by_hand.await, Status::Failed);
}

/// The middle step fails because of the inner one. Its own attempt counts as refused if nothing was recorded.
#[tokio::test(start_paused = true)]
async fn refusals_pass_through_steps_that_failed() {
    for (on_error, recovers, status) in [
        (Recording::Release, false, Status::Released),
        (Recording::Record, false, Status::Released),
        (Recording::Release, true, Status::Failed),
    ] {
        let handler = Handler::new(Execution::AtLeastOnce).await;
        let steps = handler.steps.clone();
        let middle = handler.outer.beside(|builder| {
            builder.settings(|s| {
                s.on_handler_error = on_error;
                s.lease_fallback = Duration::from_secs(300);
            })
        });
        let middle = middle.operation();
        let ended = handler.status(async move || {
            let attempt = || {
                let steps = steps.clone();
                middle.run(Key::new("middle").unwrap(), &1, || async move {
                    steps.run("held", 1).await.map_err(|error| format!("inner: {error}"))
                })
            };
            assert!(Box::pin(attempt()).await.is_err());
            if recovers {
                Handler::free().await;
                assert!(Box::pin(attempt()).await.is_ok());
            }
            Err(TestError)
        });
        assert_eq!(ended.await, status, "{on_error:?} {recovers}");
    }
    // The middle step's failure is permanent, so the outer one isn't to be repeated because of it.
    let handler = Handler::new(Execution::AtLeastOnce).await;
    let (steps, middle) = (handler.steps.clone(), handler.outer.beside(|builder| builder).operation());
    let ended = handler.status(async move || {
        let inner = || async move {
            assert!(steps.run("held", 1).await.is_err());
            Err::<String, _>(Failure::permanent("Final", "no"))
        };
        Box::pin(middle.run(Key::new("middle").unwrap(), &1, inner)).await.map_err(|error| error.to_string())
    });
    assert_eq!(ended.await, Status::Failed);
}

#[tokio::test(start_paused = true)]
async fn at_most_once_releases_only_the_refusal_itself() {
    let handler = Handler::new(Execution::AtMostOnce).await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    // The refusal, or an error that has it as a source.
    assert_eq!(handler.ended_by(|step| step.unwrap_err()).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Box::new(step.unwrap_err())).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Boxed::from(step.unwrap_err())).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Boxed::from(Charging(step.unwrap_err()))).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Failure::from(Charging(step.unwrap_err()))).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Failure::transient(step.unwrap_err())).await, Status::Released);
    let own = |step: Step| match step {
        Err(RunError::Idempotency(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(handler.ended_by(own).await, Status::Released);
    assert_eq!(handler.ended_by(|step| Boxed::from(own(step))).await, Status::Released);
    assert_eq!(handler.ended_by(|step| RunError::Handler(Boxed::from(own(step)))).await, Status::Released);
    // Anything else.
    assert_eq!(handler.ended_by(text).await, Status::Failed);
    assert_eq!(handler.ended_by(|step| Boxed::from(text(step))).await, Status::Failed);
    assert_eq!(handler.ended_by(|step| Failure::transient(text(step))).await, Status::Failed);
    assert_eq!(handler.ended_by(|_| Failure::permanent("Final", "no")).await, Status::Failed);
    assert_eq!(handler.ended_by(|step| Charging(Charging(text(step)))).await, Status::Failed);
    // The refusal is still alive when the handler fails for another reason.
    let log = Arc::clone(&kept);
    assert_eq!(
        handler
            .ended_by(move |step| {
                log.try_lock().unwrap().push(step);
                TestError
            })
            .await,
        Status::Failed
    );
    let steps = handler.steps.clone();
    let panicked = async move || Ok::<_, TestError>(steps.run("held", 1).await.unwrap());
    assert_eq!(handler.status(panicked).await, Status::Failed);
}

/// A spawned task gets the run with its invocation.
#[tokio::test(start_paused = true)]
async fn steps_in_spawned_tasks_count() {
    for (passes_on, status) in [(true, Status::Released), (false, Status::Failed)] {
        let handler = Handler::new(Execution::AtLeastOnce).await;
        let operation = handler.steps.operation();
        let ended = handler.status(async move || {
            let operation = match Invocation::current().filter(|_| passes_on) {
                Some(invocation) => operation.for_invocation(invocation),
                None => operation,
            };
            let step = tokio::spawn(async move {
                let run = operation
                    .run(Key::new("held").unwrap(), &1, || async { Ok::<_, TestError>(String::new()) });
                run.await.map_err(|error| error.to_string())
            });
            step.await.unwrap()
        });
        assert_eq!(ended.await, status, "{passes_on}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_attempts_are_not_refusals() {
    let handler = Handler::new(Execution::AtLeastOnce).await;
    let steps = handler.steps.clone();
    let ended = handler.status(async move || {
        assert!(steps.run("held", 1).await.is_err());
        Handler::free().await;
        let never = steps.with_handler("held", 1, pending());
        assert!(tokio::time::timeout(Duration::from_secs(1), never).await.is_err());
        Err(TestError)
    });
    assert_eq!(ended.await, Status::Failed);
}
