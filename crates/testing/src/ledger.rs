//! [`Ledger`]: the effects that a handler has had.

use std::{fmt, future::pending, sync::Arc};

use super::{
    effect::{Happened, Origin},
    fault::Fault,
    point::Point,
    store::delay,
    world::World,
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

/// An effect that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effect {
    /// The effect's name: `charge`.
    pub name: String,
    /// The details that the fake passed.
    pub detail: String,
    /// The idempotency key that the remote system got.
    pub key: Option<String>,
    /// The receipt that the remote system gave.
    pub receipt: String,
    /// The number of the delivery in which the effect happened, from 1.
    pub delivery: usize,
}

/// What a remote system says of an effect that someone asks for, from [`Ledger::find`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The effect happened.
    Found(Effect),
    /// The remote system has the request, but hasn't done it yet. Ask again later.
    OnItsWay,
    /// The remote system knows nothing of it.
    Nothing,
}

/// A remote system gave no answer, so the effect may have happened. A retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer from the remote system; the effect may have happened")
    }
}

impl std::error::Error for NoAnswer {}

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
    ///     let question = async |claim: ClaimHandle, order: &str| {
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

impl From<&Happened> for Effect {
    fn from(happened: &Happened) -> Self {
        Self {
            name: happened.name.clone(),
            detail: happened.detail.clone(),
            key: happened.key.clone(),
            receipt: happened.receipt.clone(),
            delivery: happened.delivery + 1,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delivery {}: {} ({})", self.delivery, self.name, self.detail)?;
        match &self.key {
            Some(key) => write!(f, " under the key {key}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("process", &self.process).finish_non_exhaustive()
    }
}
