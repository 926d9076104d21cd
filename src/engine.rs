//! The engine: [`Idempotency`]. It performs what the machine decides: calls the store, reads the clock,
//! and feeds the answers back. It holds no rule of its own.

mod bounded;
mod builder;
mod cache;
mod drive;
mod guard;
mod lease;
mod open;
mod operation;
mod operator;
mod protect;
mod wait;

pub use builder::Builder;
pub(crate) use drive::{in_progress, refusal_error};
pub(crate) use lease::Timing;
pub(crate) use open::Mode;
pub use operation::Operation;
pub use operator::{Resolution, Resolved};
#[cfg(feature = "events")]
pub(crate) use protect::Stopped;
pub(crate) use protect::{Protected, Target, as_it_is, not_made};

use std::{borrow::Cow, fmt, sync::Arc};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    claim::{Claim, Replay},
    engine::cache::LocalCache,
    error::{Error, ErrorKind, RecordedFailure, RunError, place},
    fingerprint::Fingerprint,
    finite,
    invocation::{self, Invocation},
    key::{Scope, StoredKey},
    observe,
    policy::Settings,
    protocol::{Plan, Rules, State},
    record::Owner,
    store::Store,
    time::Clock,
};

/// Draws a claim's owner; replaced only where a simulation must be repeatable.
pub(crate) type OwnerSource = Arc<dyn Fn() -> Result<Owner, Error> + Send + Sync>;

/// Makes operations idempotent: one logical operation, one outcome.
///
/// Cheap to clone, and shared by all invocations of a process; it keeps nothing that grows with the
/// keys it has seen. (The [local cache](Builder::local_cache), which is off by default, is bounded.)
#[derive(Clone)]
pub struct Idempotency {
    engine: Arc<Engine>,
    /// What the user calls the operation, where one name is not enough.
    operation: Option<Arc<str>>,
    /// The invocation, where the user told it.
    invocation: Option<Invocation>,
    mode: Mode,
}

/// What all clones share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) owners: OwnerSource,
    pub(crate) settings: Settings,
    pub(crate) function: String,
    pub(crate) local_cache: Option<LocalCache>,
    /// Whether a function runs it, so that there are invocations.
    pub(crate) is_in_lambda: bool,
    /// Whether it was logged that an operation ran outside of any invocation.
    pub(crate) no_invocation: std::sync::Once,
    /// Whether it was logged that a deadline is unknown.
    #[cfg(feature = "events")]
    pub(crate) unknown_deadline: std::sync::Once,
}

/// What [`Operation::begin`] found.
#[derive(Debug)]
#[must_use]
pub enum Begun {
    /// The key is claimed: run the operation, then settle the claim.
    Claimed(Claim),
    /// The operation has its outcome: answer with it.
    Replay(Replay),
}

/// What a claim is to be settled with, before it is encoded.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The outcome, and its response.
    Complete(Bytes),
    /// The outcome; its response cannot be kept.
    CompleteOmitted,
    /// A final failure, with what is to be replayed of it.
    Fail(Option<Bytes>),
    /// Nothing happened, or it may happen again.
    Release,
    /// It ended without an answer, and may happen again.
    Interrupted,
}

impl Idempotency {
    /// Begins to build an engine over `store`.
    pub fn builder(store: impl Store) -> Builder {
        Builder::new(Arc::new(store))
    }

    /// One operation of this function, by the name that you give it: what it [`run`](Operation::run)s is kept apart from
    /// every other operation under the same key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or has other characters than ASCII
    /// letters, digits, `-`, `_` and `.`.
    pub fn operation(&self, name: impl AsRef<str>) -> Result<Operation, Error> {
        Operation::new(self, name.as_ref())
    }

    /// The same engine, whose layers work under this name.
    pub(crate) fn named(&self, name: &str) -> Result<Self, Error> {
        // The colon stands between how an operation came in and its name.
        let checked = Scope::new(&self.engine.function, name)?;
        if checked.operation().contains(':') {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the scope's operation name has a colon; leave it out",
            ));
        }
        Ok(Self { operation: Some(name.into()), ..self.clone() })
    }

    /// The same engine for one invocation, whose deadline bounds the leases of what runs in it. The
    /// layers do this by themselves.
    #[must_use]
    pub fn for_invocation(&self, invocation: Invocation) -> Self {
        Self { invocation: Some(invocation), ..self.clone() }
    }

    /// The same engine without claims: for handlers whose only effects are the writes that they
    /// [stage](crate::staging()).
    ///
    /// Nothing is written before the handler runs. When it returns, its outcome and its writes are put in one transaction, if
    /// no outcome is there: a first run costs one request in place of two, nothing is locked, and nothing can go stale. Of
    /// deliveries at once, every one runs the handler, one commits, and the others answer with its outcome, having
    /// done nothing. A duplicate that comes later runs the handler as well, to no effect; where duplicates are
    /// frequent, or the handler is slow or costly, [`claim_free_looking_first`](Self::claim_free_looking_first) spares
    /// that for one read.
    ///
    /// It fits where running the handler again, any number of times and at once, does no harm but for what it stages. A
    /// handler that charges a card, sends a mail or calls another service needs a claim. There is no claim to be
    /// [`current`](crate::current) in it, and its errors and panics leave nothing behind.
    ///
    /// Deliveries with a claim and without one may share keys, as when a function is changed from one to the other: a
    /// claim that stands is in progress, and one that is stale is concluded over.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, store::memory::MemoryStore};
    /// # fn main() -> Result<(), lambda_idempotency::Error> {
    /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?.claim_free()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] at most once: without a claim, a handler runs at every delivery.
    pub fn claim_free(&self) -> Result<Self, Error> {
        self.without_claims(Mode::ClaimFree { looks_first: false })
    }

    /// [`claim_free`](Self::claim_free), with one consistent read before the handler: it answers a duplicate that comes later,
    /// which then does not run.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn claim_free_looking_first(&self) -> Result<Self, Error> {
        self.without_claims(Mode::ClaimFree { looks_first: true })
    }

    fn without_claims(&self, mode: Mode) -> Result<Self, Error> {
        self.engine.settings.refuse_at_most_once("a handler that runs without a claim")?;
        Ok(Self { mode, ..self.clone() })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The settings that the engine was built with.
    pub fn settings(&self) -> &Settings {
        &self.engine.settings
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The scope of what comes in by `via`: `http`, `event`, `run`… An HTTP request and a step inside
    /// its handler can then use one key without being one operation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a name in it is not allowed.
    pub fn scope(&self, via: &str) -> Result<Scope, Error> {
        Scope::new(&self.engine.function, labelled(via, self.operation.as_deref()))
    }

    /// The invocation that the caller is in: as told, or as the surrounding layer has it.
    pub(crate) fn invocation(&self) -> Invocation {
        self.invocation
            .clone()
            .or_else(|| invocation::current().map(|surroundings| surroundings.invocation))
            .unwrap_or_else(|| {
                let engine = &self.engine;
                engine
                    .no_invocation
                    .call_once(|| observe::no_invocation(&engine.settings, engine.is_in_lambda));
                Invocation::unknown()
            })
    }
}

impl Verdict {
    /// The response that is to be recorded, if there is one.
    pub(crate) fn response(&self) -> Option<&Bytes> {
        match self {
            Self::Complete(response) | Self::Fail(Some(response)) => Some(response),
            Self::CompleteOmitted | Self::Fail(None) | Self::Release | Self::Interrupted => None,
        }
    }

    /// A success, whose result is replayed as `value`. One that wouldn't read back as what it is isn't kept.
    pub(crate) fn result<T: Serialize + DeserializeOwned>(key: &StoredKey, value: &T) -> Self {
        let json = finite::to_json(value).map_err(|why| why.to_string()).and_then(|json| {
            let read = serde_json::from_str::<T>(&json);
            read.map_err(|error| format!("its JSON does not read back: {}", place(&error))).map(|_| json)
        });
        match json {
            Ok(json) => Self::Complete(json.into()),
            Err(why) => {
                observe::not_readable(key, std::any::type_name::<T>(), &why);
                Self::CompleteOmitted
            }
        }
    }

    /// A final failure, to be replayed as `failure`.
    pub(crate) fn failure(failure: &RecordedFailure) -> Self {
        Self::Fail(serde_json::to_vec(failure).ok().map(Bytes::from))
    }
}

/// A recorded result as a typed one.
pub(crate) fn replayed<T: DeserializeOwned, E>(replay: &Replay) -> Result<T, RunError<E>> {
    let corrupt = |error: serde_json::Error| {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "the recorded result does not read as {} ({}); nothing ran",
                std::any::type_name::<T>(),
                place(&error)
            ),
        )
    };
    if replay.is_failure {
        let failure = serde_json::from_slice(&replay.response).map_err(corrupt)?;
        return Err(RunError::Recorded(failure));
    }
    Ok(serde_json::from_slice(&replay.response).map_err(corrupt)?)
}

/// The operation's name in the scope: how it came in, and what the user calls it.
fn labelled<'a>(via: &'a str, operation: Option<&str>) -> Cow<'a, str> {
    match operation {
        Some(operation) => format!("{via}:{operation}").into(),
        None => via.into(),
    }
}

impl Engine {
    pub(crate) fn plan(
        &self,
        owner: Owner,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        timing: Timing,
    ) -> Box<State> {
        // Boxed, since it's passed through many futures, each of which would make room for it.
        Box::new(State::new(Plan {
            rules: self.rules(),
            owner,
            fingerprint,
            lease_until: timing.lease_until,
            usable_until: timing.usable_until,
            limits: timing.limits,
            request_id: invocation.request_id().cloned(),
        }))
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            skew_margin: self.settings.skew_margin,
            retention: self.settings.retention,
            execution: self.settings.execution,
        }
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("function", &self.engine.function)
            .field("operation", &self.operation)
            .field("store", &self.engine.store)
            .field("settings", &self.engine.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
