//! The state that all processes of a test share: the records, the time, the effects and the story so far.

use std::{
    any::{Any, TypeId},
    cell::Cell,
    collections::{BTreeSet, HashMap},
    fmt,
    future::{pending, poll_fn},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use lambda_idempotency_core::{
    StoredKey,
    store::{BoxFuture, Mark, Owner, Put, memory::MemoryStore},
    time::{Clock, Timestamp},
};

use super::{
    effect::Happened,
    fault::Fault,
    function::{Caller, caller},
    given::Given,
    point::{Call, Point},
    random::Random,
    request::Late,
    time::{VirtualBeginning, virtual_sleep},
    told::Told,
};

/// When a test's time begins: 21 November 2026, three minutes before midnight UTC. A retry after minutes or hours comes
/// on the next day, so a test finds a key or an effect that contains the date.
const BEGINNING: Timestamp = Timestamp::from_secs(1_795_305_600 - 3 * 60);

thread_local! {
    /// The delivery that this thread polls.
    static POLLED: Cell<Option<usize>> = const { Cell::new(None) };
    /// Whether this thread runs a test's [`World`], whose time is virtual.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The state that the processes of one test share.
pub(super) struct World {
    pub(super) records: MemoryStore,
    beginning: VirtualBeginning,
    state: Mutex<State>,
    /// The values that fakes share, one for each type.
    shared: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

/// The deliveries, the effects and the story so far.
pub(super) struct State {
    now: Timestamp,
    owners: Random,
    pub(super) deliveries: Vec<Delivered>,
    /// Whether each process is dead.
    pub(super) dead: Vec<bool>,
    pub(super) effects: Vec<Happened>,
    /// The effects that happened under a key, by name and key: a remote system deduplicates them.
    pub(super) known: HashMap<(String, String), usize>,
    /// How often each effect that happened was asked for, by name and reference.
    pub(super) asked: HashMap<(String, String), usize>,
    /// The number of the schedule. It decides how the first question for an effect is answered.
    pub(super) schedule: u64,
    pub(super) trace: Vec<Told>,
    /// The state in which the next delivery finds its key.
    pub(super) given: Option<Given>,
    /// The keys whose records can't be read.
    pub(super) unreadable: HashMap<StoredKey, Meets>,
    /// The requests that arrive late, in their order.
    pub(super) late: Vec<Late>,
    /// Whether the test is over: nothing counts any more.
    pub(super) is_over: bool,
    driver: Option<Waker>,
}

/// One delivery.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    pub(super) process: usize,
    /// The faults that haven't happened yet.
    orders: Vec<Orders>,
    /// The points that the delivery has reached.
    pub(super) reached: Vec<Point>,
    pub(super) is_answered: bool,
    hold: Hold,
    is_cut_off: bool,
    /// Whether the delivery came with no time left.
    pub(super) has_no_time: bool,
    pub(super) requests: usize,
    /// The keys of the delivery's requests to the store.
    pub(super) keys: Vec<StoredKey>,
    /// The keys that the delivery holds a claim on.
    pub(super) holds: BTreeSet<StoredKey>,
    /// The types of the delivery's results that read back differently.
    pub(super) changed: BTreeSet<&'static str>,
    /// The keys whose outcome the delivery has recorded.
    pub(super) recorded: BTreeSet<StoredKey>,
    /// Whether the delivery's writes imply a run of the handler: the delivery claimed a key, after which the handler
    /// runs, or it recorded an outcome without a claim.
    pub(super) has_run: bool,
    /// Whether an operation's handler has called the ledger.
    is_called_by_handler: bool,
    /// Whether a task that the function spawned has called the ledger.
    is_called_by_task: bool,
    /// Whether the store has refused a claim of the delivery.
    pub(super) is_refused: bool,
    /// The keys of at-most-once operations: the delivery claimed them without an expiry, and has neither completed nor
    /// released them.
    pub(super) at_most_once: BTreeSet<StoredKey>,
    /// The keys whose claim the store refused.
    pub(super) refused: BTreeSet<StoredKey>,
    /// The keys whose claim the store refused after this delivery had recorded their outcomes.
    pub(super) asked_again: Vec<StoredKey>,
    /// How many times the delivery was polled, and still waits.
    pub(super) polls: usize,
    /// The delivery pauses after this many polls.
    pub(super) pauses_after: Option<usize>,
}

impl Delivered {
    /// Notes a write that was applied. If a claim arrives late, no handler runs under it.
    pub(super) fn noted(&mut self, key: &StoredKey, put: &Put, is_late: bool) {
        let (call, is_for_ever) = (Call::of(put), put.record().is_at_most_once_claim());
        let is_unanswered = put.record().mark == Mark::Unanswered;
        if call.is_claim() {
            if is_for_ever {
                self.at_most_once.insert(key.clone());
            }
            if !is_late {
                self.has_run = true;
                self.holds.insert(key.clone());
            }
        } else if call == Call::Extend {
            if is_unanswered {
                self.holds.remove(key);
            }
        } else {
            self.holds.remove(key);
            // After a recorded failure, the key stays, since retries may still be refused.
            if matches!(call, Call::Complete | Call::Release) {
                self.at_most_once.remove(key);
            }
            self.has_run |= call == Call::Conclude;
            if matches!(call, Call::Complete | Call::Fail | Call::Conclude) {
                self.recorded.insert(key.clone());
            }
        }
    }

    /// Notes a call to the ledger.
    fn called(&mut self) {
        match caller() {
            Caller::Handler => self.is_called_by_handler = true,
            Caller::Around => {}
            Caller::Task => self.is_called_by_task = true,
        }
    }

    /// Whether the delivery only read outcomes that were recorded before.
    pub(super) fn is_replay(&self) -> bool {
        self.is_refused && !self.shows_run()
    }

    /// Whether anything shows that the handler ran: a write, an outcome that was sent without a claim, or a call to the
    /// ledger by an operation's handler or a spawned task. A spawned task's call doesn't count if the store refused the
    /// delivery's only claim: the code around the handler may have spawned that task.
    pub(super) fn shows_run(&self) -> bool {
        let asks_again =
            |point: &Point| matches!(point, Point::Before(call) if call.is_claim() && *call != Call::Claim);
        let is_denied = || self.is_refused && !self.reached.iter().any(asks_again);
        self.has_run
            || self.is_called_by_handler
            || self.reached.contains(&Point::Before(Call::Conclude))
            || self.is_called_by_task && !is_denied()
    }
}

/// A fault that happens once in a delivery, and the point where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Orders {
    /// The fault, when the delivery next reaches this point.
    At(Point, Fault),
    /// The fault, when the delivery reaches this point as often as this number says.
    AtNth(Point, usize, Fault),
    /// The fault, at the delivery's point with this number.
    Nth(usize, Fault),
    /// At the point with this number, one of the faults that fit it. The second number selects the fault.
    Any(usize, usize),
}

impl Orders {
    /// Returns the fault for `point`, the last of the points that the delivery has `reached`.
    fn fault(self, reached: &[Point], point: Point) -> Option<Fault> {
        let nth = reached.len().saturating_sub(1);
        match self {
            Self::At(at, fault) => (at == point && fault.fits(point)).then_some(fault),
            Self::AtNth(at, times, fault) => {
                let is_due = at == point && reached.iter().filter(|reached| **reached == at).count() == times;
                (is_due && fault.fits(point)).then_some(fault)
            }
            Self::Nth(at, fault) => (at == nth && fault.fits(point)).then_some(fault),
            Self::Any(at, draw) if at == nth => {
                let fitting: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| fault.fits(point)).collect();
                fitting.get(draw % fitting.len().max(1)).copied()
            }
            Self::Any(..) => None,
        }
    }
}

#[derive(Debug, Default)]
enum Hold {
    #[default]
    Not,
    Held(Fault, Option<Waker>),
    Released,
}

/// Why a record can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meets {
    Corrupt,
    FutureVersion,
}

/// A process's next step at a point: it continues, stops, pauses, or meets a fault.
enum Step {
    Go,
    Stop,
    Hold(usize),
    Fail(Fault),
}

impl World {
    pub(super) fn new(beginning: VirtualBeginning, seed: u64) -> Self {
        let state = State {
            now: BEGINNING,
            owners: Random::new(seed),
            deliveries: Vec::new(),
            dead: Vec::new(),
            effects: Vec::new(),
            known: HashMap::new(),
            asked: HashMap::new(),
            schedule: seed,
            trace: Vec::new(),
            given: None,
            unreadable: HashMap::new(),
            late: Vec::new(),
            is_over: false,
            driver: None,
        };
        Self { records: MemoryStore::new(), beginning, state: Mutex::new(state), shared: Mutex::default() }
    }

    /// Returns the value of this type that all processes share.
    pub(super) fn shared<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let value = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        Arc::downcast(Arc::clone(value)).unwrap_or_default()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A handler may panic, but never under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Timestamp {
        let mut state = self.state();
        if IS_INSIDE.get() {
            state.now = BEGINNING.saturating_add(self.beginning.passed());
        }
        state.now
    }

    pub(super) fn draw_owner(&self) -> Owner {
        let mut state = self.state();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&state.owners.bits().to_be_bytes());
        bytes[8..].copy_from_slice(&state.owners.bits().to_be_bytes());
        Owner::from_bytes(bytes)
    }

    /// Adds a process, and returns its number.
    pub(super) fn add_process(&self) -> usize {
        let mut state = self.state();
        state.dead.push(false);
        state.dead.len() - 1
    }

    /// Adds a delivery to this process, and returns the delivery's number.
    pub(super) fn add_delivery(&self, process: usize, orders: Vec<Orders>, what: String) -> usize {
        self.arrive();
        let mut state = self.state();
        let delivery = state.deliveries.len();
        state.deliveries.push(Delivered { process, orders, ..Delivered::default() });
        state.trace.push(Told::Delivered { delivery, what });
        delivery
    }

    /// Kills a process: nothing that it does counts any more.
    pub(super) fn kill(&self, process: usize) {
        self.state().dead[process] = true;
    }

    pub(super) fn is_dead(&self, process: usize) -> bool {
        let state = self.state();
        state.is_over || state.dead[process]
    }

    /// Returns the fault that pauses this delivery, if it's paused.
    pub(super) fn held(&self, delivery: usize) -> Option<Fault> {
        match &self.state().deliveries[delivery].hold {
            Hold::Held(fault, _) => Some(*fault),
            Hold::Not | Hold::Released => None,
        }
    }

    /// Counts a poll after which the delivery waits, and pauses the delivery if the schedule says so.
    pub(super) fn polled(&self, delivery: usize) {
        let mut state = self.state();
        let polled = &mut state.deliveries[delivery];
        polled.polls += 1;
        if polled.pauses_after == Some(polled.polls) && matches!(polled.hold, Hold::Not) {
            polled.hold = Hold::Held(Fault::Overlap, None);
            state.trace.push(Told::Paused { delivery });
        }
    }

    pub(super) fn release(&self, delivery: usize) {
        let hold = std::mem::replace(&mut self.state().deliveries[delivery].hold, Hold::Released);
        if let Hold::Held(_, Some(waker)) = hold {
            waker.wake();
        }
    }

    /// Remembers the waker of the stage, which polls the deliveries.
    pub(super) fn set_driver(&self, waker: &Waker) {
        let mut state = self.state();
        if !state.driver.as_ref().is_some_and(|driver| driver.will_wake(waker)) {
            state.driver = Some(waker.clone());
        }
    }

    /// Wakes the stage.
    pub(super) fn wake_driver(&self) {
        let driver = self.state().driver.clone();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Counts a request to the store, and returns the delivery that made it. `Err` if the store is down for this
    /// delivery, or if the process is dead.
    pub(super) fn request(&self, process: usize, key: Option<&StoredKey>) -> Result<usize, ()> {
        let mut state = self.state();
        let at = state.at_work(process).ok_or(())?;
        let delivery = &mut state.deliveries[at];
        delivery.requests += 1;
        if let Some(key) = key.filter(|key| !delivery.keys.contains(key)) {
            delivery.keys.push(key.clone());
        }
        if delivery.is_cut_off { Err(()) } else { Ok(at) }
    }

    /// Notes that this process reads a record.
    pub(super) fn reads(&self, process: usize) {
        let mut state = self.state();
        if let Some(delivery) = state.at_work(process) {
            state.trace.push(Told::Read { delivery });
        }
    }

    /// Notes that the store applied a write of this process.
    pub(super) fn applied(&self, process: usize, key: &StoredKey, put: &Put) {
        let mut state = self.state();
        let Some(at) = state.at_work(process) else { return };
        state.deliveries[at].noted(key, put, false);
        let call = Call::of(put);
        if call != Call::Extend {
            state.trace.push(Told::Wrote { delivery: at, call });
        }
    }

    /// Notes that the store refused a write of this process.
    pub(super) fn refused(&self, process: usize, key: &StoredKey, call: Call) {
        let mut state = self.state();
        let Some(at) = state.at_work(process) else { return };
        if call != Call::Extend {
            state.trace.push(Told::Refused { delivery: at, call });
        }
        if !call.is_claim() {
            return;
        }
        let delivery = &mut state.deliveries[at];
        delivery.is_refused = true;
        delivery.refused.insert(key.clone());
        if delivery.recorded.contains(key) {
            delivery.asked_again.push(key.clone());
        }
    }

    /// Passes a point, and returns the fault that the caller must simulate. Never returns in a dead process.
    pub(super) async fn pass(&self, process: usize, point: Point, effect: Option<&str>) -> Option<Fault> {
        match self.reach(process, point, effect, |_| true) {
            Step::Go => None,
            Step::Stop => pending().await,
            Step::Fail(fault) => Some(fault),
            Step::Hold(delivery) => {
                self.wake_driver();
                poll_fn(|context| match &mut self.state().deliveries[delivery].hold {
                    Hold::Held(_, waker) => {
                        *waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                    Hold::Not | Hold::Released => Poll::Ready(()),
                })
                .await;
                if self.is_dead(process) { pending().await } else { None }
            }
        }
    }

    /// Passes a point in code that can neither wait nor fail, so most faults can't happen there. Returns false in a
    /// dead process.
    pub(super) fn pass_now(&self, process: usize, point: Point, effect: Option<&str>) -> bool {
        let can_happen = |fault: Fault| matches!(fault, Fault::Die | Fault::NoTime);
        !matches!(self.reach(process, point, effect, can_happen), Step::Stop)
    }

    /// Reaches a point, and returns the next step. A planned fault that can't happen here stays planned.
    fn reach(
        &self,
        process: usize,
        point: Point,
        effect: Option<&str>,
        can_happen: fn(Fault) -> bool,
    ) -> Step {
        let mut state = self.state();
        let Some(at) = state.at_work(process) else { return Step::Stop };
        let delivery = &mut state.deliveries[at];
        if delivery.is_answered {
            return Step::Go;
        }
        delivery.reached.push(point);
        if point == Point::BeforeEffect {
            delivery.called();
        }
        let reached = &delivery.reached;
        let due =
            delivery.orders.iter().position(|orders| orders.fault(reached, point).is_some_and(can_happen));
        let Some(fault) = due.and_then(|due| delivery.orders.remove(due).fault(&delivery.reached, point))
        else {
            return Step::Go;
        };
        let step = match fault {
            Fault::Die => {
                state.dead[process] = true;
                Step::Stop
            }
            Fault::Overlap | Fault::Freeze => {
                delivery.hold = Hold::Held(fault, None);
                Step::Hold(at)
            }
            _ => {
                delivery.is_cut_off |= fault == Fault::Outage;
                delivery.has_no_time |= fault == Fault::NoTime;
                Step::Fail(fault)
            }
        };
        let effect = effect.map(str::to_owned);
        state.trace.push(Told::Fault { delivery: at, point, fault, effect });
        step
    }
}

impl State {
    /// Returns the delivery that this process works on now; `None` if the process is dead.
    pub(super) fn at_work(&self, process: usize) -> Option<usize> {
        if self.is_over || self.dead.get(process).copied().unwrap_or(true) {
            return None;
        }
        if let Some(at) = POLLED.get() {
            return Some(at);
        }
        // A task that the handler spawned belongs to the process's first unanswered delivery, or else to its last one.
        let of_process = |delivery: &&Delivered| delivery.process == process;
        let last = self.deliveries.iter().rposition(|delivery| delivery.process == process)?;
        let open = |delivery: &Delivered| of_process(&delivery) && !delivery.is_answered;
        Some(self.deliveries.iter().position(open).unwrap_or(last))
    }
}

/// FNV-1a over these texts.
pub(super) fn hash(texts: &[&str]) -> u32 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Marks a delivery as the one that this thread polls, until this guard is dropped.
pub(super) struct Polled;

impl Polled {
    pub(super) fn now(delivery: usize) -> Self {
        POLLED.set(Some(delivery));
        Self
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        POLLED.set(None);
    }
}

/// Calls `run`. Until it returns, this thread is marked as one that runs a test's [`World`] in virtual time.
pub(super) fn inside<T>(run: impl FnOnce() -> T) -> T {
    struct Outside;
    impl Drop for Outside {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
    IS_INSIDE.set(true);
    let _outside = Outside;
    run()
}

/// Calls `work` on this thread, so that it has this thread's recorder of metrics and other thread-locals. Inside a
/// runtime, where blocking on another runtime panics, calls it on a new thread.
pub(super) fn outside_runtime<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if tokio::runtime::Handle::try_current().is_err() {
        return work();
    }
    match thread::scope(|scope| scope.spawn(work).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// The clock of a test. Its time is virtual, and passes only while all code waits for timers.
#[derive(Clone, Debug)]
pub(super) struct BenchClock(pub(super) Arc<World>);

impl Clock for BenchClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(virtual_sleep(duration))
    }
}
