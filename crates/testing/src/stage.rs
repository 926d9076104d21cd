//! Polls the deliveries of a test in virtual time, except those that are paused or whose process is dead.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use lambda_idempotency_core::{
    ErrorKind,
    internal::{error::made, format::shape::changed},
    time::Timestamp,
};

use super::{
    event::Event,
    fault::Fault,
    function::{Answer, Entry, Function, Refusal, Running},
    point::Point,
    time::virtual_sleep,
    told::Told,
    world::{Orders, Polled, World},
};

/// How long after the deadline Lambda kills the process.
const SLACK: Duration = Duration::from_millis(50);
/// The minimum time that a process may run after a freeze or a pause.
const THAWED: Duration = Duration::from_secs(5);
/// How many times the deliveries are polled before the handlers' spawned tasks run.
const POLLS: usize = 64;

/// The deliveries of a test.
pub(super) struct Stage {
    pub(super) world: Arc<World>,
    pub(super) timeout: Duration,
    tasks: Vec<Task>,
}

/// One delivery. A dead process's future stays here until the test is over: a kill runs no destructors.
struct Task {
    process: usize,
    running: Option<Running>,
    signal: Arc<Signal>,
    killed_at: Timestamp,
    answer: Option<Answer>,
    /// The errors that the function got from this library.
    refusals: Vec<(ErrorKind, String)>,
    /// Why the function returned a batch's records.
    reasons: Vec<String>,
}

/// How a delivery ended, or that it's paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    Answered(Answer),
    Died,
    Held(Fault),
}

struct Signal {
    is_ready: AtomicBool,
    world: Arc<World>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.is_ready.store(true, Ordering::SeqCst);
        self.world.wake_driver();
    }
}

impl Stage {
    pub(super) fn new(world: Arc<World>, timeout: Duration) -> Self {
        Self { world, timeout, tasks: Vec::new() }
    }

    /// Begins a delivery, and doesn't poll it yet.
    pub(super) fn begin(
        &mut self,
        function: &mut Function,
        process: usize,
        (event, json): (&Event, Arc<str>),
        orders: Vec<Orders>,
        what: String,
    ) -> usize {
        let (world, now) = (&self.world, self.world.now());
        let delivery = world.add_delivery(process, orders, what);
        // A process that dies on entry never sees the event.
        let is_alive = {
            let _polled = Polled::now(delivery);
            world.pass_now(process, Point::Entered, None)
        };
        let left = if world.state().deliveries[delivery].has_no_time { Duration::ZERO } else { self.timeout };
        let deadline = now.saturating_add(left);
        let entry = Entry { request_id: event.request_id(&json, delivery + 1), now, deadline };
        let signal = Arc::new(Signal { is_ready: AtomicBool::new(true), world: Arc::clone(world) });
        let running = is_alive.then(|| function.call(json, entry));
        let killed_at = deadline.saturating_add(SLACK);
        self.tasks.push(Task {
            process,
            running,
            signal,
            killed_at,
            answer: None,
            refusals: Vec::new(),
            reasons: Vec::new(),
        });
        delivery
    }

    /// Polls the deliveries until this one has ended or is paused.
    pub(super) async fn run(&mut self, delivery: usize) -> How {
        let left = self.world.now().until(self.tasks[delivery].killed_at);
        let mut kill = pin!(virtual_sleep(left));
        let how = poll_fn(|context| {
            self.world.set_driver(context.waker());
            for _ in 0..POLLS {
                let has_polled = self.poll_all();
                if let Some(how) = self.ended(delivery) {
                    return Poll::Ready(how);
                }
                if !has_polled {
                    if kill.as_mut().poll(context).is_ready() {
                        self.world.kill(self.tasks[delivery].process);
                        return Poll::Ready(How::Died);
                    }
                    return Poll::Pending;
                }
            }
            // Lets the handlers' spawned tasks run.
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        let (told, is_done) = match &how {
            How::Answered(answer) => (answer.to_string(), Some(answer.is_done())),
            How::Died => ("no answer before its timeout".to_owned(), None),
            How::Held(_) => return how,
        };
        let mut state = self.world.state();
        // If a fault killed the process, the fault is already in the story.
        if !matches!(state.trace.last(), Some(Told::Fault { fault: Fault::Die, .. })) {
            state.trace.push(Told::Ended { delivery, how: told, is_done });
        }
        drop(state);
        how
    }

    fn ended(&self, delivery: usize) -> Option<How> {
        let task = &self.tasks[delivery];
        if let Some(answer) = &task.answer {
            return Some(How::Answered(answer.clone()));
        }
        if self.world.is_dead(task.process) {
            return Some(How::Died);
        }
        self.world.held(delivery).map(How::Held)
    }

    fn poll_all(&mut self) -> bool {
        let mut has_polled = false;
        for (delivery, task) in self.tasks.iter_mut().enumerate() {
            let can_run = !self.world.is_dead(task.process) && self.world.held(delivery).is_none();
            if !can_run || task.answer.is_some() || !task.signal.is_ready.swap(false, Ordering::SeqCst) {
                continue;
            }
            let Some(running) = &mut task.running else { continue };
            has_polled = true;
            let waker = Waker::from(Arc::clone(&task.signal));
            let polled = {
                let _polled = Polled::now(delivery);
                made::taken();
                let mut context = Context::from_waker(&waker);
                catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut context)))
            };
            task.refusals.extend(made::taken());
            task.reasons.extend(made::reasons());
            self.world.state().deliveries[delivery].changed.extend(changed::taken());
            // A dead process's last steps don't count.
            if self.world.is_dead(task.process) {
                continue;
            }
            let answer = match polled {
                Ok(Poll::Pending) => {
                    self.world.polled(delivery);
                    continue;
                }
                Ok(Poll::Ready(answer)) => answer.refused_by(&task.refusals, &task.reasons),
                Err(panic) => Answer::refused(Refusal::of_panic(&*panic)),
            };
            let is_sent = {
                let _polled = Polled::now(delivery);
                self.world.pass_now(task.process, Point::Answered, None)
            };
            if is_sent {
                self.world.state().deliveries[delivery].is_answered = true;
                task.answer = Some(answer);
            }
        }
        has_polled
    }

    /// Resumes a paused delivery.
    pub(super) fn release(&mut self, delivery: usize) {
        let task = &mut self.tasks[delivery];
        task.killed_at = task.killed_at.max(self.world.now().saturating_add(THAWED));
        self.world.release(delivery);
    }

    /// Waits, and lets the handlers' spawned tasks run.
    pub(super) async fn wait(&mut self, duration: Duration) {
        self.world.arrive();
        virtual_sleep(duration).await;
        let seconds = duration.as_secs();
        self.world.state().trace.push(Told::Passed { seconds });
        self.world.now();
    }

    /// Returns the time until the last lease in the store expires, plus `more`.
    pub(super) fn until_stale(&self, more: Duration) -> Duration {
        let leases = self.world.records.all();
        let last = leases.iter().filter_map(|(_, record)| record.lease_until()).max().unwrap_or_default();
        self.world.now().until(last).saturating_add(more)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.world.state().is_over = true;
        for task in &mut self.tasks {
            let running = task.running.take();
            // A handler's destructor may panic. The panic is ignored, since the test is over.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(running)));
        }
    }
}
