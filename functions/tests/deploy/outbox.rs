//! Tests that `outbox` publishes the outcome of every operation, even if the function is killed, EventBridge's
//! responses get lost, or EventBridge refuses events. The tests run on the embedded DynamoDB, or on the one that
//! `IDEMPOTENCY_TEST_ENDPOINT` names. "End" in this code means that an operation completed or failed.

mod bus;
mod operations;
mod table_stream;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use lambda_idempotency::{Idempotency, KeyFields, store::memory::MemoryStore};
use lambda_idempotency_rehearsal::{
    answer::Answer,
    event::Event,
    function::{Function, Sandbox},
    runs::Runs,
};
use lambda_idempotency_testing::{Fault, Random};
use lambda_runtime::{
    Context, LambdaEvent, service_fn,
    tower::{ServiceBuilder, ServiceExt as _},
};
use serde_json::{Value, json, value::RawValue};
use testkit::emulator::{Emulator, fresh_table};

use self::{
    bus::{Bus, Treatment},
    operations::{End, Operations, SECRET, long_response, response_in_chunks},
    table_stream::{Read, Stream},
};
use super::stage::{LOUD, lambdas_environment, project};

const LIMIT: Duration = Duration::from_secs(30);
/// How many random schedules of operations, deliveries and troubles the test plays, each from its own seed.
const SEEDS: u64 = 10;
/// How many schedules run at a time.
const AT_ONCE: usize = 4;
/// How many operations a schedule has.
const OPERATIONS: usize = 80;

/// What goes wrong when a batch is delivered. Nothing goes wrong with `Bus(Treatment::Accepts)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Bus(Treatment),
    /// The test kills the process after its answer, and doesn't move the checkpoint.
    KilledBeforeTheCheckpoint,
}

const TROUBLE: [Trouble; 7] = [
    Trouble::Bus(Treatment::Accepts),
    Trouble::Bus(Treatment::Fault(Fault::Silence)),
    Trouble::Bus(Treatment::Fault(Fault::SilenceAfter)),
    Trouble::Bus(Treatment::Fault(Fault::LoseAnswer)),
    Trouble::Bus(Treatment::RefusesSome),
    Trouble::Bus(Treatment::Fault(Fault::Refuse)),
    Trouble::KilledBeforeTheCheckpoint,
];

/// The function, and the bus that it publishes to.
struct Outbox {
    function: Function,
    environment: Vec<(&'static str, String)>,
    sandbox: Option<Sandbox>,
    bus: Bus,
}

impl Outbox {
    async fn new(table: &str, variables: &[(&'static str, &str)]) -> Self {
        let bus = Bus::start().await;
        let mut environment = lambdas_environment();
        environment.extend([
            ("AWS_ENDPOINT_URL_EVENTBRIDGE", bus.url()),
            ("EVENT_BUS", "operations".to_owned()),
            ("IDEMPOTENCY_TABLE", table.into()),
        ]);
        environment.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
        Self { function: Function::at(env!("CARGO_BIN_EXE_outbox")), environment, sandbox: None, bus }
    }

    async fn sandbox(&mut self) -> &mut Sandbox {
        if self.sandbox.is_none() {
            let started = Sandbox::start(&self.function, &self.environment, Runs::default()).await;
            self.sandbox = Some(started.unwrap());
        }
        self.sandbox.as_mut().unwrap()
    }

    async fn kill(&mut self) {
        self.sandbox.take().unwrap().kill().await.unwrap();
    }

    /// Delivers an event, and returns the answer, or `None` if the process was killed.
    async fn deliver(&mut self, event: Value, trouble: Trouble) -> Option<Answer> {
        let event = Event::new(event);
        self.sandbox().await;
        let (sandbox, bus) = (self.sandbox.as_mut().unwrap(), &self.bus);
        let delivery = sandbox.deliver(&event, LIMIT);
        let answer = tokio::select! {
            answer = sandbox.answer(delivery) => Some(answer),
            () = bus.reached() => None,
        };
        if answer.is_none() || trouble == Trouble::KilledBeforeTheCheckpoint {
            self.kill().await;
            return None;
        }
        answer
    }
}

/// The record that an answer reports as failed, if any.
fn failed(answer: &Answer) -> Option<String> {
    let Answer::Payload(payload) = answer else { panic!("{answer:?}") };
    let answer: Value = serde_json::from_slice(payload).unwrap();
    let failures = answer["batchItemFailures"].as_array().unwrap();
    assert!(failures.len() <= 1);
    failures.first().map(|failure| failure["itemIdentifier"].as_str().unwrap().to_owned())
}

/// Counts what happened in the schedules: the troubles of each kind, the ended operations, the published events, and
/// the delivered changes. Each kind of trouble must occur at least once.
#[derive(Default)]
struct Met {
    trouble: BTreeMap<Trouble, usize>,
    ends: usize,
    events: usize,
    records: usize,
}

impl Met {
    fn and(mut self, other: Self) -> Self {
        for (trouble, count) in other.trouble {
            *self.trouble.entry(trouble).or_default() += count;
        }
        let (ends, events) = (self.ends + other.ends, self.events + other.events);
        Self { ends, events, records: self.records + other.records, ..self }
    }

    /// Whether this trouble occurred. A trouble that was only planned has a count of 0.
    fn has(&self, trouble: Trouble) -> bool {
        self.trouble.get(&trouble).is_some_and(|count| *count > 0)
    }
}

#[test]
fn planned_trouble_does_not_count_as_occurred() {
    let planned = TROUBLE[0];
    let of = |count| Met { trouble: BTreeMap::from([(planned, count)]), ..Met::default() };
    assert!(!of(0).and(of(0)).has(planned) && of(0).and(of(1)).has(planned));
    assert!(!of(1).has(TROUBLE[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_is_published_despite_kills() {
    let emulator = Emulator::start().await;
    let schedules = stream::iter(1..=SEEDS).map(|seed| play(seed, &emulator)).buffer_unordered(AT_ONCE);
    let met = schedules.fold(Met::default(), async |all, met| all.and(met)).await;
    eprintln!("{} outcomes, {} events, {} changes delivered", met.ends, met.events, met.records);
    eprintln!("trouble: {:?}", met.trouble);
    assert!(TROUBLE.iter().all(|trouble| met.has(*trouble)), "{:?}", met.trouble);
    assert!(met.events > met.ends, "nothing was published twice");
    assert!(met.records > 2 * met.ends, "too few changes without an outcome were delivered");
}

async fn play(seed: u64, emulator: &Emulator) -> Met {
    let mut met = Met::default();
    let table = fresh_table();
    let mut random = Random::new(seed ^ 0x0b0c);
    let mut operations = Operations::new(emulator.client(), table.clone(), seed).await;
    let mut stream = Stream::of(emulator.endpoint(), &table).await;
    let mut outbox = Outbox::new(&table, &[]).await;
    for nth in 0.. {
        let is_over = nth >= OPERATIONS;
        if !is_over {
            operations.go_on().await;
            // Usually, run more operations before the next delivery, so that batches have several changes.
            if random.percent(80) {
                continue;
            }
        }
        let Some(read) = stream.read(random.between(1, 40)).await else {
            if is_over {
                break;
            }
            continue;
        };
        let trouble = match random.percent(60) {
            true => *random.pick(&TROUBLE).unwrap(),
            false => Trouble::Bus(Treatment::Accepts),
        };
        deliver(&mut outbox, &mut stream, &read, trouble, &mut met).await;
    }
    (met.ends, met.events) = (operations.ends().len(), outbox.bus.events().len());
    judge(seed, operations.ends(), &outbox.bus.events());
    assert_eq!(consumed(&outbox.bus.events()).await, operations.ends().len(), "seed {seed}");
    met
}

/// EventBridge may refuse an entry and accept a later one of the same request. So the function must send two events of
/// one key in separate requests.
#[tokio::test(flavor = "multi_thread")]
async fn same_key_events_are_published_in_order() {
    let emulator = Emulator::start().await;
    let table = fresh_table();
    let mut operations = Operations::new(emulator.client(), table.clone(), 1).await;
    let mut stream = Stream::of(emulator.endpoint(), &table).await;
    for name in ["first", "second"] {
        operations.pay(name).await;
    }
    operations.correct_to_failure("second").await;
    let (mut outbox, mut met) = (Outbox::new(&table, &[]).await, Met::default());
    let mut fault = Treatment::RefusesSome;
    while let Some(read) = stream.read(40).await {
        deliver(&mut outbox, &mut stream, &read, Trouble::Bus(fault), &mut met).await;
        fault = Treatment::Accepts;
    }
    judge(0, operations.ends(), &outbox.bus.events());
}

/// Counts the runs of a consumer that deduplicates by the detail's id. EventBridge's own id differs for each event.
async fn consumed(events: &[Value]) -> usize {
    let runs = Arc::new(AtomicUsize::new(0));
    let idempotency = Idempotency::builder(MemoryStore::new()).function("consumer").build().unwrap();
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |_: LambdaEvent<Value>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, lambda_runtime::Error>("consumed") }
    });
    let layer = idempotency.events_by::<Value>(KeyFields::new(["/detail/id"]).unwrap());
    let service = ServiceBuilder::new().layer(layer).service(handler);
    for (nth, event) in events.iter().enumerate() {
        let delivered = json!({
            "id": format!("event-{nth}"),
            "time": format!("2026-11-20T00:00:{:02}Z", nth % 60),
            "source": event["Source"],
            "detail-type": event["DetailType"],
            "account": "123456789012",
            "resources": [],
            "detail": event["Detail"],
        });
        let delivered = RawValue::from_string(delivered.to_string()).unwrap();
        service.clone().oneshot(LambdaEvent::new(delivered, Context::default())).await.unwrap();
    }
    runs.load(Ordering::Relaxed)
}

/// Completes two operations, one after the other. Returns the table and the batch of its four changes. `edit` has
/// altered the third change, which is the second operation's claim. So the altered change is between the two
/// completions.
async fn two_ends(emulator: &Emulator, edit: impl Fn(&mut Value)) -> (String, Value) {
    let table = fresh_table();
    let mut operations = Operations::new(emulator.client(), table.clone(), 1).await;
    let stream = Stream::of(emulator.endpoint(), &table).await;
    for name in ["first", "second"] {
        operations.pay(name).await;
    }
    // Each operation makes two changes: a claim and its completion.
    let mut read = stream.read(40).await.unwrap();
    assert_eq!(read.records.len(), 4);
    edit(&mut read.records[2]);
    (table, read.event())
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_change_stops_the_batch() {
    let emulator = Emulator::start().await;
    let edits: [fn(&mut Value); 3] = [
        |record| record["dynamodb"]["NewImage"]["version"] = json!({ "N": "99" }),
        |record| record["dynamodb"]["StreamViewType"] = json!("KEYS_ONLY"),
        |record| record["eventName"] = json!("OTHER"),
    ];
    for edit in edits {
        let (table, event) = two_ends(&emulator, edit).await;
        let mut outbox = Outbox::new(&table, &[]).await;
        let answer = outbox.deliver(event.clone(), Trouble::Bus(Treatment::Accepts)).await.unwrap();
        let unreadable = &event["Records"][2]["dynamodb"]["SequenceNumber"];
        assert_eq!(failed(&answer).as_deref(), unreadable.as_str());
        // The function sends an event again if EventBridge's answer is slow.
        let ids: BTreeSet<_> =
            outbox.bus.events().iter().map(|event| event["Detail"]["id"].to_string()).collect();
        assert_eq!(ids.len(), 1, "only the first outcome may be published");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_published_only_if_enabled() {
    let emulator = Emulator::start().await;
    let table = fresh_table();
    let mut operations = Operations::new(emulator.client(), table.clone(), 1).await;
    operations.pay("small").await;
    operations.pay_with("not JSON", b"\xff".to_vec()).await;
    operations.pay_with("in chunks", response_in_chunks()).await;
    operations.pay_with("long", long_response()).await;
    operations.pay("last").await;
    let event = Stream::of(emulator.endpoint(), &table).await.read(40).await.unwrap().event();
    let small = Some(json!(SECRET));
    for (variables, expected) in [
        (&[][..], [None, None, None, None, None]),
        (&[("RESPONSES", "include")][..], [small.clone(), None, None, None, small]),
    ] {
        let mut outbox = Outbox::new(&table, variables).await;
        let answer = outbox.deliver(event.clone(), Trouble::Bus(Treatment::Accepts)).await.unwrap();
        assert_eq!(failed(&answer), None);
        let events = outbox.bus.events();
        let responses: Vec<_> = events.iter().map(|event| event["Detail"].get("response").cloned()).collect();
        assert_eq!(responses, expected);
    }
}

/// The function's output contains no key and no response, even with the library's logs at every level.
#[tokio::test(flavor = "multi_thread")]
async fn outbox_logs_no_secrets() {
    let emulator = Emulator::start().await;
    let newer: fn(&mut Value) = |record| record["dynamodb"]["NewImage"]["version"] = json!({ "N": "99" });
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.log", fresh_table()));
    let script = project().join("functions/tests/deploy/recorded.sh");
    let command = format!("sh {} {} {}", script.display(), file.display(), env!("CARGO_BIN_EXE_outbox"));
    for (edit, fault) in [
        (newer, Treatment::Accepts),
        (|_: &mut Value| (), Treatment::Fault(Fault::Refuse)),
        (|_| (), Treatment::RefusesSome),
    ] {
        let (table, event) = two_ends(&emulator, edit).await;
        let mut outbox = Outbox::new(&table, &[("RESPONSES", "include"), ("RUST_LOG", LOUD)]).await;
        outbox.function = Function::from_command(&command, None).unwrap();
        outbox.bus.next(fault);
        let answer = outbox.deliver(event, Trouble::Bus(fault)).await.unwrap();
        assert!(failed(&answer).is_some(), "{fault:?}");
    }
    let told = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    for line in
        ["a change of the table can't be decoded", "refused the request", "EventBridge refused an event"]
    {
        assert!(told.contains(line), "{line}");
    }
    // The secret as text, and in Base64 as in the stream's records.
    for secret in [SECRET, "ImNhbmFyeSI"] {
        let line = told.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

/// The function must fail if its event isn't a batch from a stream. If it succeeded, Lambda would treat the
/// event's records as published.
#[tokio::test(flavor = "multi_thread")]
async fn events_without_stream_records_are_errors() {
    let mut outbox = Outbox::new("records", &[]).await;
    for event in [json!({ "detail": SECRET }), json!({ "Records": [{ "body": SECRET }] })] {
        let answer = outbox.deliver(event, Trouble::Bus(Treatment::Accepts)).await.unwrap();
        let Answer::Error { message, .. } = &answer else { panic!("{answer:?}") };
        assert!(!message.contains(SECRET), "{message}");
    }
    assert!(outbox.bus.events().is_empty());
}

async fn deliver(outbox: &mut Outbox, stream: &mut Stream, read: &Read, trouble: Trouble, met: &mut Met) {
    if let Trouble::Bus(fault) = trouble {
        outbox.bus.next(fault);
    }
    if let Some(answer) = outbox.deliver(read.event(), trouble).await {
        let failed = failed(&answer);
        met.records += read.records.len();
        stream.move_on(read, failed.as_deref());
    }
    // If no operation ended in the batch, the function sends no request, and the bus still holds the fault. The trouble
    // then doesn't count.
    let is_met = outbox.bus.next(Treatment::Accepts) == Treatment::Accepts;
    *met.trouble.entry(trouble).or_default() += usize::from(is_met);
}

/// Checks that the events, deduplicated by their ids, report every outcome exactly once, and that the events of a key
/// are in the order of their generations.
fn judge(seed: u64, ends: &BTreeSet<End>, events: &[Value]) {
    let mut unique: BTreeMap<String, &Value> = BTreeMap::new();
    let mut latest: BTreeMap<String, u64> = BTreeMap::new();
    let mut published = Vec::new();
    for event in events {
        let detail = &event["Detail"];
        let text = |name: &str| detail[name].as_str().unwrap().to_owned();
        if let Some(first) = unique.insert(text("id"), event) {
            assert_eq!(first, event, "seed {seed}: two different events have one id");
            continue;
        }
        let (key, generation) = (text("key"), detail["generation"].as_u64().unwrap());
        assert_eq!(event["DetailType"], format!("operation {}", text("outcome")));
        assert_eq!(
            (&event["Source"], &event["EventBusName"]),
            (&json!("lambda-idempotency"), &json!("operations"))
        );
        assert_eq!((&detail["function"], &detail["operation"]), (&json!("shop"), &json!("run:pay")));
        assert!(
            !event.to_string().contains(SECRET) && detail.get("response").is_none(),
            "seed {seed}: {event}"
        );
        let last = latest.insert(key.clone(), generation);
        assert!(last.is_none_or(|last| last < generation), "seed {seed}: {key} isn't in order");
        published.push((key, generation, text("outcome")));
    }
    published.sort();
    let expected: Vec<_> = ends
        .iter()
        .map(|(key, generation, outcome)| (key.clone(), *generation, (*outcome).to_owned()))
        .collect();
    assert_eq!(published, expected, "seed {seed}");
}
