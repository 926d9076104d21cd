//! Delivers random batches. No message may be acknowledged before its operation has settled. No operation may run twice
//! concurrently, or again after its outcome was recorded. A FIFO group must run in order. A failed test prints its
//! seed, and `IDEMPOTENCY_TEST_SEED` runs only that seed's batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Mutex,
};

use lambda_idempotency::{store::BoxFuture, time::system_clock};
use serde_json::Value;
use testkit::random::Random;

use super::{
    support::{Counting, returned, told},
    *,
};

const SEEDS: u64 = 400;

/// A message in the queue.
#[derive(Clone, Debug)]
struct Sent {
    key: u64,
    payload: u64,
    group: u64,
}

/// How a handler's run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Succeeds,
    Fails,
    FailsForGood,
    Panics,
}

/// An operation's outcome.
#[derive(Clone, Copy, Debug)]
struct Ended {
    payload: u64,
    does: Does,
    /// If false, the store didn't record the outcome, so the operation may run again.
    is_recorded: bool,
}

/// The state that the handlers share, and the violations they find.
#[derive(Default)]
struct Known {
    settled: BTreeMap<u64, Ended>,
    running: BTreeSet<u64>,
    acknowledged: BTreeSet<usize>,
    wrong: Vec<String>,
}

struct Queue {
    seed: u64,
    is_fifo: bool,
    acknowledges: bool,
    sent: Vec<Sent>,
    random: Arc<Mutex<Random>>,
    known: Arc<Mutex<Known>>,
    clock: SetClock,
    store: Counting,
    idempotency: Idempotency,
}

impl Queue {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sent = (0..1 + random.below(20)).map(|_| Sent {
            key: random.below(8),
            payload: u64::from(random.below(10) == 0),
            group: random.below(3),
        });
        let sent = sent.collect();
        let acknowledges = [false, true][random.index(2)];
        let is_fifo = random.below(2) == 0;
        let clock = SetClock::tokio();
        let bench = Bench::over(Arc::new(MemoryStore::new()), |builder| builder.clock(clock.clone()));
        Self {
            seed,
            is_fifo,
            acknowledges,
            sent,
            random: Arc::new(Mutex::new(random)),
            known: Arc::default(),
            clock,
            store: bench.store,
            idempotency: bench.idempotency,
        }
    }

    fn below(&self, end: u64) -> u64 {
        self.random.lock().unwrap().below(end)
    }

    /// Returns the messages that are still in the queue.
    fn left(&self) -> Vec<usize> {
        let known = self.known.lock().unwrap();
        (0..self.sent.len()).filter(|place| !known.acknowledged.contains(place)).collect()
    }

    fn event(&self, places: &[usize]) -> Value {
        let messages = places.iter().map(|place| {
            let Sent { key, payload, group } = &self.sent[*place];
            let body = json!({ "order": key, "payload": payload });
            let message = Message::new(&place.to_string(), "").with_body(&body.to_string());
            let message = message.in_group(&group.to_string());
            if self.is_fifo { message.fifo() } else { message }
        });
        sqs(messages)
    }

    /// Delivers some of the remaining messages. If `is_end` is true, delivers all of them, and nothing fails or
    /// runs out of time.
    async fn deliver(&self, is_end: bool) {
        let left = self.left();
        let batch: Vec<_> =
            left.iter().copied().take(if is_end { 100 } else { 1 + self.below(10) as usize }).collect();
        let deadline = match self.below(4) {
            _ if is_end => self.clock.after(900_000),
            0 => 0,
            _ => self.clock.after(1_000 + self.below(20_000)),
        };
        self.store.is_down.store(!is_end && self.below(10) == 0, Ordering::SeqCst);
        let is_in_vain = !is_end && self.below(6) == 0;
        self.store.takes_claims_alone.store(is_in_vain, Ordering::SeqCst);
        let width = NonZeroUsize::new(1 + self.below(5) as usize).unwrap();
        let worker = self.idempotency.sqs(by_order, self.handler(is_end, !is_in_vain));
        let worker = worker.concurrency(width).acknowledge_permanent_failures(self.acknowledges);
        let event = self.event(&batch);
        let one = || async {
            let answer = told(&worker, &event, deadline).await.unwrap();
            self.acknowledge(&batch, &returned(&answer).iter().map(|id| id.parse().unwrap()).collect());
        };
        // SQS sometimes delivers a standard queue's message twice.
        match self.is_fifo || self.below(3) > 0 {
            true => one().await,
            false => drop(tokio::join!(one(), one())),
        }
    }

    fn acknowledge(&self, batch: &[usize], returned: &BTreeSet<usize>) {
        let mut known = self.known.lock().unwrap();
        for place in batch.iter().filter(|place| !returned.contains(place)) {
            if !known.is_done(&self.sent[*place], self.acknowledges) {
                known.wrong.push(format!("message {place} is acknowledged but wasn't handled"));
            }
            known.acknowledged.insert(*place);
        }
    }

    fn handler(
        &self,
        is_end: bool,
        is_recorded: bool,
    ) -> impl Fn(SqsMessage) -> BoxFuture<'static, Result<String, Failure>> + Clone + Send + Sync + 'static
    {
        let (random, known) = (Arc::clone(&self.random), Arc::clone(&self.known));
        let (sent, is_fifo, acknowledges) = (self.sent.clone(), self.is_fifo, self.acknowledges);
        move |message: SqsMessage| {
            let place: usize = message.message_id().parse().unwrap();
            let (takes, does) = plan(&mut random.lock().unwrap(), is_end);
            let (known, sent) = (Arc::clone(&known), sent.clone());
            Box::pin(async move {
                let Sent { key, payload, group } = sent[place];
                let running = Running::begin(&known, key);
                if is_fifo {
                    let is_before = |other: &usize| sent[*other].group == group;
                    for earlier in (0..place).filter(is_before) {
                        known.lock().unwrap().check_is_behind(place, earlier, &sent[earlier], acknowledges);
                    }
                }
                system_clock().sleep(Duration::from_millis(takes)).await;
                drop(running);
                if matches!(does, Does::Succeeds | Does::FailsForGood) {
                    known.lock().unwrap().settled.insert(key, Ended { payload, does, is_recorded });
                }
                match does {
                    Does::Succeeds => Ok("done".to_owned()),
                    Does::Fails => Err("not now".into()),
                    Does::FailsForGood => Err(Failure::permanent("Never", "never")),
                    Does::Panics => panic!("this panic is intended"),
                }
            })
        }
    }

    /// Makes 12 random deliveries, and then 3 without faults. Afterwards, each message that can succeed must be
    /// acknowledged. Returns the violations.
    async fn run(&self) -> Vec<String> {
        for _ in 0..12 {
            self.deliver(false).await;
            tokio::time::advance(Duration::from_millis(self.below(20_000))).await;
        }
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(120)).await;
            self.deliver(true).await;
        }
        let left = self.left();
        let known = self.known.lock().unwrap();
        let mut wrong = known.wrong.clone();
        let mut blocked = BTreeSet::new();
        for place in left {
            let Sent { key, payload, group } = self.sent[place];
            let never = known.settled.get(&key).is_some_and(|ended| {
                ended.payload != payload || ended.does != Does::Succeeds && !self.acknowledges
            });
            if never {
                blocked.insert(group);
            } else if !(self.is_fifo && blocked.contains(&group)) {
                wrong.push(format!("message {place} is still in the queue"));
            }
        }
        wrong
    }
}

impl Known {
    /// Whether the worker may acknowledge this message and go on with its group. After a permanent failure, it may do
    /// so only if the failure is recorded and `acknowledges` is set.
    fn is_done(&self, sent: &Sent, acknowledges: bool) -> bool {
        self.settled.get(&sent.key).is_some_and(|ended| {
            let is_final = ended.does == Does::Succeeds || ended.is_recorded && acknowledges;
            ended.payload == sent.payload && is_final
        })
    }

    fn check_is_behind(&mut self, place: usize, earlier: usize, of_earlier: &Sent, acknowledges: bool) {
        if !self.is_done(of_earlier, acknowledges) && !self.acknowledged.contains(&earlier) {
            self.wrong.push(format!("message {place} ran before message {earlier} of its group was done"));
        }
    }
}

/// Returns a run's length in milliseconds, and how it ends.
fn plan(random: &mut Random, is_end: bool) -> (u64, Does) {
    if is_end {
        return (0, Does::Succeeds);
    }
    let does = match random.below(10) {
        0..6 => Does::Succeeds,
        6 | 7 => Does::Fails,
        8 => Does::Panics,
        _ => Does::FailsForGood,
    };
    (random.below(4) * random.below(1_500), does)
}

/// Marks an operation as running until this is dropped.
struct Running {
    known: Arc<Mutex<Known>>,
    key: u64,
}

impl Running {
    fn begin(known: &Arc<Mutex<Known>>, key: u64) -> Self {
        let mut state = known.lock().unwrap();
        if !state.running.insert(key) {
            state.wrong.push(format!("operation {key} runs twice concurrently"));
        }
        if state.settled.get(&key).is_some_and(|ended| ended.is_recorded) {
            state.wrong.push(format!("operation {key} runs again after its outcome was recorded"));
        }
        Self { known: Arc::clone(known), key }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).running.remove(&self.key);
    }
}

/// Tests `check_is_behind`: after a permanent failure, a group may go on only if the failure is recorded and
/// `acknowledges` is set.
#[test]
fn groups_wait_for_recorded_failures() {
    recording::begin();
    let failed = Sent { key: 1, payload: 0, group: 0 };
    for (is_recorded, acknowledges, is_wrong) in
        [(true, true, false), (false, true, true), (true, false, true), (false, false, true)]
    {
        let mut known = Known::default();
        known.settled.insert(1, Ended { payload: 0, does: Does::FailsForGood, is_recorded });
        known.check_is_behind(1, 0, &failed, acknowledges);
        assert_eq!(
            !known.wrong.is_empty(),
            is_wrong,
            "recorded: {is_recorded}, acknowledges: {acknowledges}"
        );
    }
}

#[test]
fn random_batches_have_no_violations() {
    let seeds = match env::var("IDEMPOTENCY_TEST_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..=seed
        }
        Err(_) if recording::is_on() => 1..=10,
        Err(_) => 1..=SEEDS,
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let wrong = runtime.unwrap().block_on(async {
            let queue = Queue::new(seed);
            assert_eq!(queue.seed, seed);
            queue.run().await
        });
        assert_eq!(wrong, [""; 0], "IDEMPOTENCY_TEST_SEED={seed}");
    }
}
