//! Step 11: a process that is killed in the middle of a batch.

use std::{collections::BTreeSet, time::Duration};

use lambda_idempotency_testing::{Call, Point};

use super::{CONCURRENCY, Delivered, come_back, deliver, judged, parcels, told};
use crate::{
    batch::{Batch, MESSAGES, ORDERS, Orders, Returned, Shipped},
    clock,
    judge::Verdict,
    measured::Measured,
    problem::Result,
    report::Row,
    stage::{Stage, World},
};

const NAME: (&str, &str) = ("11", "killed in the middle of a batch");
/// The process is killed when this many orders are done.
const DONE: usize = ORDERS / 2;
/// The time limit of the invocation. It's short, because the step waits for the leases to expire, but long
/// enough for half a batch on a slow machine.
const LIMIT: Duration = Duration::from_secs(4);

/// Step 11 after its first two deliveries, before the killed process's leases expire.
pub(in super::super) struct HalfDone<'w> {
    stage: Stage<'w>,
    batch: Batch,
    delivered_at_ms: u64,
    /// The orders shipped so far: by the killed process, and by its successor.
    shipped: [Vec<Shipped>; 2],
    /// How many orders were returned because they were in progress.
    in_progress: usize,
    rows: Vec<Row>,
}

/// Runs the step's first two deliveries: the one whose process is killed, and a redelivery before the leases expire.
pub(in super::super) async fn kill<'w>(world: &'w World, orders: &'w Orders) -> Result<HalfDone<'w>> {
    let (stage, batch) = Stage::open_for_orders(world, orders, "half-done").await?;
    let mut sandbox = stage.sandbox().await?;
    // Start a second process now: the redelivery must come before the leases expire, even if a start takes long.
    stage.give_back(stage.sandbox().await?).await;
    let mut hold = stage.wire.hold_after(DONE, Point::Before(Call::Complete));

    let mark = stage.mark().await?;
    let delivered_at_ms = clock::now_ms();
    let _unanswered = sandbox.deliver(&batch.first, LIMIT);
    let held = hold.reached(LIMIT).await;
    sandbox.kill().await?;
    drop(hold);
    sandbox.catch_up().await;
    let (killed, shipped) = (stage.since(&mark).await?, stage.shipped_since(&mark)?);
    let verdict = interrupted(&killed, &shipped, held);
    let delivered = format!("{MESSAGES} messages, {ORDERS} orders");
    let answered = if held { "none: SIGKILL at half the batch" } else { "(not interrupted in time)" };
    let one = stage.done(Row::new(NAME, delivered, answered, &killed, verdict));

    let again = deliver(&stage, &batch.again).await?;
    let (mut verdict, returned) = judged(&batch, &again);
    rest_runs(&mut verdict, &killed, &shipped, &again, returned);
    let answered = told(&again, returned);
    let two = stage.done(Row::new(NAME, "all, within the leases", answered, &again.measured, verdict));
    let in_progress = returned.unwrap_or_default().orders;
    let (shipped, rows) = ([shipped, again.shipped], vec![one, two]);
    Ok(HalfDone { stage, batch, delivered_at_ms, shipped, in_progress, rows })
}

/// Checks that the killed process had at most `CONCURRENCY` unfinished orders, and shipped none twice.
fn interrupted(killed: &Measured, shipped: &[Shipped], held: bool) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.must(held, || format!("fewer than {DONE} orders were done after {} s", LIMIT.as_secs()));
    let claims = killed.requests().filter(|one| one.meaning.claims());
    let begun: BTreeSet<_> = claims.filter_map(|one| one.id.as_deref()).collect();
    let (begun, settled) = (begun.len(), killed.settled());
    verdict.must(begun <= settled + CONCURRENCY, || {
        format!(
            "{} orders were started but not settled (at most {CONCURRENCY} run concurrently)",
            begun - settled
        )
    });
    let ran = shipped.len();
    verdict.must((settled..=begun).contains(&ran), || {
        format!("{ran} shipments (expected {settled} to {begun}, the settled and the claimed orders)")
    });
    verdict.must(parcels(shipped).len() == ran, || "an order was shipped twice".into());
    verdict
}

/// Checks the redelivery before the leases expire: completed orders don't run, orders in progress are returned, and
/// all others run.
fn rest_runs(
    verdict: &mut Verdict,
    killed: &Measured,
    before: &[Shipped],
    again: &Delivered,
    returned: Option<Returned>,
) {
    // The order whose completion was held is in progress, and others may be too.
    come_back(verdict, returned, 1..=CONCURRENCY);
    let ran = again.shipped.len();
    let known = ORDERS.saturating_sub(ran + returned.unwrap_or_default().orders);
    verdict.must(known >= killed.settled(), || {
        format!("only {known} orders were replayed (expected at least {})", killed.settled())
    });
    let twice = parcels(before).intersection(&parcels(&again.shipped)).count();
    verdict.must(twice == 0, || format!("{twice} orders were shipped again within their lease"));
    verdict
        .claims(&again.measured, ran)
        .settled(&again.measured, ran)
        .requests(&again.measured, ORDERS + ran);
}

impl HalfDone<'_> {
    /// Redelivers after the leases expired: orders in progress are taken over, and nothing else runs.
    pub(in super::super) async fn after_the_leases(self) -> Result<Vec<Row>> {
        let Self { stage, batch, delivered_at_ms, shipped, in_progress, mut rows } = self;
        stage.leases_passed(delivered_at_ms, LIMIT).await?;
        let again = deliver(&stage, &batch.again).await?;
        let (mut verdict, returned) = judged(&batch, &again);
        come_back(&mut verdict, returned, 0..=0).runs(&again.measured, in_progress);
        verdict.claims(&again.measured, in_progress).settled(&again.measured, in_progress);
        verdict.requests(&again.measured, ORDERS + 2 * in_progress);
        check_last_delivery(&mut verdict, &shipped, &again.shipped);
        let [killed, _] = shipped.each_ref().map(|shipped| parcels(shipped));
        let twice = parcels(&again.shipped).intersection(&killed).count();
        let answered = format!("{}; {twice} shipped twice, by takeover", told(&again, returned));
        rows.push(stage.done(Row::new(NAME, "all, after the leases", answered, &again.measured, verdict)));
        Ok(rows)
    }
}

/// Checks that all orders were shipped, that each run of the last delivery is a takeover, and that nothing
/// else ran twice.
fn check_last_delivery(verdict: &mut Verdict, before: &[Vec<Shipped>; 2], last: &[Shipped]) {
    let [killed, successor] = before;
    let (all, last_ones) = ([killed, successor, last].map(parcels), parcels(last));
    let different = all.iter().flatten().collect::<BTreeSet<_>>().len();
    verdict.must(different == ORDERS, || format!("{different} orders were shipped (expected {ORDERS})"));
    let untold = last.iter().filter(|one| one.attempt < 2).count();
    verdict.must(untold == 0, || format!("{untold} runs weren't reported as takeovers"));
    let again = parcels(successor).intersection(&last_ones).count();
    verdict.must(again == 0 && last_ones.len() == last.len(), || "a completed order ran again".into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        answer::Answer,
        wire::{Exchange, Meaning},
    };

    fn exchanges(meaning: Meaning, count: usize) -> impl Iterator<Item = Exchange> {
        (0..count)
            .map(move |nth| Exchange { id: Some(nth.to_string()), ..Exchange::answered_with(meaning, 200) })
    }

    /// Measurements with this many claims, and this many of them settled.
    fn measured(claims: usize, settled: usize) -> Measured {
        let passed = exchanges(Meaning::Claim, claims).chain(exchanges(Meaning::Complete, settled)).collect();
        Measured { runs: None, payments: None, passed }
    }

    fn shipped(orders: std::ops::Range<usize>, attempt: u32) -> Vec<Shipped> {
        orders.map(|order| Shipped { parcel: order.to_string(), attempt }).collect()
    }

    #[test]
    fn orders_in_flight_stay_within_concurrency() {
        let faults = |claims, settled, ran: &[Shipped]| {
            interrupted(&measured(claims, settled), ran, true).faults().join("; ")
        };
        assert_eq!(faults(55, 45, &shipped(0..50, 1)), "");
        assert_eq!(
            faults(56, 45, &shipped(0..50, 1)),
            "11 orders were started but not settled (at most 10 run concurrently)"
        );
        let unclaimed = faults(50, 45, &shipped(0..51, 1));
        assert_eq!(unclaimed, "51 shipments (expected 45 to 50, the settled and the claimed orders)");
        let twice = [shipped(0..49, 1), shipped(3..4, 1)].concat();
        assert_eq!(faults(50, 45, &twice), "an order was shipped twice");
    }

    #[test]
    fn orders_in_progress_are_returned_not_rerun() {
        let faults = |ran: std::ops::Range<usize>, orders: usize| {
            let mut verdict = Verdict::default();
            let mut measured = measured(ran.len(), ran.len());
            measured.passed.extend(exchanges(Meaning::Other, ORDERS - ran.len()));
            let again = Delivered { answer: Answer::Payload(Vec::new()), measured, shipped: shipped(ran, 1) };
            let returned = Some(Returned { messages: orders, orders });
            let killed = self::measured(52, 45);
            rest_runs(&mut verdict, &killed, &shipped(0..50, 1), &again, returned);
            verdict.faults().join("; ")
        };
        assert_eq!(faults(52..90, 7), "");
        assert!(
            faults(52..90, 0).contains("0 orders were returned"),
            "an order in progress must be returned"
        );
        assert!(faults(49..90, 4).contains("1 orders were shipped again within their lease"));
        assert!(faults(52..90, 8).contains("only 44 orders were replayed (expected at least 45)"));
    }

    #[test]
    fn orders_with_expired_leases_ship_by_takeover() {
        let before = [shipped(0..50, 1), shipped(52..90, 1)];
        let faults = |last: &[Shipped]| {
            let mut verdict = Verdict::default();
            check_last_delivery(&mut verdict, &before, last);
            verdict.faults().join("; ")
        };
        assert_eq!(faults(&shipped(48..52, 2)), "");
        assert_eq!(faults(&shipped(48..51, 2)), "89 orders were shipped (expected 90)");
        assert_eq!(faults(&shipped(48..52, 1)), "4 runs weren't reported as takeovers");
        assert_eq!(faults(&shipped(48..53, 2)), "a completed order ran again");
    }
}
