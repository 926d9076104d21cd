//! Steps 5, 6, 13 and 14: processes that are killed, or frozen past their leases, between claim and completion.

use lambda_idempotency_testing::{self as crash_points, Call};
use serde_json::Value;

use super::first_status;
use crate::{
    answer::Answer,
    clock,
    event::Event,
    expect::Expect,
    function::{Delivery, Sandbox},
    judge::Verdict,
    measured::Measured,
    problem::Result,
    report::{Row, settlements_of},
    stage::{Form, LEASE_LIMIT, ORDINARY_LIMIT, Stage, World},
    wire::Hold,
};

/// The point before the process sends its completion, or the transaction that contains it.
const AT_COMPLETION: crash_points::Point = crash_points::Point::Before(Call::Complete);

/// The answer that the report shows if the function didn't send the awaited request.
const NOT_HELD: &str = "(not interrupted in time)";

/// Where a process is killed or frozen: at the request that the wire holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    step: &'static str,
    name: &'static str,
    stage: &'static str,
    form: Form,
    held: crash_points::Point,
    at: &'static str,
    /// Whether the process has made its payment before this point.
    paid: bool,
}

/// Step 13: the process is killed before its transaction, so neither payment nor outcome is committed.
pub(super) const KILLED_AT_COMMIT: Point = Point {
    step: "13",
    name: "killed before its transaction",
    stage: "killed-at-commit",
    form: Form::Transaction,
    held: AT_COMPLETION,
    at: "none: SIGKILL at its transaction",
    paid: false,
};

/// Returns the points to kill a process at. A user's function has only one: the wire recognises its completion, but
/// not its effect.
pub(super) fn points(world: &World) -> Vec<Point> {
    let completion = "none: SIGKILL at its completion";
    if !world.is_payments {
        let name = "killed before its completion";
        return vec![Point {
            step: "5",
            name,
            stage: "killed",
            form: Form::Handler,
            held: AT_COMPLETION,
            at: completion,
            paid: false,
        }];
    }
    vec![
        Point {
            step: "5a",
            name: "killed before its effect",
            stage: "killed-before",
            form: Form::Handler,
            held: crash_points::Point::BeforeEffect,
            at: "none: SIGKILL at its payment",
            paid: false,
        },
        Point {
            step: "5b",
            name: "killed after its effect",
            stage: "killed-after",
            form: Form::Handler,
            held: AT_COMPLETION,
            at: completion,
            paid: true,
        },
    ]
}

/// A step whose process was killed. The process's lease hasn't expired yet.
#[derive(Debug)]
pub(super) struct Killed<'w> {
    stage: Stage<'w>,
    point: Point,
    delivered_at_ms: u64,
    rows: Vec<Row>,
}

/// Runs the first two deliveries of step 5 or 13: the one whose process is killed, and a redelivery before the lease
/// expires.
pub(super) async fn kill(world: &World, point: Point) -> Result<Killed<'_>> {
    let stage = Stage::open_in(world, point.form, point.stage).await?;
    let name = (point.step, point.name);
    let mut sandbox = stage.sandbox().await?;
    // Start a second process now: the redelivery must come before the lease expires, even if a start takes long.
    stage.give_back(stage.sandbox().await?).await;
    let mut hold = stage.wire.hold(point.held);

    let mark = stage.mark().await?;
    let delivered_at_ms = clock::now_ms();
    let _unanswered = sandbox.deliver(&stage.events.first, LEASE_LIMIT);
    let held = hold.reached(LEASE_LIMIT).await;
    sandbox.kill().await?;
    drop(hold);
    sandbox.catch_up().await;
    let measured = stage.since(&mark).await?;
    let verdict = interrupted(&measured, held, point.paid);
    let (delivered, answered) = (stage.events.first.summary(), if held { point.at } else { NOT_HELD });
    let mut rows = vec![stage.done(Row::new(name, delivered, answered, &measured, verdict))];

    let mark = stage.mark().await?;
    let refused = stage.deliver(&stage.events.again).await?;
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.in_progress(&refused).runs(&measured, 0).payments(&measured, 0);
    verdict.claims(&measured, 0).example_requests(&measured, 1);
    rows.push(stage.done(Row::new(name, "again, within the lease", &refused, &measured, verdict)));
    Ok(Killed { stage, point, delivered_at_ms, rows })
}

/// Checks a run that was stopped between its claim and its completion: it claimed, ran, and settled nothing.
fn interrupted(measured: &Measured, held: bool, paid: bool) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.must(held, || {
        format!("the function didn't send the awaited request within {} s", LEASE_LIMIT.as_secs())
    });
    verdict.runs(measured, 1).payments(measured, usize::from(paid));
    verdict.claims(measured, 1).settled(measured, 0).example_requests(measured, 1);
    verdict
}

impl Killed<'_> {
    /// Redelivers after the lease expired. The claim is taken over, and all deliveries together make one payment. If
    /// the function runs at most once, it must refuse the redelivery instead.
    pub(super) async fn after_the_lease(self) -> Result<Vec<Row>> {
        let Self { stage, point, delivered_at_ms, mut rows } = self;
        stage.lease_passed(delivered_at_ms).await?;
        let (answer, measured) = take_over(&stage).await?;
        let name = (point.step, point.name);
        if stage.world.expect == Expect::AtMostOnce {
            let verdict = refused_for_good(&answer, &measured);
            rows.push(stage.done(Row::new(name, "again, after the lease", &answer, &measured, verdict)));
            return Ok(rows);
        }
        let mut verdict = taken_over(stage.world, &answer, &measured);
        verdict.payments(&measured, usize::from(!point.paid));
        paid_once(&stage, &mut verdict).await?;
        rows.push(stage.done(Row::new(name, "again, after the lease", &answer, &measured, verdict)));
        Ok(rows)
    }
}

pub(super) async fn take_over(stage: &Stage<'_>) -> Result<(Answer, Measured)> {
    take_over_by(stage, &stage.events.again).await
}

pub(super) async fn take_over_by(stage: &Stage<'_>, event: &Event) -> Result<(Answer, Measured)> {
    let mark = stage.mark().await?;
    let answer = stage.deliver(event).await?;
    Ok((answer, stage.since(&mark).await?))
}

/// Checks a takeover: a response that isn't a replay, and one run. The example function must send three requests: a
/// rejected claim, the takeover and the completion.
pub(super) fn taken_over(world: &World, answer: &Answer, measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    if answer.is_unknown() && !answer.is_in_progress() {
        verdict.must(false, || {
            "the function answered OutcomeUnknown, so it runs at most once: add --expect at-most-once".into()
        });
        return verdict;
    }
    verdict.fresh(answer, first_status(world)).runs(measured, 1);
    verdict.claims(measured, 1).settled(measured, 1);
    if world.is_payments {
        verdict.requests(measured, 3);
    }
    verdict
}

pub(super) async fn paid_once(stage: &Stage<'_>, verdict: &mut Verdict) -> Result<()> {
    let total = stage.payments().await?;
    if stage.world.is_payments {
        verdict.requires("all deliveries together make 1 payment");
    }
    verdict.must(!stage.world.is_payments || total == 1, || format!("{total} payments in all (expected 1)"));
    Ok(())
}

/// Step 14: the frozen process's transaction arrives after its successor's transaction was applied.
pub(super) const FROZEN_AT_COMMIT: Point = Point {
    step: "14",
    name: "frozen at its transaction",
    stage: "frozen-at-commit",
    form: Form::Transaction,
    held: AT_COMPLETION,
    at: "none: SIGSTOP at its transaction",
    paid: false,
};

/// Returns the points to freeze a process at. A user's function has only one: the wire recognises its completion, but
/// not its effect.
pub(super) fn freezes(world: &World) -> Vec<Point> {
    let completion = Point {
        step: "6b",
        name: "frozen at its completion",
        stage: "frozen-after",
        form: Form::Handler,
        held: AT_COMPLETION,
        at: "none: SIGSTOP at its completion",
        paid: true,
    };
    if !world.is_payments {
        return vec![Point { step: "6", paid: false, ..completion }];
    }
    let handler = Point {
        step: "6a",
        name: "frozen in its handler",
        stage: "frozen-before",
        form: Form::Handler,
        held: crash_points::Point::BeforeEffect,
        at: "none: SIGSTOP at its payment",
        paid: false,
    };
    vec![handler, completion]
}

/// A step whose process is frozen while the wire holds its request.
#[derive(Debug)]
pub(super) struct Frozen<'w> {
    stage: Stage<'w>,
    point: Point,
    sandbox: Sandbox,
    delivery: Delivery,
    hold: Hold,
    delivered_at_ms: u64,
    rows: Vec<Row>,
}

/// Runs step 6 or 14 up to the freeze.
pub(super) async fn freeze(world: &World, point: Point) -> Result<Frozen<'_>> {
    let stage = Stage::open_in(world, point.form, point.stage).await?;
    let sandbox = stage.sandbox().await?;
    let mut hold = stage.wire.hold(point.held);

    let mark = stage.mark().await?;
    let delivered_at_ms = clock::now_ms();
    let delivery = sandbox.deliver(&stage.events.first, LEASE_LIMIT);
    let held = hold.reached(LEASE_LIMIT).await;
    sandbox.freeze().await?;
    sandbox.catch_up().await;
    let measured = stage.since(&mark).await?;
    let verdict = interrupted(&measured, held, point.paid);
    let (delivered, answered) = (stage.events.first.summary(), if held { point.at } else { NOT_HELD });
    let name = (point.step, point.name);
    let rows = vec![stage.done(Row::new(name, delivered, answered, &measured, verdict))];
    Ok(Frozen { stage, point, sandbox, delivery, hold, delivered_at_ms, rows })
}

impl Frozen<'_> {
    /// Redelivers, so that a successor takes the claim over. Then thaws the process: its handler is cut off, or its
    /// completion is fenced. If the function runs at most once, it must refuse the redelivery, and the thawed process
    /// still settles its claim.
    pub(super) async fn after_the_lease(self) -> Result<Vec<Row>> {
        let Self { stage, point, mut sandbox, mut delivery, hold, delivered_at_ms, mut rows } = self;
        let name = (point.step, point.name);
        stage.lease_passed(delivered_at_ms).await?;
        let (successor, measured) = take_over(&stage).await?;
        if stage.world.expect == Expect::AtMostOnce {
            let verdict = refused_for_good(&successor, &measured);
            rows.push(stage.done(Row::new(name, "again, after the lease", &successor, &measured, verdict)));
            rows.extend(thawed_alone(&stage, name, sandbox, delivery, hold).await?);
            return Ok(rows);
        }
        let mut verdict = taken_over(stage.world, &successor, &measured);
        verdict.payments(&measured, usize::from(!point.paid));
        rows.push(stage.done(Row::new(name, "again, after the lease", &successor, &measured, verdict)));

        let before = stage.record().await?;
        let mark = stage.mark().await?;
        // DynamoDB gets the held request before the process is thawed. If the process gave up waiting for the
        // response, it sends the request again.
        if hold.release() {
            stage.wire.answered_since(mark.wire).await;
        }
        sandbox.thaw().await?;
        let late = sandbox.answer_within(&mut delivery, ORDINARY_LIMIT).await;
        let late = stage.world.understood(late);
        let measured = stage.since(&mark).await?;
        // The library cuts the handler off, unless the handler returns right after the thaw. In that case, the
        // completion must be fenced.
        let is_cut_off = point.held != AT_COMPLETION && late.is_in_progress();
        let mut verdict = match is_cut_off {
            true => cut_off(&late, &measured),
            // The batch is past its deadline, so the late executor returns the batch's record for redelivery. The
            // successor's outcome stays.
            false if stage.world.batch.is_some() && late.is_in_progress() => nothing_more(&measured),
            false => fenced(&successor, &late, &measured),
        };
        paid_once(&stage, &mut verdict).await?;
        unchanged(&before, &stage.record().await?, &mut verdict);
        rows.push(stage.done(Row::new(name, "SIGCONT", &late, &measured, verdict)));
        Ok(rows)
    }
}

/// Checks a redelivery after a crash or a freeze, to a function that runs at most once: no run, no claim, and
/// OutcomeUnknown.
fn refused_for_good(answer: &Answer, measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.unknown(answer).runs(measured, 0).claims(measured, 0).settled(measured, 0);
    verdict
}

/// Thaws a process of a function that runs at most once. The process still owns its claim, so its completion is
/// recorded.
async fn thawed_alone(
    stage: &Stage<'_>,
    name: (&'static str, &'static str),
    mut sandbox: Sandbox,
    mut delivery: Delivery,
    hold: Hold,
) -> Result<Vec<Row>> {
    let mark = stage.mark().await?;
    if hold.release() {
        stage.wire.answered_since(mark.wire).await;
    }
    sandbox.thaw().await?;
    let late = sandbox.answer_within(&mut delivery, ORDINARY_LIMIT).await;
    let late = stage.world.understood(late);
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.runs(&measured, 0).claims(&measured, 0).settled(&measured, 1);
    // The process answers with its outcome, except for a batch. A batch is past its deadline here, so the process
    // returns the batch's record for redelivery, and the next delivery acknowledges it.
    if stage.world.batch.is_none() {
        verdict.fresh(&late, None);
    }
    let thawed = stage.done(Row::new(name, "SIGCONT", &late, &measured, verdict));

    let (again, measured) = take_over(stage).await?;
    let mut verdict = nothing_more(&measured);
    verdict.must(again.is_success(), || format!("expected the recorded answer, got {again}"));
    Ok(vec![thawed, stage.done(Row::new(name, "once more", &again, &measured, verdict))])
}

/// Checks that nothing ran, and nothing was claimed or settled.
fn nothing_more(measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.runs(measured, 0).payments(measured, 0).claims(measured, 0).settled(measured, 0);
    verdict
}

/// Checks a late executor: its completion is refused, and it answers with its successor's outcome.
fn fenced(successor: &Answer, late: &Answer, measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.replay(successor, late).runs(measured, 0).payments(measured, 0);
    verdict.claims(measured, 0).settled(measured, 0);
    let tried = settlements_of(&measured.passed);
    verdict.must(!tried.is_empty(), || "the late completion never reached the wire".into());
    verdict
}

/// Checks a handler that continues after another delivery took over: it does nothing more, and its caller gets
/// InProgress.
pub(super) fn cut_off(late: &Answer, measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.in_progress(late).runs(measured, 0).payments(measured, 0).claims(measured, 0);
    let tried = settlements_of(&measured.passed);
    verdict.must(tried.is_empty(), || "the handler was cut off, but the function sent a completion".into());
    verdict
}

/// Checks that the successor's record is the same before and after the late executor's answer.
pub(super) fn unchanged(before: &Value, after: &Value, verdict: &mut Verdict) {
    verdict.requires("the record stays as it is").must(before == after, || {
        format!("the record is no longer the successor's: {}", change(before, after))
    });
}

/// Describes how the record changed: by the names of the attributes that differ.
fn change(before: &Value, after: &Value) -> String {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        return "it's gone".into();
    };
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    let changed: Vec<&str> =
        names.filter(|name| before.get(*name) != after.get(*name)).map(String::as_str).collect();
    format!("changed in {}", changed.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::{Exchange, Meaning};

    fn measured(passed: Vec<Exchange>) -> Measured {
        Measured { runs: Some(0), payments: Some(0), passed }
    }

    #[test]
    fn a_late_completion_must_be_refused() {
        let outcome = Answer::Payload(b"1".to_vec());
        let refused = measured(vec![Exchange::answered_with(Meaning::Complete, 400)]);
        assert_eq!(fenced(&outcome, &outcome, &refused).faults(), Vec::<String>::new());
        let applied = measured(vec![Exchange::answered_with(Meaning::Complete, 200)]);
        assert_eq!(fenced(&outcome, &outcome, &applied).faults(), ["1 claim was settled (expected 0)"]);
        let unseen = fenced(&outcome, &outcome, &measured(Vec::new())).faults();
        assert_eq!(unseen, ["the late completion never reached the wire"]);
        let own = Answer::Payload(b"2".to_vec());
        let faults = fenced(&outcome, &own, &refused).faults();
        assert_eq!(faults, ["expected the recorded answer, got a response of 1 B"]);
    }

    #[test]
    fn cut_off_handler_settles_nothing() {
        let refusal = Answer::Error { kind: "Idempotency.InProgress".into(), message: "cut off".into() };
        assert_eq!(cut_off(&refusal, &measured(Vec::new())).faults(), Vec::<String>::new());
        let settled = measured(vec![Exchange::answered_with(Meaning::Complete, 400)]);
        let faults = cut_off(&refusal, &settled).faults();
        assert_eq!(faults, ["the handler was cut off, but the function sent a completion"]);
        assert_eq!(cut_off(&Answer::Payload(b"1".to_vec()), &measured(Vec::new())).faults().len(), 1);
    }

    #[test]
    fn an_interrupted_run_settles_nothing() {
        let claimed =
            Measured { runs: Some(1), ..measured(vec![Exchange::answered_with(Meaning::Claim, 200)]) };
        assert_eq!(interrupted(&claimed, true, false).faults(), Vec::<String>::new());
        let faults = interrupted(&claimed, false, true).faults();
        assert_eq!(
            faults,
            ["the function didn't send the awaited request within 3 s", "no payment was made (expected 1)"]
        );
    }

    #[test]
    fn user_function_may_have_written_chunks() {
        let requests = [Meaning::Claim, Meaning::Other, Meaning::Other];
        let passed = requests.map(|meaning| Exchange::answered_with(meaning, 200)).to_vec();
        let users = Measured { runs: Some(1), payments: None, passed: passed.clone() };
        assert_eq!(interrupted(&users, true, false).faults(), Vec::<String>::new());
        let example = Measured { runs: Some(1), payments: Some(0), passed };
        let faults = interrupted(&example, true, false).faults();
        assert_eq!(faults, ["3 requests were sent to the store (expected 1)"]);
    }

    #[test]
    fn record_change_names_the_changed_attributes() {
        let (before, after) =
            (json!({ "owner": 1, "status": 1 }), json!({ "owner": 2, "status": 1, "new": 1 }));
        assert_eq!(change(&before, &after), "changed in owner, new");
        assert_eq!(change(&before, &Value::Null), "it's gone");
    }
}
