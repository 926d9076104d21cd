//! Delivers random batches of Kafka, and plays Lambda. No record may be lost, run again after it succeeded, or overtake
//! another one of its partition in stream mode. A failed test prints its seed.

use std::collections::{BTreeMap, BTreeSet};

use lambda_idempotency::lambda::batch::KafkaRecord;
use serde_json::Value;
use testkit::random::Random;

use super::{support::told, *};

const SEEDS: u64 = 200;
const PARTITIONS: u64 = 3;
const RECORDS: u64 = 6;

/// A record's partition and offset.
type Place = (u64, u64);

/// How the mapping reads the topic and the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    /// Stream mode. The answer isn't read.
    Whole,
    /// Stream mode: each partition goes on at the first listed record.
    Checkpoint,
    /// Stream mode: only the listed records are redelivered.
    Listed,
    /// Queue mode: only the listed records are redelivered, in any order.
    Queue,
}

/// The runs and their outcomes, as the handlers see them.
#[derive(Default)]
struct Known {
    random: Option<Random>,
    done: BTreeSet<Place>,
    wrong: Vec<String>,
    is_end: bool,
}

impl Known {
    /// Notes a run, and decides how it ends: with success, a failure or a panic.
    fn runs(&mut self, place: Place, mapping: Mapping) -> u64 {
        let (partition, offset) = place;
        if self.done.contains(&place) {
            self.wrong.push(format!("{place:?} runs again after it succeeded"));
        }
        let is_behind = (0..offset).any(|earlier| !self.done.contains(&(partition, earlier)));
        if is_behind && mapping != Mapping::Queue {
            self.wrong.push(format!("{place:?} overtakes a record of its partition"));
        }
        let ends = if self.is_end { 0 } else { self.random.as_mut().unwrap().below(4) };
        if ends < 2 {
            self.done.insert(place);
        }
        ends
    }
}

fn event(places: &[Place]) -> Value {
    let mut lists = BTreeMap::<String, Vec<Value>>::new();
    for (partition, offset) in places {
        let record = json!({ "topic": "orders", "partition": partition, "offset": offset, "value": null });
        lists.entry(format!("orders-{partition}")).or_default().push(record);
    }
    json!({ "eventSource": "aws:kafka", "eventSourceArn": "arn:aws:kafka:eu-west-1:1:cluster/c/1", "records": lists })
}

/// The records that Lambda counts as processed after this answer.
fn acknowledged(mapping: Mapping, delivered: &[Place], answer: Result<Value, ErrorKind>) -> Vec<Place> {
    let Ok(answer) = answer else { return Vec::new() };
    let items = answer["batchItemFailures"].as_array().unwrap().iter().map(|item| &item["itemIdentifier"]);
    let listed: BTreeSet<Place> = items
        .map(|item| {
            let partition = item["partition"].as_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
            (partition, item["offset"].as_u64().unwrap())
        })
        .collect();
    let is_processed = |&&(partition, offset): &&Place| match mapping {
        Mapping::Checkpoint => !listed.iter().any(|(of, first)| *of == partition && *first <= offset),
        _ => !listed.contains(&(partition, offset)),
    };
    delivered.iter().filter(is_processed).copied().collect()
}

async fn play(seed: u64, mapping: Mapping) -> Vec<String> {
    let mut random = Random::new(seed);
    let bench = Bench::in_memory();
    let known = Arc::new(Mutex::new(Known { random: Some(Random::new(seed + SEEDS)), ..Known::default() }));
    let runs = Arc::clone(&known);
    let worker = bench.idempotency.kafka(KafkaRecord::offset_key, move |record: KafkaRecord| {
        let place = (u64::from(record.partition()), record.offset());
        let ends = runs.lock().unwrap().runs(place, mapping);
        async move {
            tokio::task::yield_now().await;
            match ends {
                0 | 1 => Ok(()),
                2 => Err(Failure::from("not now")),
                _ => panic!("this panic is intended"),
            }
        }
    });
    let worker = if mapping == Mapping::Whole { worker } else { worker.partial_answers() };
    let worker = if mapping == Mapping::Queue { worker.unordered() } else { worker };
    let mut left: Vec<Place> =
        (0..PARTITIONS).flat_map(|partition| (0..RECORDS).map(move |offset| (partition, offset))).collect();
    for delivery in 0..60 {
        known.lock().unwrap().is_end = delivery >= 50;
        let most = if delivery >= 50 { RECORDS } else { 1 + random.below(RECORDS) };
        let mut taken = BTreeMap::<u64, u64>::new();
        let batch = left.iter().copied().filter(|(partition, _)| {
            let taken = taken.entry(*partition).or_default();
            *taken += 1;
            *taken <= most
        });
        let batch: Vec<_> = batch.collect();
        let answer = told(&worker, &event(&batch), 0).await;
        let answer =
            answer.map(|answer| serde_json::from_str(answer.get()).unwrap()).map_err(|error| error.kind());
        assert!(mapping == Mapping::Whole || answer.is_ok(), "{answer:?}");
        for place in acknowledged(mapping, &batch, answer) {
            let mut known = known.lock().unwrap();
            if !known.done.contains(&place) {
                known.wrong.push(format!("{place:?} is lost"));
            }
            left.retain(|other| *other != place);
        }
    }
    let mut wrong = std::mem::take(&mut known.lock().unwrap().wrong);
    wrong.extend(left.iter().map(|place| format!("{place:?} is still in the topic")));
    wrong
}

#[tokio::test]
async fn random_kafka_batches_lose_no_record() {
    for mapping in [Mapping::Whole, Mapping::Checkpoint, Mapping::Listed, Mapping::Queue] {
        for seed in 0..SEEDS / if recording::is_on() { 20 } else { 1 } {
            assert_eq!(play(seed, mapping).await, [""; 0], "{mapping:?}, seed {seed}");
        }
    }
}
