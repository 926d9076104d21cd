//! [`Bench`]: one process of a test, and the methods that cause faults.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lambda_idempotency::{Builder, Idempotency};
use lambda_idempotency_core::{StoredKey, store::memory::MemoryStore, time::Timestamp};

use super::{
    delivery::Delivery,
    event::Event,
    fault::Fault,
    function::Function,
    given::Given,
    ledger::Ledger,
    picture,
    point::{Call, Point},
    stage::Stage,
    store::BenchStore,
    time::VirtualTime,
    world::{BenchClock, Orders, World, inside, outside_runtime},
};

/// How long an invocation may take, unless [`Bench::timeout`] sets another time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait after a lease's end: longer than any skew margin in use.
pub(super) const BEYOND_LEASES: Duration = Duration::from_secs(10);

/// A process of the function under test: its connection to the store, its clock and its handle on the
/// [ledger](Ledger).
///
/// [`Bench::new`] makes a new test world: an empty store, a virtual clock and an empty ledger.
/// [`process`](Self::process) adds another process to the same world. Time passes only in
/// [`advance`](Self::advance), or while the library or a handler waits.
///
/// ```
/// use lambda_idempotency::Key;
/// use lambda_idempotency_testing::{Bench, Event, Function};
///
/// let bench = Bench::new();
/// let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
/// let mut function = Function::new(move |order: String| {
///     let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
///     async move {
///         let charge = || async { ledger.call("charge", None, &order).await };
///         idempotency.operation("charge")?.run(Key::new(&order)?, &order, charge).await.map_err(Box::<dyn std::error::Error + Send + Sync>::from)
///     }
/// });
///
/// let event = Event::json(r#""order-17""#);
/// bench.deliver(&mut function, &event).assert_ran();
/// bench.deliver(&mut function, &event.retried(1)).assert_replayed();
/// bench.ledger().assert_count("charge", 1);
/// ```
pub struct Bench {
    inner: Arc<Shared>,
    process: usize,
}

struct Shared {
    /// Dropped before `time`, because the stage's futures may hold timers. `None` under `survive`, which has its own
    /// stage.
    stage: Option<Mutex<Stage>>,
    next: Mutex<Vec<Orders>>,
    world: Arc<World>,
    time: Option<VirtualTime>,
}

impl Bench {
    /// Makes a test world with an empty store, and its first process.
    ///
    /// # Panics
    ///
    /// If the operating system can't start a runtime.
    pub fn new() -> Self {
        let time = VirtualTime::start().unwrap_or_else(|error| panic!("can't start a runtime: {error}"));
        let world = Arc::new(World::new(time.beginning(), 0));
        let (stage, process) = (Mutex::new(Stage::new(Arc::clone(&world), TIMEOUT)), world.add_process());
        let shared = Shared { stage: Some(stage), next: Mutex::default(), world, time: Some(time) };
        Self { inner: Arc::new(shared), process }
    }

    /// Adds a process to `world`. The caller builds that process's function with the returned bench.
    pub(super) fn in_world(world: &Arc<World>) -> Self {
        let shared = Shared { stage: None, next: Mutex::default(), world: Arc::clone(world), time: None };
        Self { inner: Arc::new(shared), process: world.add_process() }
    }

    /// Adds another process to the same world: a second sandbox, or the new sandbox after a crash.
    #[must_use]
    pub fn process(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), process: self.inner.world.add_process() }
    }

    /// Sets how long an invocation may take. Default: 30 seconds.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.stage().timeout = timeout;
        self
    }

    /// Returns a builder for your own settings. It uses this process's store, clock and source of owners.
    pub fn builder(&self) -> Builder {
        let world = Arc::clone(&self.inner.world);
        Idempotency::builder(BenchStore { world: Arc::clone(&world), process: self.process })
            .function("under-test")
            .clock(BenchClock(Arc::clone(&world)))
            .owner_source(move || Ok(world.draw_owner()))
    }

    /// An [`Idempotency`] with default settings.
    ///
    /// # Panics
    ///
    /// Never: the default settings are valid.
    pub fn idempotency(&self) -> Idempotency {
        self.builder().build().unwrap_or_else(|error| panic!("the default settings are refused: {error}"))
    }

    /// This process's handle on the ledger.
    pub fn ledger(&self) -> Ledger {
        Ledger::new(Arc::clone(&self.inner.world), self.process)
    }

    /// The state of a fake remote system, which all processes of this test world share. There's one value for each type,
    /// and it begins with its default. Each schedule of [`survive()`](super::survive()) begins with a new value.
    ///
    /// A fake writes its effects into the [ledger](Self::ledger) too. First it awaits [`Ledger::call`], then it changes
    /// its state: then a process that died at the call changes nothing.
    ///
    /// ```
    /// use std::{collections::HashMap, sync::Mutex};
    /// use lambda_idempotency_testing::{Bench, Ledger, NoAnswer};
    ///
    /// /// A gateway that can be asked for a charge.
    /// struct FakeGateway {
    ///     ledger: Ledger,
    ///     charges: std::sync::Arc<Mutex<HashMap<String, u64>>>,
    /// }
    ///
    /// impl FakeGateway {
    ///     fn new(bench: &Bench) -> Self {
    ///         Self { ledger: bench.ledger(), charges: bench.shared() }
    ///     }
    ///
    ///     async fn charge(&self, order: &str, cents: u64) -> Result<(), NoAnswer> {
    ///         self.ledger.call("charge", Some(order), cents).await?;
    ///         self.charges.lock().unwrap().insert(order.to_owned(), cents);
    ///         Ok(())
    ///     }
    ///
    ///     fn charged(&self, order: &str) -> Option<u64> {
    ///         self.charges.lock().unwrap().get(order).copied()
    ///     }
    /// }
    ///
    /// let bench = Bench::new();
    /// let (one, another) = (FakeGateway::new(&bench), FakeGateway::new(&bench.process()));
    /// assert_eq!(one.charged("order-17"), another.charged("order-17"));
    /// ```
    pub fn shared<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.inner.world.shared()
    }

    /// The store with the records, for the test to read and change. Use [`given`](Self::given) for a record in a
    /// certain state.
    pub fn records(&self) -> MemoryStore {
        self.inner.world.records.clone()
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.inner.world.now()
    }

    /// Lets this much time pass.
    pub fn advance(&self, duration: Duration) {
        let mut stage = self.stage();
        let stage = &mut *stage;
        self.in_time(async move || stage.wait(duration).await);
    }

    /// Lets time pass until every claim is stale.
    pub fn advance_past_leases(&self) {
        let left = self.stage().until_stale(BEYOND_LEASES);
        self.advance(left);
    }

    /// Delivers `event` to `function` in this process.
    ///
    /// Waits until the function has answered, its process is dead, or a fault has paused the delivery.
    ///
    /// This call blocks the thread, in an asynchronous test too: the function runs on the bench's own runtime, in
    /// virtual time. In an ordinary test it runs on the calling thread, so a recorder of the `metrics` crate that's local
    /// to this thread gets the delivery's metrics. In an asynchronous test it runs on another thread.
    /// ```
    /// use lambda_idempotency::{Key, metrics::Metric};
    /// use lambda_idempotency_testing::{Bench, Event, Function};
    /// # use std::sync::Mutex;
    /// # use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, SharedString, Unit};
    /// # #[derive(Default)]
    /// # struct Recorder(Mutex<Vec<String>>);
    /// # impl metrics::Recorder for Recorder {
    /// #     fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    /// #     fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    /// #     fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    /// #     fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
    /// #         self.0.lock().unwrap().push(key.name().to_owned());
    /// #         Counter::noop()
    /// #     }
    /// #     fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge { Gauge::noop() }
    /// #     fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram { Histogram::noop() }
    /// # }
    ///
    /// # let bench = Bench::new();
    /// # let idempotency = bench.idempotency();
    /// # let mut function = Function::new(move |order: String| {
    /// #     let idempotency = idempotency.clone();
    /// #     async move {
    /// #         let ship = || async { Ok::<_, std::io::Error>("shipped".to_owned()) };
    /// #         idempotency.operation("ship")?.run(Key::new(&order)?, &order, ship).await
    /// #     }
    /// # });
    /// let recorder = Recorder::default(); // such as the `DebuggingRecorder` of `metrics-util`
    /// metrics::with_local_recorder(&recorder, || {
    ///     bench.deliver(&mut function, &Event::json(r#""order-17""#)).assert_ran();
    /// });
    /// # let seen = recorder.0.lock().unwrap().clone();
    /// assert!(seen.contains(&Metric::Executed.name().to_owned()));
    /// ```
    pub fn deliver(&self, function: &mut Function, event: &Event) -> Delivery {
        let orders = std::mem::take(&mut *lock(&self.inner.next));
        let process = self.process;
        let mut stage = self.stage();
        let stage = &mut *stage;
        let (delivery, how) = self.in_time(async move || {
            let delivery = stage.begin(function, process, (event, event.shared()), orders, String::new());
            (delivery, stage.run(delivery).await)
        });
        Delivery::new(&self.inner.world, delivery, how)
    }

    /// Resumes a paused delivery ([`pause_at`](Self::pause_at)), and waits until it has ended.
    pub fn resume(&self, paused: &Delivery) -> Delivery {
        let delivery = paused.index();
        let mut stage = self.stage();
        let stage = &mut *stage;
        let how = self.in_time(async move || {
            stage.release(delivery);
            stage.run(delivery).await
        });
        Delivery::new(&self.inner.world, delivery, how)
    }

    /// The next delivery's process dies at `point`. After that, nothing in the process runs, not even a destructor.
    pub fn die_at(&self, point: Point) -> &Self {
        self.plan(point, Fault::Die, 1)
    }

    /// The next delivery pauses at `point`, until [`resume`](Self::resume).
    ///
    /// While it's paused, call [`advance_past_leases`](Self::advance_past_leases) and deliver the event in another
    /// process. The new delivery then takes over the claim.
    ///
    /// # Panics
    ///
    /// At [`Point::Entered`] and [`Point::Answered`], where a delivery can't pause.
    pub fn pause_at(&self, point: Point) -> &Self {
        self.plan(point, Fault::Overlap, 1)
    }

    /// In the next delivery, this write is applied, and its answer is lost.
    pub fn lose_answer(&self, call: Call) -> &Self {
        self.plan(Point::After(call), Fault::LoseAnswer, 1)
    }

    /// In the next delivery, this write is throttled this many times.
    pub fn throttle(&self, call: Call, times: usize) -> &Self {
        self.plan(Point::Before(call), Fault::Throttle, times)
    }

    /// In the next delivery, the store is down from this write on.
    pub fn outage_from(&self, call: Call) -> &Self {
        self.plan(Point::Before(call), Fault::Outage, 1)
    }

    /// In the next delivery, the first call to the [ledger](Ledger::call) gets no answer, and the effect doesn't
    /// happen.
    pub fn fail_effect(&self) -> &Self {
        self.plan(Point::BeforeEffect, Fault::Throttle, 1)
    }

    /// In the next delivery, the first effect happens, and its answer is lost.
    pub fn lose_effects_answer(&self) -> &Self {
        self.plan(Point::AfterEffect, Fault::LoseAnswer, 1)
    }

    /// The next delivery runs out of time at `point`, because it gets no answer there.
    ///
    /// # Panics
    ///
    /// At [`Point::Entered`] and [`Point::Answered`], where a delivery waits for no answer.
    pub fn run_out_of_time_at(&self, point: Point) -> &Self {
        let fault = if Fault::Silence.fits(point) { Fault::Silence } else { Fault::SilenceAfter };
        self.plan(point, fault, 1)
    }

    /// Causes this fault at `point` in the next delivery.
    ///
    /// # Panics
    ///
    /// If the fault can't happen there: see [`Fault::fits`].
    pub fn fault_at(&self, point: Point, fault: Fault) -> &Self {
        self.plan(point, fault, 1)
    }

    /// Causes this fault in the next delivery, when the delivery reaches `point` for the `nth` time. 1 is the first time.
    ///
    /// ```
    /// use lambda_idempotency::Key;
    /// use lambda_idempotency_testing::{Bench, Event, Fault, Function, Point};
    ///
    /// let bench = Bench::new();
    /// let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    /// let mut book = Function::new(move |trip: String| {
    ///     let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
    ///     async move {
    ///         for step in ["hotel", "flight", "car"] {
    ///             let book = || async { ledger.call(step, None, &trip).await };
    ///             let booked = idempotency.operation(step)?.run(Key::new(&trip)?, &trip, book).await;
    ///             booked.map_err(Box::<dyn std::error::Error + Send + Sync>::from)?;
    ///         }
    ///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>("booked")
    ///     }
    /// });
    /// // The process dies after the second step's effect.
    /// bench.fault_at_nth(Point::AfterEffect, 2, Fault::Die);
    /// bench.deliver(&mut book, &Event::json(r#""trip-17""#)).assert_died();
    /// bench.ledger().assert_count("hotel", 1);
    /// bench.ledger().assert_count("flight", 1);
    /// bench.ledger().assert_count("car", 0);
    /// ```
    ///
    /// # Panics
    ///
    /// If the fault can't happen there: see [`Fault::fits`].
    pub fn fault_at_nth(&self, point: Point, nth: usize, fault: Fault) -> &Self {
        self.order(point, fault, Orders::AtNth(point, nth, fault), 1)
    }

    fn plan(&self, point: Point, fault: Fault, times: usize) -> &Self {
        self.order(point, fault, Orders::At(point, fault), times)
    }

    fn order(&self, point: Point, fault: Fault, orders: Orders, times: usize) -> &Self {
        assert!(fault.fits(point), "the fault `{fault}` can't happen at the point `{point}`");
        lock(&self.inner.next).extend(std::iter::repeat_n(orders, times));
        self
    }

    /// Draws everything that has happened in this test world as a sequence diagram: an SVG file that loads nothing.
    /// The title is read to people who can't see it.
    ///
    /// ```
    /// use lambda_idempotency_testing::{Bench, Event, Function};
    ///
    /// let bench = Bench::new();
    /// let mut function = Function::new(async |order: String| Ok::<_, std::io::Error>(order));
    /// let _ = bench.deliver(&mut function, &Event::json(r#""order-17""#));
    /// assert!(bench.to_svg("an order").contains("delivery 1: the event"));
    /// ```
    pub fn to_svg(&self, title: &str) -> String {
        let state = self.world().state();
        let events = picture::events(&state.trace, &state.effects, &state.deliveries);
        picture::figure(title, &events, true)
    }

    /// The keys in the store.
    pub fn keys(&self) -> Vec<StoredKey> {
        self.inner.world.records.all().into_iter().map(|(key, _)| key).collect()
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.inner.stage.as_ref().map_or_else(|| unreachable_time(), lock)
    }

    pub(super) fn world(&self) -> &World {
        &self.inner.world
    }

    pub(super) fn index(&self) -> usize {
        self.process
    }

    /// Runs `work` in the bench's virtual time.
    fn in_time<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send) -> T {
        let time = self.inner.time.as_ref();
        outside_runtime(|| inside(|| time.and_then(|time| time.block_on(async { work().await }))))
            .unwrap_or_else(|| unreachable_time())
    }

    /// The next delivery finds its key in this state.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lambda_idempotency::{ErrorKind, Key};
    /// use lambda_idempotency_testing::{Bench, Event, Function, Given};
    ///
    /// let bench = Bench::new();
    /// let idempotency = bench.idempotency();
    /// let mut function = Function::new(move |order: String| {
    ///     let idempotency = idempotency.clone();
    ///     async move {
    ///         let ship = || async { Ok::<_, std::io::Error>("shipped".to_owned()) };
    ///         idempotency.operation("ship")?.run(Key::new(&order)?, &order, ship).await
    ///     }
    /// });
    /// bench.given(Given::InProgress(Duration::from_secs(20)));
    /// bench.deliver(&mut function, &Event::json(r#""order-17""#)).assert_refused(ErrorKind::InProgress);
    /// ```
    pub fn given(&self, state: Given) -> &Self {
        self.world().state().given = Some(state);
        self
    }
}

fn unreachable_time() -> ! {
    panic!("`survive` delivers the events: use this bench only to build the function")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("process", &self.process).finish_non_exhaustive()
    }
}
