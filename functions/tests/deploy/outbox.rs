//! Tests that `outbox` publishes every end of an operation while it's killed, its answers get lost and EventBridge
//! refuses events. They run on the embedded DynamoDB, or on the one that `IDEMPOTENCY_TEST_ENDPOINT` names.

mod bus;
mod operations;
mod stream;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lambda_idempotency::testing::Random;
use lambda_idempotency_rehearsal::{
    answer::Answer,
    database::{ACCESS_KEY, REGION},
    event::Event,
    function::{Function, Sandbox},
    runs::Runs,
};
use serde_json::{Value, json};
use testkit::emulator::{Emulator, fresh_table};

use self::{
    bus::{Bus, Fault},
    operations::{End, Operations, SECRET},
    stream::{Read, Stream},
};

const LIMIT: Duration = Duration::from_secs(30);
const SEEDS: u64 = 10;
/// How many operations a schedule has.
const OPERATIONS: usize = 80;

/// How a batch's delivery goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Bus(Fault),
    /// The process is killed when it has answered, and Lambda doesn't get the answer.
    KilledBeforeTheCheckpoint,
}

const TROUBLE: [Trouble; 7] = [
    Trouble::Bus(Fault::None),
    Trouble::Bus(Fault::Silent),
    Trouble::Bus(Fault::SilentOnceAccepted),
    Trouble::Bus(Fault::AnswerLost),
    Trouble::Bus(Fault::RefusesSome),
    Trouble::Bus(Fault::RefusesAll),
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
        let mut environment = vec![
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256".into()),
            ("AWS_LAMBDA_LOG_FORMAT", "JSON".into()),
            ("AWS_REGION", REGION.into()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.into()),
            ("AWS_EC2_METADATA_DISABLED", "true".into()),
            ("AWS_ENDPOINT_URL_EVENTBRIDGE", bus.url()),
            ("EVENT_BUS", "operations".into()),
            ("IDEMPOTENCY_TABLE", table.into()),
        ];
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
        if let Trouble::Bus(fault) = trouble {
            self.bus.next(fault);
        }
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

/// The record that an answer names, if any.
fn failed(answer: &Answer) -> Option<String> {
    let Answer::Payload(payload) = answer else { panic!("{answer:?}") };
    let answer: Value = serde_json::from_slice(payload).unwrap();
    let failures = answer["batchItemFailures"].as_array().unwrap();
    assert!(failures.len() <= 1);
    failures.first().map(|failure| failure["itemIdentifier"].as_str().unwrap().to_owned())
}

/// What the schedules met, so that a test that meets nothing fails.
#[derive(Default)]
struct Met {
    trouble: BTreeMap<Trouble, usize>,
    ends: usize,
    events: usize,
    records: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_is_published_despite_kills() {
    let emulator = Emulator::start().await;
    let mut met = Met::default();
    for seed in 1..=SEEDS {
        play(seed, &emulator, &mut met).await;
    }
    println!("{} ends of {} changes, {} events", met.ends, met.records, met.events);
    println!("trouble: {:?}", met.trouble);
    assert!(TROUBLE.iter().all(|trouble| met.trouble.contains_key(trouble)), "{:?}", met.trouble);
    assert!(met.events > met.ends, "nothing was published twice");
    assert!(met.records > 2 * met.ends, "most changes are no ends");
}

async fn play(seed: u64, emulator: &Emulator, met: &mut Met) {
    let table = fresh_table();
    let mut random = Random::new(seed ^ 0x0b0c);
    let mut operations = Operations::new(emulator.client(), table.clone(), seed).await;
    let mut stream = Stream::of(emulator.endpoint(), &table).await;
    let mut outbox = Outbox::new(&table, &[]).await;
    for nth in 0.. {
        let is_over = nth >= OPERATIONS;
        if !is_over {
            operations.go_on().await;
            // The stream grows to batches of several changes.
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
            false => Trouble::Bus(Fault::None),
        };
        deliver(&mut outbox, &mut stream, &read, trouble, met).await;
    }
    met.ends += operations.ends().len();
    met.events += outbox.bus.events().len();
    judge(seed, operations.ends(), &outbox.bus.events());
}

async fn deliver(outbox: &mut Outbox, stream: &mut Stream, read: &Read, trouble: Trouble, met: &mut Met) {
    if let Some(answer) = outbox.deliver(read.event(), trouble).await {
        let failed = failed(&answer);
        met.records += read.records.len();
        stream.move_on(read, failed.as_deref());
    }
    *met.trouble.entry(trouble).or_default() += 1;
}

/// Every end has been published, and its ids deduplicate to one event each, in the order of their generations.
fn judge(seed: u64, ends: &BTreeSet<End>, events: &[Value]) {
    let mut unique: BTreeMap<String, &Value> = BTreeMap::new();
    let mut latest: BTreeMap<String, u64> = BTreeMap::new();
    let mut published = Vec::new();
    for event in events {
        let detail = &event["Detail"];
        let text = |name: &str| detail[name].as_str().unwrap().to_owned();
        if let Some(first) = unique.insert(text("id"), event) {
            assert_eq!(first, event, "seed {seed}: one id for two events");
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
