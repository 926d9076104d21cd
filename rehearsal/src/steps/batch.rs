//! Steps 9 to 11: batches of 100 messages, in which ten orders appear twice. Steps 18 and 19: batches of Kafka.

mod kafka;
mod killed;

use std::{collections::BTreeSet, ops::RangeInclusive};

pub(super) use kafka::both as of_kafka;
pub(super) use killed::kill;

use crate::{
    answer::Answer,
    batch::{Batch, MESSAGES, ORDERS, Orders, Returned, Shipped},
    event::Event,
    judge::Verdict,
    measured::Measured,
    problem::Result,
    report::Row,
    stage::{ORDINARY_LIMIT, Stage, World},
};

/// How many orders run concurrently: the library's default.
const CONCURRENCY: usize = 10;
/// In step 10, the store fails for every ninth order.
const OUT_OF_REACH: usize = 9;

/// One delivery of a batch, and its outcome.
struct Delivered {
    answer: Answer,
    measured: Measured,
    shipped: Vec<Shipped>,
}

/// Runs steps 9 and 10.
pub(super) async fn both(world: &World, orders: &Orders) -> Result<Vec<Row>> {
    let mut rows = with_duplicates(world, orders).await?;
    rows.extend(failing_in_part(world, orders).await?);
    Ok(rows)
}

/// Step 9: each order is shipped once, with two requests to the store. The redelivery takes one request per
/// order.
async fn with_duplicates(world: &World, orders: &Orders) -> Result<Vec<Row>> {
    let name = ("9", "batch with duplicates");
    let (stage, batch) = Stage::open_for_orders(world, orders, "batch").await?;

    let first = deliver(&stage, &batch.first).await?;
    let (mut verdict, returned) = judged(&batch, &first);
    come_back(&mut verdict, returned, 0..=0).runs(&first.measured, ORDERS);
    verdict.claims(&first.measured, ORDERS).settled(&first.measured, ORDERS);
    verdict.requests(&first.measured, 2 * ORDERS);
    each_once(&mut verdict, &[&first.shipped]);
    let delivered = format!("{MESSAGES} messages, {ORDERS} orders");
    let one = stage.done(Row::new(name, delivered, told(&first, returned), &first.measured, verdict));

    let again = deliver(&stage, &batch.again).await?;
    let (mut verdict, returned) = judged(&batch, &again);
    come_back(&mut verdict, returned, 0..=0).runs(&again.measured, 0);
    verdict.claims(&again.measured, 0).requests(&again.measured, ORDERS);
    let two = stage.done(Row::new(name, "all of it again", told(&again, returned), &again.measured, verdict));
    Ok(vec![one, two])
}

/// Step 10: the store fails for some orders, and their messages are returned. When the whole batch is redelivered, only
/// these orders run.
async fn failing_in_part(world: &World, orders: &Orders) -> Result<Vec<Row>> {
    let name = ("10", "batch with partial failures");
    let (stage, batch) = Stage::open_for_orders(world, orders, "in-part").await?;
    let failing = ORDERS / OUT_OF_REACH;

    stage.wire.fail_every(OUT_OF_REACH);
    let first = deliver(&stage, &batch.first).await?;
    stage.wire.recover();
    let (mut verdict, returned) = judged(&batch, &first);
    come_back(&mut verdict, returned, failing..=failing);
    verdict.runs(&first.measured, ORDERS - failing).settled(&first.measured, ORDERS - failing);
    verdict.requests(&first.measured, 2 * (ORDERS - failing));
    let delivered = format!("the same, the store fails for {failing}");
    let one = stage.done(Row::new(name, delivered, told(&first, returned), &first.measured, verdict));

    let again = deliver(&stage, &batch.again).await?;
    let (mut verdict, returned) = judged(&batch, &again);
    come_back(&mut verdict, returned, 0..=0).runs(&again.measured, failing);
    verdict.claims(&again.measured, failing).requests(&again.measured, ORDERS + failing);
    each_once(&mut verdict, &[&first.shipped, &again.shipped]);
    let two = stage.done(Row::new(name, "all of it again", told(&again, returned), &again.measured, verdict));
    Ok(vec![one, two])
}

async fn deliver(stage: &Stage<'_>, event: &Event) -> Result<Delivered> {
    let mark = stage.mark().await?;
    let mut sandbox = stage.sandbox().await?;
    let delivery = sandbox.deliver(event, ORDINARY_LIMIT);
    let answer = sandbox.answer(delivery).await;
    stage.give_back(sandbox).await;
    let measured = stage.since(&mark).await?;
    Ok(Delivered { answer, measured, shipped: stage.shipped_since(&mark)? })
}

/// Parses the response, and adds a fault if it isn't a response to the batch.
fn judged(batch: &Batch, delivered: &Delivered) -> (Verdict, Option<Returned>) {
    let mut verdict = Verdict::default();
    let returned = match batch.returned(&delivered.answer) {
        Ok(returned) => Some(returned),
        Err(fault) => {
            verdict.must(false, || fault);
            None
        }
    };
    (verdict, returned)
}

/// Adds a fault unless this many orders were returned. A response that couldn't be parsed passes, because it has a
/// fault already.
fn come_back(
    verdict: &mut Verdict,
    returned: Option<Returned>,
    must_be: RangeInclusive<usize>,
) -> &mut Verdict {
    let orders = returned.map(|returned| returned.orders);
    let (least, most) = (must_be.start(), must_be.end());
    verdict.must(orders.is_none_or(|orders| must_be.contains(&orders)), || {
        let orders = orders.unwrap_or_default();
        let must_be = if least == most { least.to_string() } else { format!("{least} to {most}") };
        format!("{orders} orders were returned (expected {must_be})")
    })
}

/// Checks that all deliveries together shipped every order, and none twice.
fn each_once(verdict: &mut Verdict, shipped: &[&Vec<Shipped>]) {
    let all: Vec<_> = shipped.iter().flat_map(|shipped| *shipped).map(|one| &one.parcel).collect();
    let different: BTreeSet<_> = all.iter().collect();
    let (all, different) = (all.len(), different.len());
    verdict.must(different == ORDERS, || format!("{different} orders were shipped (expected {ORDERS})"));
    verdict.must(all == different, || format!("duplicate shipments: {}", all - different));
}

fn parcels(shipped: &[Shipped]) -> BTreeSet<&str> {
    shipped.iter().map(|one| one.parcel.as_str()).collect()
}

/// Formats the response for the table.
fn told(delivered: &Delivered, returned: Option<Returned>) -> String {
    returned.map_or_else(|| delivered.answer.to_string(), |returned| returned.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(orders: impl Iterator<Item = usize>) -> Vec<Shipped> {
        orders.map(|order| Shipped { parcel: order.to_string(), attempt: 1 }).collect()
    }

    fn faults(shipped: &[&Vec<Shipped>]) -> String {
        let mut verdict = Verdict::default();
        each_once(&mut verdict, shipped);
        verdict.faults().join("; ")
    }

    #[test]
    fn duplicate_shipments_are_found_across_deliveries() {
        let (first, rest) = (shipped(0..80), shipped(80..ORDERS));
        assert_eq!(faults(&[&first, &rest]), "");
        assert_eq!(faults(&[&first]), "80 orders were shipped (expected 90)");
        assert_eq!(faults(&[&first, &shipped(79..ORDERS)]), "duplicate shipments: 1");
        assert_eq!(faults(&[&shipped((0..ORDERS).chain(3..5))]), "duplicate shipments: 2");
    }
}
