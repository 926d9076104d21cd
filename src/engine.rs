//! The engine: [`Idempotency`]. It performs the machine's actions: it calls the store, reads the clock, and
//! feeds the answers back. It contains no rules.

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

/// Draws a claim's owner. Only simulations replace it, to be repeatable.
pub(crate) type OwnerSource = Arc<dyn Fn() -> Result<Owner, Error> + Send + Sync>;

/// Makes operations idempotent: one logical operation, one outcome.
///
/// Cheap to clone, and shared by all invocations of a process. Its memory doesn't grow with the keys it has
/// seen. (The [local cache](Builder::local_cache), which is off by default, is bounded.)
#[derive(Clone)]
pub struct Idempotency {
    engine: Arc<Engine>,
    /// The user's name for the operation, if one name isn't enough.
    operation: Option<Arc<str>>,
    /// The invocation, if the user set it.
    invocation: Option<Invocation>,
    mode: Mode,
}

/// The state that all clones share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) owners: OwnerSource,
    pub(crate) settings: Settings,
    pub(crate) function: String,
    pub(crate) local_cache: Option<LocalCache>,
    /// Whether it runs in a Lambda function, so that there are invocations.
    pub(crate) is_in_lambda: bool,
    /// Makes sure that an operation outside any invocation is logged once.
    pub(crate) no_invocation: std::sync::Once,
    /// Makes sure that an unknown deadline is logged once.
    #[cfg(feature = "events")]
    pub(crate) unknown_deadline: std::sync::Once,
}

/// The result of [`Operation::begin`].
#[derive(Debug)]
#[must_use]
pub enum Begun {
    /// The key is claimed: run the operation, then settle the claim.
    Claimed(Claim),
    /// The operation has its outcome: answer with it.
    Replay(Replay),
}

/// How to settle a claim, before the outcome is encoded.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The outcome, and its response.
    Complete(Bytes),
    /// The outcome, whose response can't be kept.
    CompleteOmitted,
    /// A permanent failure, with the bytes to replay.
    Fail(Option<Bytes>),
    /// Nothing happened, or it may happen again.
    Release,
    /// It ended without an answer, and may happen again.
    Interrupted,
}

impl Idempotency {
    /// Starts building an engine over `store`.
    pub fn builder(store: impl Store) -> Builder {
        Builder::new(Arc::new(store))
    }

    /// Returns one operation of this function, under your name for it. Operations with different names never
    /// share a key, even if both [`run`](Operation::run) with the same one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or has characters other than ASCII letters,
    /// digits, `-`, `_` and `.`.
    pub fn operation(&self, name: impl AsRef<str>) -> Result<Operation, Error> {
        Operation::new(self, name.as_ref())
    }

    /// Returns the same engine, whose layers use this name.
    pub(crate) fn named(&self, name: &str) -> Result<Self, Error> {
        // A colon separates the entry point from the operation's name.
        let checked = Scope::new(&self.engine.function, name)?;
        if checked.operation().contains(':') {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the scope's operation name has a colon; leave it out",
            ));
        }
        Ok(Self { operation: Some(name.into()), ..self.clone() })
    }

    /// Returns the same engine for one invocation, whose deadline bounds its leases. The layers do this
    /// automatically.
    #[must_use]
    pub fn for_invocation(&self, invocation: Invocation) -> Self {
        Self { invocation: Some(invocation), ..self.clone() }
    }

    /// Returns the same engine without claims: for handlers whose only effects are the writes that they
    /// [stage](crate::staging()).
    ///
    /// Nothing is written before the handler runs. When it returns, the library puts its outcome and its
    /// writes in one transaction, if there's no outcome yet. A first run costs one request instead of two,
    /// nothing is locked, and nothing can go stale. Concurrent deliveries all run the handler; one commits,
    /// and the others answer with its outcome and write nothing. A later duplicate runs the handler too,
    /// without effect. If duplicates are frequent, or the handler is slow or costly,
    /// [`optimistic_reading_first`](Self::optimistic_reading_first) avoids that run for one read.
    ///
    /// Use it if the handler has no side effects besides its staged writes, so that it may run any number of
    /// times, also concurrently. A handler that charges a card, sends a mail or calls another service needs a
    /// claim. Inside it, [`current`](crate::current) returns `None`, and its errors and panics leave nothing
    /// behind.
    ///
    /// Deliveries with and without a claim may share keys, for example while you change a function from one
    /// to the other: a live claim is in progress, and a stale one is replaced by the outcome.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, store::memory::MemoryStore};
    /// # fn main() -> Result<(), lambda_idempotency::Error> {
    /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?.optimistic()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] at most once: without a claim, a handler runs at every delivery.
    pub fn optimistic(&self) -> Result<Self, Error> {
        self.without_claims(Mode::Optimistic { reads_first: false })
    }

    /// Like [`optimistic`](Self::optimistic), with one consistent read before the handler: it answers later
    /// duplicates, whose handler then doesn't run.
    ///
    /// # Errors
    ///
    /// As [`optimistic`](Self::optimistic).
    pub fn optimistic_reading_first(&self) -> Result<Self, Error> {
        self.without_claims(Mode::Optimistic { reads_first: true })
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

    /// Returns the scope of operations that arrive by `via`: `http`, `event`, `run`… An HTTP request and a
    /// step inside its handler can then use one key without being one operation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a name in it isn't valid.
    pub fn scope(&self, via: &str) -> Result<Scope, Error> {
        Scope::new(&self.engine.function, labelled(via, self.operation.as_deref()))
    }

    /// Returns the caller's invocation: the one that was set, or the surrounding layer's.
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
    /// The response to record, if there is one.
    pub(crate) fn response(&self) -> Option<&Bytes> {
        match self {
            Self::Complete(response) | Self::Fail(Some(response)) => Some(response),
            Self::CompleteOmitted | Self::Fail(None) | Self::Release | Self::Interrupted => None,
        }
    }

    /// Completes with `value` as JSON. A value that wouldn't read back unchanged isn't kept.
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

    /// Records `failure` as a permanent failure, to be replayed.
    pub(crate) fn failure(failure: &RecordedFailure) -> Self {
        Self::Fail(serde_json::to_vec(failure).ok().map(Bytes::from))
    }
}

/// Deserializes a recorded result.
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

/// The operation's name in the scope: the entry point, and the user's name for it.
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
        // Boxed, since it passes through many futures, each of which would reserve its size.
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
