//! Steps 1 to 4: nothing fails, but the event is delivered more than once.

use super::{first_run, replayed, the_same_again};
use crate::{
    judge::{Crowd, Verdict},
    problem::Result,
    report::Row,
    stage::{Stage, World},
};

const CROWD: usize = 20;
/// The index at which step 3's rows are inserted into the rows of steps 1, 2 and 4.
pub(super) const AT_ONCE_AT: usize = 2;

/// Steps 1, 2 and 4, with one key.
pub(super) async fn in_turn(world: &World) -> Result<Vec<Row>> {
    let stage = Stage::open(world, "in-turn").await?;
    let mut rows = Vec::new();

    let mark = stage.mark().await?;
    let first = stage.deliver(&stage.events.first).await?;
    let measured = stage.since(&mark).await?;
    let mut verdict = first_run(world, &first, &measured);
    if world.is_payments {
        verdict.requests(&measured, 2);
    }
    let delivered = stage.events.first.summary();
    rows.push(stage.done(Row::new(("1", "first delivery"), delivered, &first, &measured, verdict)));

    rows.push(the_same_again(&stage, ("2", "duplicate after completion"), &first).await?);

    if let Some(conflicting) = &stage.events.conflicting {
        let mark = stage.mark().await?;
        let refused = stage.deliver(conflicting).await?;
        let measured = stage.since(&mark).await?;
        let mut verdict = Verdict::default();
        verdict.mismatch(&refused).runs(&measured, 0).payments(&measured, 0);
        verdict.claims(&measured, 0).requests(&measured, 1);
        let name = ("4", "same key, another payload");
        rows.push(stage.done(Row::new(name, "the same, other amount", &refused, &measured, verdict)));
    }
    Ok(rows)
}

/// Step 3: many concurrent deliveries of a new key, and one more when they're done.
pub(super) async fn at_once(world: &World) -> Result<Vec<Row>> {
    let name = ("3", "20 concurrent duplicates");
    let stage = Stage::open(world, "at-once").await?;

    let mark = stage.mark().await?;
    let answers = stage.deliver_at_once(&stage.events.first, CROWD).await?;
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.one_of_many(&answers).runs(&measured, 1).payments(&measured, 1);
    verdict.claims(&measured, 1).settled(&measured, 1);
    if world.is_payments {
        verdict.requests(&measured, CROWD + 1);
    }
    let (delivered, answered) = (format!("{CROWD} × the same"), Crowd::of(&answers).summary());
    let crowd = stage.done(Row::new(name, delivered, answered, &measured, verdict));

    let mark = stage.mark().await?;
    let again = stage.deliver(&stage.events.again).await?;
    let measured = stage.since(&mark).await?;
    let outcome = answers.iter().find(|answer| answer.is_success()).unwrap_or(&again);
    let verdict = replayed(outcome, &again, &measured);
    let afterwards = stage.done(Row::new(name, "once more, afterwards", &again, &measured, verdict));
    Ok(vec![crowd, afterwards])
}
