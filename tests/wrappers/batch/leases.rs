//! The short leases of streams: a crash uses up few retries, and each record still has one outcome.

use std::{sync::mpsc, thread};

use lambda_idempotency::{
    Begun, Fingerprint, current, lambda::batch::KinesisRecord, store::Status, time::Timestamp,
};

use super::{
    streams::kinesis,
    support::{Bench, deliver_by, returned, told},
    *,
};

const SHARD: [(u32, &str, &str); 1] = [(101, "a", "takes 60000")];
/// How long Lambda waits before it redelivers a shard's batch.
const BACKOFF: Duration = Duration::from_secs(8);
/// The function's timeout in milliseconds.
const TIMEOUT: u64 = 60_000;

fn worker(bench: &Bench) -> Batch<KinesisRecord> {
    let orders = bench.clone();
    bench.idempotency.kinesis(KinesisRecord::sequence_key, move |record: KinesisRecord| {
        let orders = orders.clone();
        async move { orders.handle(std::str::from_utf8(record.data())?).await }
    })
}

/// Returns a bench with the memory store and a paused clock.
fn paused(build: impl FnOnce(Builder) -> Builder) -> (Bench, SetClock) {
    let clock = SetClock::tokio();
    let bench = Bench::over(Arc::new(MemoryStore::new()), |builder| build(builder.clock(clock.clone())));
    (bench, clock)
}

/// Delivers a batch, kills its process after a second, and redelivers the batch until its handler starts again. Returns
/// how many deliveries found the batch in progress, and the time between the crash and the handler's second start.
async fn crash(bench: &Bench, clock: &SetClock) -> (usize, Duration) {
    let (worker, batch) = (worker(bench), kinesis(&SHARD));
    let first = deliver_by(&worker, &batch, clock.after(TIMEOUT));
    assert!(tokio::time::timeout(Duration::from_secs(1), first).await.is_err());
    let crashed = clock.now();
    for in_progress in 0..20 {
        let delivery = deliver_by(&worker, &batch, clock.after(TIMEOUT));
        // The handler takes 60 s, so a delivery that starts it always uses up these 25 s.
        let returned = tokio::time::timeout(Duration::from_secs(25), delivery).await;
        if bench.ran().len() == 2 {
            return (in_progress, crashed.until(clock.now()).saturating_sub(Duration::from_secs(25)));
        }
        assert_eq!(returned.unwrap(), ["101"]);
        clock.sleep(BACKOFF).await;
    }
    panic!("the redelivered batch never ran");
}

#[tokio::test(start_paused = true)]
async fn crash_uses_up_few_stream_retries() {
    let (bench, clock) = paused(|builder| builder);
    let (in_progress, after) = crash(&bench, &clock).await;
    assert_eq!(
        in_progress, 3,
        "the key must be free after 3 redeliveries, one every 8 s. A lease until the deadline would cost 8 redeliveries"
    );
    assert!(after <= Duration::from_secs(24), "{after:?}");

    // A delivery that waits for the key inside its invocation uses up no retries.
    let wait = Duration::from_secs(20);
    let (bench, clock) = paused(|builder| builder.settings(|s| s.wait_in_progress = wait));
    let (in_progress, _) = crash(&bench, &clock).await;
    assert_eq!(in_progress, 0);
}

/// A stream's lease lasts 15 s, or three times the grace if that's longer. The user's `lease_extension` overrides this
/// length. At-most-once operations have no takeover, so their lease stays long.
#[tokio::test(start_paused = true)]
async fn leases_of_streams_follow_the_settings() {
    async fn until(build: impl FnOnce(Builder) -> Builder) -> Duration {
        let (bench, clock) = paused(build);
        let held: Arc<Mutex<Vec<Timestamp>>> = Arc::default();
        let (noted, idempotency) = (Arc::clone(&held), bench.idempotency.clone());
        let worker = bench.idempotency.kinesis(KinesisRecord::sequence_key, move |_: KinesisRecord| {
            let (noted, idempotency) = (Arc::clone(&noted), idempotency.clone());
            async move {
                let outer = current().unwrap().lease_until();
                let (step, key) = (idempotency.operation("step")?, Key::new("step-1")?);
                let nested =
                    || async { Ok::<_, std::io::Error>(current().unwrap().lease_until().as_millis()) };
                let nested = Timestamp::from_millis(step.run(&key, &1, nested).await?);
                // The library doesn't extend the lease of a claim that the user began, so that lease isn't shortened.
                let key = Key::new("step-2")?;
                let Begun::Claimed(claim) = step.begin(&key, Fingerprint::of(&1)?).await? else { panic!() };
                let by_hand = claim.handle().lease_until();
                claim.release().await?;
                noted.lock().unwrap().extend([outer, nested, by_hand]);
                Ok::<_, Failure>(())
            }
        });
        let now = clock.now();
        assert_eq!(deliver_by(&worker, &kinesis(&SHARD), clock.after(TIMEOUT)).await, [""; 0]);
        let held = held.lock().unwrap();
        assert_eq!(held[0], held[1], "a nested operation's lease must expire with the handler's");
        if bench.idempotency.settings().lease_extension.is_none() {
            assert_eq!(
                now.until(held[2]),
                Duration::from_millis(TIMEOUT) + bench.idempotency.settings().lease_grace
            );
        }
        now.until(held[0])
    }
    assert_eq!(until(|builder| builder).await, Duration::from_secs(15));
    assert_eq!(
        until(|builder| builder.settings(|s| s.lease_grace = Duration::from_secs(7))).await,
        Duration::from_secs(21)
    );
    assert_eq!(
        until(|builder| builder.settings(|s| s.lease_extension = Some(Duration::from_secs(9)))).await,
        Duration::from_secs(9)
    );
    assert_eq!(until(|builder| builder.execution(Execution::AtMostOnce)).await, Duration::from_secs(62));
}

#[tokio::test(start_paused = true)]
async fn extensions_cost_one_request_per_five_seconds() {
    for (millis, extensions) in [(4_900, 0), (5_100, 1), (21_000, 4), (50_000, 9)] {
        let (bench, clock) = paused(|builder| builder);
        let order = format!("takes {millis}");
        let batch = kinesis(&[(101, "a", &order)]);
        assert_eq!(deliver_by(&worker(&bench), &batch, clock.after(TIMEOUT)).await, [""; 0]);
        assert_eq!(bench.requests(), 2 + extensions, "{millis} ms");
        assert_eq!(deliver_by(&worker(&bench), &batch, clock.after(TIMEOUT)).await, [""; 0]);
        assert_eq!(bench.requests(), 3 + extensions, "a duplicate costs one request");
    }
    // A queue's messages have long leases, so they need no extension.
    let (bench, clock) = paused(|builder| builder);
    let batch = sqs([Message::new("m1", "takes 50000")]);
    assert_eq!(deliver_by(&bench.worker(by_id), &batch, clock.after(TIMEOUT)).await, [""; 0]);
    assert_eq!(bench.requests(), 2);
}

const THREE_LEASES: Duration = Duration::from_secs(45);

/// Runs one invocation in its own runtime, as if in its own process. The handler calls `blocks`, which may block the
/// thread. If `yields` is true, the handler then yields to the runtime, which can cut the handler off. Returns how many
/// records the response reports as failed.
fn invoke(
    bench: &Bench,
    clock: &SetClock,
    ran: &Ran,
    name: &'static str,
    blocks: impl Fn() + Send + Sync + 'static,
    yields: bool,
) -> usize {
    let (ran, blocks) = (Arc::clone(ran), Arc::new(blocks));
    let worker = bench.idempotency.kinesis(KinesisRecord::sequence_key, move |_: KinesisRecord| {
        let (ran, blocks) = (Arc::clone(&ran), Arc::clone(&blocks));
        async move {
            ran.lock().unwrap().push("begins");
            blocks();
            if yields {
                tokio::task::yield_now().await;
            }
            ran.lock().unwrap().push("ends");
            Ok::<_, Failure>(name.to_owned())
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let deadline = clock.now().as_millis() + TIMEOUT;
    returned(&runtime.block_on(told(&worker, &kinesis(&SHARD), deadline)).unwrap()).len()
}

type Ran = Arc<Mutex<Vec<&'static str>>>;

fn moved() -> (Bench, MemoryStore, SetClock, Ran) {
    let (store, clock) = (MemoryStore::new(), SetClock::standing());
    let bench = Bench::over(Arc::new(store.clone()), |builder| builder.clock(clock.clone()));
    (bench, store, clock, Ran::default())
}

/// Lambda redelivers the record only after the first invocation is over.
#[test]
fn handlers_blocked_for_three_leases_never_overlap() {
    for (yields, runs) in [(false, vec!["begins", "ends"]), (true, vec!["begins", "begins", "ends"])] {
        let (bench, _, clock, ran) = moved();
        let blocked = clock.clone();
        let first = invoke(&bench, &clock, &ran, "first", move || blocked.forward(THREE_LEASES), yields);
        // A handler that yields is cut off, because its lease has expired. A handler that doesn't yield returns, and
        // its outcome is recorded, because no other delivery took over.
        assert_eq!(first, usize::from(yields));
        let second = invoke(&bench, &clock, &ran, "second", || (), false);
        assert_eq!(second, 0);
        assert_eq!(*ran.lock().unwrap(), runs, "yields: {yields}");
    }
}

/// The same operation arrives from two shards, so the second delivery can take over while the first handler blocks.
/// The first handler's completion is then fenced.
#[test]
fn blocking_handlers_are_fenced_by_successors() {
    let (bench, store, clock, ran) = moved();
    let ((blocked, is_blocked), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    let is_done = Mutex::new(is_done);
    let late = {
        let (bench, clock, ran) = (bench.clone(), clock.clone(), Arc::clone(&ran));
        let moves = clock.clone();
        let blocks = move || {
            moves.forward(THREE_LEASES);
            blocked.send(()).unwrap();
            is_done.lock().unwrap().recv().unwrap();
        };
        thread::spawn(move || invoke(&bench, &clock, &ran, "late", blocks, false))
    };
    is_blocked.recv().unwrap();
    assert_eq!(invoke(&bench, &clock, &ran, "successor", || (), false), 0);
    done.send(()).unwrap();
    assert_eq!(late.join().unwrap(), 0, "the late invocation reports the successor's outcome, not its own");
    assert_eq!(*ran.lock().unwrap(), ["begins", "begins", "ends", "ends"]);
    // The record holds the successor's outcome.
    let records: Vec<_> = store.all().into_iter().map(|(_, record)| record).collect();
    let [record] = &records[..] else { panic!("{records:?}") };
    // The attempt is the successor's. The generation is the time of the successor's claim in ms, plus 1, since its
    // first claim was refused.
    assert_eq!((record.status(), record.attempt), (Status::Completed, 2));
    assert_eq!(record.generation.get(), clock.now().as_millis() + 1);
}
