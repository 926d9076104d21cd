//! Steps 18 and 19: batches of Kafka's records, in stream mode and in queue mode.

use super::{OUT_OF_REACH, come_back, deliver, each_once, judged, told};
use crate::{
    answer::Answer,
    batch::{ORDERS, Orders, PARTITIONS},
    judge::Verdict,
    problem::Result,
    report::Row,
    stage::{Stage, World},
};

/// Runs both steps.
pub(in crate::steps) async fn both(world: &World, orders: &Orders) -> Result<Vec<Row>> {
    let mut rows = in_stream_mode(world, orders).await?;
    rows.extend(in_queue_mode(world, orders).await?);
    Ok(rows)
}

/// Step 18: the store fails for every ninth order, and each of the first three failures stops a partition. The invocation
/// fails, so Lambda redelivers the whole batch. The orders that weren't shipped run, in their partitions' order.
async fn in_stream_mode(world: &World, orders: &Orders) -> Result<Vec<Row>> {
    let name = ("18", "Kafka, stream mode");
    let (stage, batch) = Stage::open_for_kafka(world, orders, "kafka").await?;
    let done = PARTITIONS * (OUT_OF_REACH - 1);

    stage.wire.fail_every(OUT_OF_REACH);
    let first = deliver(&stage, &batch.first).await?;
    stage.wire.recover();
    let mut verdict = Verdict::default();
    let is_failed = matches!(&first.answer, Answer::Error { kind, .. } if kind == "Idempotency.BatchFailed");
    verdict.must(is_failed, || format!("expected the error Idempotency.BatchFailed, got {}", first.answer));
    verdict.runs(&first.measured, done).settled(&first.measured, done).requests(&first.measured, 2 * done);
    let delivered = format!("{ORDERS} records of {PARTITIONS} partitions, the store fails for {PARTITIONS}");
    let one = stage.done(Row::new(name, delivered, &first.answer, &first.measured, verdict));

    let again = deliver(&stage, &batch.again).await?;
    let (mut verdict, returned) = judged(&batch, &again);
    come_back(&mut verdict, returned, 0..=0).runs(&again.measured, ORDERS - done);
    verdict.claims(&again.measured, ORDERS - done).requests(&again.measured, 2 * ORDERS - done);
    each_once(&mut verdict, &[&first.shipped, &again.shipped]);
    let two = stage.done(Row::new(name, "all of it again", told(&again, returned), &again.measured, verdict));
    Ok(vec![one, two])
}

/// Step 19: no record waits for another, and the answer lists the failed ones. Only these are redelivered.
async fn in_queue_mode(world: &World, orders: &Orders) -> Result<Vec<Row>> {
    let name = ("19", "Kafka, queue mode");
    let (stage, batch) = Stage::open_for_kafka(world, orders, "kafka-queue").await?;
    let failing = ORDERS / OUT_OF_REACH;

    stage.wire.fail_every(OUT_OF_REACH);
    let first = deliver(&stage, &batch.first).await?;
    stage.wire.recover();
    let (mut verdict, returned) = judged(&batch, &first);
    come_back(&mut verdict, returned, failing..=failing);
    verdict.runs(&first.measured, ORDERS - failing).settled(&first.measured, ORDERS - failing);
    let delivered = format!("the same, the store fails for {failing}");
    let one = stage.done(Row::new(name, delivered, told(&first, returned), &first.measured, verdict));

    let again = deliver(&stage, &batch.of_returned(&first.answer)).await?;
    let (mut verdict, returned) = judged(&batch, &again);
    come_back(&mut verdict, returned, 0..=0).runs(&again.measured, failing);
    verdict.claims(&again.measured, failing).requests(&again.measured, 2 * failing);
    each_once(&mut verdict, &[&first.shipped, &again.shipped]);
    let two =
        stage.done(Row::new(name, "the failed ones again", told(&again, returned), &again.measured, verdict));
    Ok(vec![one, two])
}
