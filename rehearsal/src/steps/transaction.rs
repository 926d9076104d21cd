//! Steps 12 to 15: the payment is made in the transaction that records the outcome, so that no crash can
//! separate the two.

use lambda_idempotency_testing::Call;

use super::{
    crash::{self, Frozen, Killed},
    first_run, loss, the_same_again,
};
use crate::{
    problem::Result,
    report::Row,
    stage::{Form, Stage, World},
    wire::Meaning,
};

/// Steps 13 and 14, before their leases expire.
#[derive(Debug)]
pub(super) struct Interrupted<'w> {
    killed: Killed<'w>,
    frozen: Frozen<'w>,
}

/// Kills one process and freezes another, each while the wire holds its transaction. Returns `None` for a user's
/// function.
pub(super) async fn interrupt(world: &World) -> Result<Option<Interrupted<'_>>> {
    if !world.is_payments {
        return Ok(None);
    }
    let killed = crash::kill(world, crash::KILLED_AT_COMMIT).await?;
    let frozen = crash::freeze(world, crash::FROZEN_AT_COMMIT).await?;
    Ok(Some(Interrupted { killed, frozen }))
}

impl Interrupted<'_> {
    /// Redelivers after the leases expired.
    pub(super) async fn after_the_leases(self) -> Result<Vec<Row>> {
        let mut rows = self.killed.after_the_lease().await?;
        rows.extend(self.frozen.after_the_lease().await?);
        Ok(rows)
    }
}

/// Step 12: a first run, then a duplicate. The first run must send two requests: the claim and the transaction.
pub(super) async fn in_turn(world: &World) -> Result<Vec<Row>> {
    if !world.is_payments {
        return Ok(Vec::new());
    }
    let name = ("12", "in the outcome's transaction");
    let stage = Stage::open_in(world, Form::Transaction, "in-transaction").await?;
    let mark = stage.mark().await?;
    let first = stage.deliver(&stage.events.first).await?;
    let measured = stage.since(&mark).await?;
    let mut verdict = first_run(world, &first, &measured);
    verdict.requests(&measured, 2);
    let operations: Vec<&str> = measured.requests().map(|one| one.operation.as_str()).collect();
    verdict.must(operations == ["PutItem", "TransactWriteItems"], || {
        format!("expected a claim and a transaction, got {}", operations.join(", "))
    });
    let by_handler = measured.passed.iter().any(|one| one.meaning == Meaning::Payment);
    verdict.must(!by_handler, || "the handler made its payment outside the transaction".into());
    let delivered = stage.events.first.summary();
    let one = stage.done(Row::new(name, delivered, &first, &measured, verdict));

    Ok(vec![one, the_same_again(&stage, name, &first).await?])
}

/// Step 15: the transaction is applied, and its response is lost.
pub(super) async fn answer_lost(world: &World) -> Result<Vec<Row>> {
    if !world.is_payments {
        return Ok(Vec::new());
    }
    let stage = Stage::open_in(world, Form::Transaction, "commit-lost").await?;
    loss::lost(stage, ("15", "transaction's response lost"), Call::Complete).await
}
