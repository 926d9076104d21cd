//! [`Ledger`]: the effects that a handler has had.

use std::{fmt, future::pending, sync::Arc};

use super::{
    effect::{Effect, Happened, Lookup, NoAnswer, Origin},
    fault::Fault,
    point::Point,
    store::delay,
    told::Told,
    world::{State, World, hash},
};

/// Records the effects of the function under test. A fake gateway, mailer or table in the test writes into it.
///
/// Each process of a test has its own handle on the same ledger, from [`Bench::ledger`](super::Bench::ledger).
/// Calls in a dead process aren't recorded, because a process that has really died causes no effects.
///
/// ```
/// use lambda_idempotency_testing::{Ledger, NoAnswer};
///
/// /// The gateway of the tests. It recognises a repeated charge by its key, like the real gateway.
/// struct FakeGateway(Ledger);
///
/// impl FakeGateway {
///     async fn charge(&self, key: &str, cents: u64) -> Result<String, NoAnswer> {
///         self.0.call("charge", Some(key), cents).await
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Ledger {
    world: Arc<World>,
    process: usize,
}

impl Ledger {
    pub(super) fn new(world: Arc<World>, process: usize) -> Self {
        Self { world, process }
    }

    /// Records an effect that can't fail and that nothing deduplicates, from code that isn't async. Each call counts.
    ///
    /// The process can die before and after the effect. Any other fault that the test planned for an effect happens at
    /// the next [`call`](Self::call). Under [`survive()`](crate::survive()), the only fault here is the
    /// process's death.
    pub fn record(&self, effect: &str, detail: impl fmt::Display) {
        let detail = detail.to_string();
        if !self.world.pass_now(self.process, Point::BeforeEffect, Some(effect)) {
            return;
        }
        self.happen(effect, None, detail, Origin::Recorded);
        self.world.pass_now(self.process, Point::AfterEffect, Some(effect));
    }

    /// Calls a remote system, which returns a receipt. If the system has seen the key for this effect before, it does
    /// nothing and returns the first receipt, as a payment gateway does. Without a key, each call counts.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`], if the test or the schedule has a fault for this call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the effect may have happened.
    pub async fn call(
        &self,
        effect: &str,
        key: Option<&str>,
        detail: impl fmt::Display,
    ) -> Result<String, NoAnswer> {
        let detail = detail.to_string();
        self.answered(Point::BeforeEffect, effect).await?;
        let receipt = self.happen(effect, key, detail, Origin::Called);
        self.answered(Point::AfterEffect, effect).await?;
        // A process that died before the effect gets no receipt.
        match receipt {
            Some(receipt) => Ok(receipt),
            None => pending().await,
        }
    }

    /// Sends a request to a remote system that doesn't deduplicate, and returns its receipt. Each request counts. The
    /// remote system keeps the `reference`, so that [`find`](Self::find) can ask for it. Use this for a system that a
    /// [reconciler] asks.
    ///
    /// [reconciler]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.reconcile
    ///
    /// ```
    /// use lambda_idempotency::{ClaimHandle, Failure, Found, Idempotency, Key, RunError, current};
    /// use lambda_idempotency_testing::{Ledger, Lookup};
    /// use std::time::Duration;
    ///
    /// async fn pay(idempotency: &Idempotency, gateway: &Ledger, order: &str) -> Result<String, RunError<Failure>> {
    ///     let question = async |claim: ClaimHandle| {
    ///         Ok(match gateway.find("charge", &claim.derive_key("charge")).await? {
    ///             Lookup::Found(charge) if charge.detail == order => Found::Happened(charge.receipt),
    ///             Lookup::Found(_) => return Err("the gateway has another charge under this key".into()),
    ///             Lookup::OnItsWay => Found::NotKnownYet { ask_again_after: Duration::from_secs(60) },
    ///             Lookup::Nothing => Found::DidNotHappen,
    ///         })
    ///     };
    ///     let charge = async || {
    ///         let reference = current().ok_or("not protected")?.derive_key("charge");
    ///         gateway.send("charge", &reference, order).await.map_err(Failure::unknown)
    ///     };
    ///     idempotency.operation("charge")?.reconcile(question)?.run(Key::new(order)?, order, charge).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoAnswer`], if the test or the schedule has a fault for this call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the effect may have happened.
    pub async fn send(
        &self,
        effect: &str,
        reference: &str,
        detail: impl fmt::Display,
    ) -> Result<String, NoAnswer> {
        let detail = detail.to_string();
        self.answered(Point::BeforeEffect, effect).await?;
        let receipt = self.happen(effect, Some(reference), detail, Origin::Sent);
        self.answered(Point::AfterEffect, effect).await?;
        match receipt {
            Some(receipt) => Ok(receipt),
            None => pending().await,
        }
    }

    /// Asks the remote system for an effect that was [sent](Self::send) with this reference. Returns the first one if
    /// there are several.
    ///
    /// In two of three schedules of [`survive()`](crate::survive()), the first question for an effect that happened is
    /// answered with [`Lookup::OnItsWay`], or isn't answered.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`], if the schedule says so.
    ///
    /// # Cancel safety
    ///
    /// The future has no effect.
    pub async fn find(&self, effect: &str, reference: &str) -> Result<Lookup, NoAnswer> {
        // A dead process gets no answer.
        let Some(found) = self.world.state().asked(self.process, effect, reference) else {
            return pending().await;
        };
        found
    }

    async fn answered(&self, point: Point, effect: &str) -> Result<(), NoAnswer> {
        let Some(fault) = self.world.pass(self.process, point, Some(effect)).await else { return Ok(()) };
        delay(fault).await;
        if fault == Fault::Slow { Ok(()) } else { Err(NoAnswer) }
    }

    fn happen(&self, effect: &str, key: Option<&str>, detail: String, origin: Origin) -> Option<String> {
        let mut state = self.world.state();
        let at = state.at_work(self.process)?;
        Some(state.happen(at, effect, detail, key, origin))
    }

    /// Returns the effects of all processes so far, in order.
    pub fn effects(&self) -> Vec<Effect> {
        self.world.state().effects.iter().map(Effect::from).collect()
    }

    /// Checks how often the effect has happened so far.
    ///
    /// # Panics
    ///
    /// If the effect happened more or less often. The message lists every effect.
    #[track_caller]
    pub fn assert_count(&self, effect: &str, times: usize) {
        let effects = self.effects();
        let found = effects.iter().filter(|one| one.name == effect).count();
        let list: String = effects.iter().map(|one| format!("\n  {one}")).collect();
        let all = if list.is_empty() { "\n  nothing".to_owned() } else { list };
        assert!(
            found == times,
            "`{effect}` happened {}, expected {}. The ledger:{all}",
            count(found),
            count(times)
        );
    }
}

/// Returns `never`, `once`, `twice` or `3 times`.
pub(super) fn count(times: usize) -> String {
    match times {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        more => format!("{more} times"),
    }
}

impl State {
    /// Notes that an effect happened, and returns its receipt.
    pub(super) fn happen(
        &mut self,
        at: usize,
        name: &str,
        detail: String,
        key: Option<&str>,
        origin: Origin,
    ) -> String {
        let deduplicates = origin != Origin::Sent;
        if let Some(&effect) =
            key.filter(|_| deduplicates).and_then(|key| self.known.get(&(name.to_owned(), key.to_owned())))
        {
            self.trace.push(Told::Deduplicated { delivery: at, effect, detail });
            return self.effects[effect].receipt.clone();
        }
        let effect = self.effects.len();
        if let Some(key) = key.filter(|_| deduplicates) {
            self.known.insert((name.to_owned(), key.to_owned()), effect);
        }
        // The receipt is the same in every schedule, so that answers can be compared.
        let nth = match key {
            Some(key) => key.to_owned(),
            None => self
                .effects
                .iter()
                .filter(|other| other.name == name && other.detail == detail)
                .count()
                .to_string(),
        };
        let receipt = format!("{}-{:08x}", name.replace(' ', "-"), hash(&[name, &detail, &nth]));
        let (delivery, is_staged) = (&self.deliveries[at], matches!(origin, Origin::Staged(..)));
        let happened = Happened {
            name: name.to_owned(),
            detail,
            key: key.map(str::to_owned),
            receipt: receipt.clone(),
            delivery: at,
            is_claimed: is_staged || !delivery.holds.is_empty(),
            is_late: delivery.is_answered && !is_staged,
            origin,
        };
        self.effects.push(happened);
        self.trace.push(Told::Happened { delivery: at, effect });
        receipt
    }

    /// Answers a question for an effect that was sent with this reference. `None` if the process is dead.
    pub(super) fn asked(
        &mut self,
        process: usize,
        name: &str,
        reference: &str,
    ) -> Option<Result<Lookup, NoAnswer>> {
        let delivery = self.at_work(process)?;
        let is_sent = |effect: &&Happened| {
            effect.origin == Origin::Sent && effect.name == name && effect.key.as_deref() == Some(reference)
        };
        let found = self.effects.iter().find(is_sent).map(Effect::from);
        let answer = match found {
            None => Ok(Lookup::Nothing),
            Some(found) => {
                let times = self.asked.entry((name.to_owned(), reference.to_owned())).or_default();
                *times += 1;
                match self.schedule % 3 {
                    1 if *times == 1 => Ok(Lookup::OnItsWay),
                    2 if *times == 1 => Err(NoAnswer),
                    _ => Ok(Lookup::Found(found)),
                }
            }
        };
        let (effect, reference) = (name.to_owned(), reference.to_owned());
        self.trace.push(Told::Asked { delivery, effect, reference, answer: answer.clone() });
        Some(answer)
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("process", &self.process).finish_non_exhaustive()
    }
}
