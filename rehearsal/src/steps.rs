//! The steps. Each delivers events, measures what happens, and checks the result.

mod asked;
mod batch;
mod blocked;
mod crash;
mod delivery;
mod loss;
mod transaction;

use super::{
    answer::Answer,
    judge::Verdict,
    measured::Measured,
    report::Row,
    stage::{Stage, World},
};
use crate::problem::Result;

/// Runs all steps. Steps that wait for leases start first. The other steps run during these waits, except for the crowd's,
/// whose many processes could make another step miss its moment.
pub(crate) async fn play(world: &World) -> Result<Vec<Row>> {
    let at_once = delivery::at_once(world).await?;
    let points = crash::points(world);
    let mut killed = Vec::new();
    for point in points {
        killed.push(crash::kill(world, point).await?);
    }
    let mut frozen = Vec::new();
    for point in crash::freezes(world) {
        frozen.push(crash::freeze(world, point).await?);
    }
    let in_transaction = transaction::interrupt(world).await?;
    let half_done = match &world.orders {
        Some(orders) => Some(batch::kill(world, orders).await?),
        None => None,
    };

    let asking = match &world.charges {
        Some(charges) => asked::kill(world, charges).await?,
        None => Vec::new(),
    };

    let waiting = if half_done.is_some() { "5, 6, 11, 13, 14, 16, 17 and 18" } else { "5 and 6" };
    (world.show)(&format!("  ...        the other steps run while the leases of steps {waiting} expire:"));

    let others = Box::pin(async {
        let mut rows = delivery::in_turn(world).await?;
        let lost = loss::both(world).await?;
        rows.splice(delivery::AT_ONCE_AT..delivery::AT_ONCE_AT, at_once);
        let batches = match &world.orders {
            Some(orders) => batch::both(world, orders).await?,
            None => Vec::new(),
        };
        let of_kafka = match &world.orders {
            Some(orders) => batch::of_kafka(world, orders).await?,
            None => Vec::new(),
        };
        let mut transactions = transaction::in_turn(world).await?;
        let lost_commit = transaction::answer_lost(world).await?;
        transactions.extend(lost_commit);
        Ok((rows, lost, (batches, of_kafka), transactions))
    });
    let leases = Box::pin(async {
        let mut after = Vec::new();
        for one in killed {
            after.extend(one.after_the_lease().await?);
        }
        for one in frozen {
            after.extend(one.after_the_lease().await?);
        }
        let half_done = match half_done {
            Some(half_done) => half_done.after_the_leases().await?,
            None => Vec::new(),
        };
        let interrupted = match in_transaction {
            Some(interrupted) => interrupted.after_the_leases().await?,
            None => Vec::new(),
        };
        let mut asked = Vec::new();
        for one in asking {
            asked.extend(one.after_the_lease().await?);
        }
        Ok((after, half_done, interrupted, asked))
    });
    let blocked = Box::pin(blocked::both(world));
    let (
        (mut rows, lost, (batches, of_kafka), transactions),
        (crashed, half_done, interrupted, asked),
        blocked,
    ) = tokio::try_join!(others, leases, blocked)?;
    rows.extend(crashed.into_iter().chain(lost).chain(batches).chain(half_done));
    let mut transactions: Vec<Row> = transactions.into_iter().chain(interrupted).collect();
    transactions.sort_by_key(|row| row.step);
    rows.extend(transactions.into_iter().chain(blocked).chain(of_kafka).chain(asked));
    Ok(rows)
}

/// Returns the status that a first response must have: 201 for the example function. A user's function only has to
/// succeed.
fn first_status(world: &World) -> Option<u64> {
    world.is_payments.then_some(201)
}

/// Checks a first run: one run of the handler, one payment, one claim won and settled. A transactional function must
/// also record the outcome by a transaction.
fn first_run(world: &World, answer: &Answer, measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.fresh(answer, first_status(world)).runs(measured, 1).payments(measured, 1);
    verdict.claims(measured, 1).settled(measured, 1);
    if world.is_transactional {
        let last = measured.requests().last().map(|one| one.operation.as_str());
        verdict.must(last == Some("TransactWriteItems"), || {
            format!("the outcome was recorded by {}, not by a transaction", last.unwrap_or("nothing"))
        });
    }
    verdict
}

/// Delivers the event again, and checks that the answer is the replay of `first`.
async fn the_same_again(
    stage: &Stage<'_>,
    name: (&'static str, &'static str),
    first: &Answer,
) -> Result<Row> {
    let mark = stage.mark().await?;
    let again = stage.deliver(&stage.events.again).await?;
    let measured = stage.since(&mark).await?;
    let verdict = replayed(first, &again, &measured);
    Ok(stage.done(Row::new(name, "the same again", &again, &measured, verdict)))
}

/// Checks a replay: no run, no payment, no claim, and one request of the example function.
fn replayed(first: &Answer, again: &Answer, measured: &Measured) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.replay(first, again).runs(measured, 0).payments(measured, 0);
    verdict.claims(measured, 0).example_requests(measured, 1);
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_functions_may_replay_without_requests() {
        let outcome = Answer::Payload(b"1".to_vec());
        let cached = Measured::default();
        assert_eq!(replayed(&outcome, &outcome, &cached).faults(), Vec::<String>::new());
        let example = Measured { payments: Some(0), ..Measured::default() };
        let faults = replayed(&outcome, &outcome, &example).faults();
        assert_eq!(faults, ["no request was sent to the store (expected 1)"]);
    }
}
