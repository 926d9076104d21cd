//! Steps 7 and 8: a write is applied, and its response is lost on the wire.

use lambda_idempotency_testing::Call;

use super::{first_run, the_same_again};
use crate::{
    problem::Result,
    report::Row,
    stage::{Stage, World},
};

/// Runs both steps.
pub(super) async fn both(world: &World) -> Result<Vec<Row>> {
    let stage = Stage::open(world, "claim-lost").await?;
    let mut rows = lost(stage, ("7", "claim's response lost"), Call::Claim).await?;
    let stage = Stage::open(world, "completion-lost").await?;
    rows.extend(lost(stage, ("8", "completion's response lost"), Call::Complete).await?);
    Ok(rows)
}

/// Loses the response to `call`. Checks that the handler runs once, that the caller gets the outcome, and that a
/// duplicate gets the replay.
pub(super) async fn lost(
    stage: Stage<'_>,
    name: (&'static str, &'static str),
    call: Call,
) -> Result<Vec<Row>> {
    stage.wire.lose_answer(call);

    let mark = stage.mark().await?;
    let first = stage.deliver(&stage.events.first).await?;
    let measured = stage.since(&mark).await?;
    let mut verdict = first_run(stage.world, &first, &measured);
    verdict.must(!stage.wire.fault_is_pending(), || {
        "the function never sent the request whose response the wire should lose".into()
    });
    let delivered = stage.events.first.summary();
    let one = stage.done(Row::new(name, delivered, &first, &measured, verdict));

    Ok(vec![one, the_same_again(&stage, name, &first).await?])
}
