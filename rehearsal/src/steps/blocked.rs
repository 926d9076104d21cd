//! Steps 16 and 17: a handler has a short lease that the library extends, and blocks its thread for the length of
//! three leases. While the thread is blocked, the library can neither extend the lease nor cut the handler off.

use std::time::Duration;

use super::crash::{cut_off, paid_once, take_over, taken_over, unchanged};
use crate::{
    clock,
    judge::Verdict,
    problem::Result,
    report::Row,
    stage::{Form, LEASE_LIMIT, Mark, ORDINARY_LIMIT, SHORT_LEASE, Stage, World},
};

/// How long the handler blocks.
const THREE_LEASES: Duration = SHORT_LEASE.saturating_mul(3);

/// Runs both steps concurrently, because both wait for leases. Skips them for a user's function.
pub(super) async fn both(world: &World) -> Result<Vec<Row>> {
    if !world.is_payments {
        return Ok(Vec::new());
    }
    let (mut rows, after) = tokio::try_join!(overtaken(world), redelivered_after(world))?;
    rows.extend(after);
    Ok(rows)
}

/// Step 16: another delivery takes over while the handler blocks. When the blocked thread continues, the library cuts
/// the handler off at the next poll. There's one outcome, and one payment.
async fn overtaken(world: &World) -> Result<Vec<Row>> {
    let name = ("16", "blocked for three leases");
    let stage = Stage::open_in(world, Form::ShortLeases, "blocked").await?;
    let mut blocked = stage.sandbox_that_blocks(THREE_LEASES).await?;
    // Start a second process now, so that later deliveries don't wait for its start.
    stage.give_back(stage.sandbox().await?).await;

    let mark = stage.mark().await?;
    let delivered_at_ms = clock::now_ms();
    let mut delivery = blocked.deliver(&stage.events.first, ORDINARY_LIMIT);
    let has_begun = begins(&stage, &mark).await?;
    blocked.catch_up().await;
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.must(has_begun, || format!("the handler didn't begin within {} s", LEASE_LIMIT.as_secs()));
    verdict.runs(&measured, 1).payments(&measured, 0).claims(&measured, 1).requests(&measured, 1);
    let delivered = stage.events.first.summary();
    let mut rows = vec![stage.done(Row::new(name, delivered, "none yet: it blocks", &measured, verdict))];

    let mark = stage.mark().await?;
    let refused = stage.deliver(&stage.events.again).await?;
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.in_progress(&refused).runs(&measured, 0).payments(&measured, 0);
    verdict.claims(&measured, 0).requests(&measured, 1);
    rows.push(stage.done(Row::new(name, "again, within the lease", &refused, &measured, verdict)));

    stage.lease_passed(delivered_at_ms).await?;
    let (successor, measured) = take_over(&stage).await?;
    let mut verdict = taken_over(world, &successor, &measured);
    verdict.payments(&measured, 1);
    rows.push(stage.done(Row::new(name, "again, after the lease", &successor, &measured, verdict)));

    let before = stage.record().await?;
    let mark = stage.mark().await?;
    let late = blocked.answer_within(&mut delivery, ORDINARY_LIMIT).await;
    let measured = stage.since(&mark).await?;
    let mut verdict = cut_off(&late, &measured);
    paid_once(&stage, &mut verdict).await?;
    unchanged(&before, &stage.record().await?, &mut verdict);
    rows.push(stage.done(Row::new(name, "the thread continues", &late, &measured, verdict)));
    Ok(rows)
}

/// Step 17: nothing is delivered while the handler blocks. When its thread continues, the library cuts the handler off,
/// and the invocation ends. Only then is the event redelivered, as from a stream, and the second handler runs.
async fn redelivered_after(world: &World) -> Result<Vec<Row>> {
    let name = ("17", "blocked, then redelivered");
    let stage = Stage::open_in(world, Form::ShortLeases, "blocked-alone").await?;
    let mut blocked = stage.sandbox_that_blocks(THREE_LEASES).await?;

    let mark = stage.mark().await?;
    let mut delivery = blocked.deliver(&stage.events.first, ORDINARY_LIMIT);
    let late = blocked.answer_within(&mut delivery, ORDINARY_LIMIT).await;
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.in_progress(&late).runs(&measured, 1).payments(&measured, 0);
    verdict.claims(&measured, 1).settled(&measured, 0);
    let delivered = stage.events.first.summary();
    let one = stage.done(Row::new(name, delivered, &late, &measured, verdict));

    let (again, measured) = take_over(&stage).await?;
    let mut verdict = taken_over(world, &again, &measured);
    paid_once(&stage, &mut verdict).await?;
    Ok(vec![one, stage.done(Row::new(name, "again, afterwards", &again, &measured, verdict))])
}

/// Waits until a handler has begun since the mark. Returns false if none began in time.
async fn begins(stage: &Stage<'_>, mark: &Mark) -> Result<bool> {
    let until = clock::now_ms() + clock::millis(LEASE_LIMIT);
    while clock::now_ms() < until {
        if stage.since(mark).await?.runs != Some(0) {
            return Ok(true);
        }
        clock::pause(Duration::from_millis(20)).await;
    }
    Ok(false)
}
