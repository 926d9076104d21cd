//! Builds an [`Idempotency`]: components given, settings defaulted, mistakes refused.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    engine::{Engine, Idempotency, Mode, OwnerSource, cache::LocalCache},
    error::{Error, ErrorKind},
    key::Scope,
    policy::{Execution, OnHandlerError, OnInProgress, OnStoreFailure, Settings},
    record::Owner,
    store::Store,
    time::{Clock, SystemClock},
};

/// Builds an [`Idempotency`]; see [`Idempotency::builder`].
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    owners: OwnerSource,
    settings: Settings,
    function: Option<String>,
    operation: Option<String>,
}

impl Builder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            clock: Arc::new(SystemClock),
            owners: Arc::new(Owner::random),
            settings: Settings::default(),
            function: None,
            operation: None,
        }
    }

    /// The function's name in the scope. Default: `AWS_LAMBDA_FUNCTION_NAME`, which has neither version
    /// nor alias.
    pub fn function(mut self, name: impl Into<String>) -> Self {
        self.function = Some(name.into());
        self
    }

    /// The name of the operation that the layers wrap, where a function has more than one such layer. Default: none. What
    /// [`Idempotency::operation`] names has its own.
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// See [`Settings::retention`].
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// See [`Settings::skew_margin`].
    pub fn skew_margin(mut self, margin: Duration) -> Self {
        self.settings.skew_margin = margin;
        self
    }

    /// See [`Settings::lease_grace`].
    pub fn lease_grace(mut self, grace: Duration) -> Self {
        self.settings.lease_grace = grace;
        self
    }

    /// See [`Settings::lease_fallback`].
    pub fn lease_fallback(mut self, fallback: Duration) -> Self {
        self.settings.lease_fallback = fallback;
        self
    }

    /// See [`Settings::lease_extension`].
    pub fn lease_extension(mut self, length: Duration) -> Self {
        self.settings.lease_extension = Some(length);
        self
    }

    /// See [`Settings::answer_reserve`].
    pub fn answer_reserve(mut self, reserve: Duration) -> Self {
        self.settings.answer_reserve = reserve;
        self
    }

    /// See [`Settings::settle_within`].
    pub fn settle_within(mut self, limit: Duration) -> Self {
        self.settings.settle_within = limit;
        self
    }

    /// See [`Settings::execution`].
    pub fn execution(mut self, execution: Execution) -> Self {
        self.settings.execution = execution;
        self
    }

    /// See [`Settings::on_handler_error`].
    pub fn on_handler_error(mut self, policy: OnHandlerError) -> Self {
        self.settings.on_handler_error = policy;
        self
    }

    /// See [`Settings::on_in_progress`].
    pub fn on_in_progress(mut self, policy: OnInProgress) -> Self {
        self.settings.on_in_progress = policy;
        self
    }

    /// See [`Settings::on_store_failure`].
    pub fn on_store_failure(mut self, policy: OnStoreFailure) -> Self {
        self.settings.on_store_failure = policy;
        self
    }

    /// See [`Settings::max_response`].
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.settings.max_response = bytes;
        self
    }

    /// Keeps settled records in this process's memory, `bytes` at most, and answers duplicates from there without a
    /// request. Default: 0, off. Otherwise at least 64 KiB; a few MiB are many records.
    ///
    /// Worth it where the same process sees the same key again: a client that repeats, a warm function. All clones of
    /// the engine and all concurrent invocations share one cache. Kept is what the store holds for certain: an
    /// outcome that was read from it, or recorded by this process. A copy counts key, fingerprint, response and what it
    /// takes to find it again; what was used longest ago goes first, and what would fill more than an eighth of the
    /// cache, or was not retained, is not kept.
    ///
    /// A copy is judged as the record would be. Another fingerprint is a [`Mismatch`](ErrorKind::Mismatch), and
    /// from the record's expiry on the store is asked; by clocks within [`Settings::skew_margin`], nobody can have
    /// replaced the record before. While a copy counts, it answers even when the store is down.
    ///
    /// What a copy cannot know, so that it is replayed until the record expires:
    ///
    /// - An operator's write from another process, such as `idempotency release` on a completed record, or one whose
    ///   answer was lost. After it, wait for the expiry, restart the function (a new deployment does), or have it call
    ///   [`Idempotency::clear_local_cache`]. A [`resolve`](Idempotency::resolve) by this engine drops its copy by itself.
    /// - A record that was removed by hand, or a table that was restored from a backup.
    /// - That its own clock is behind by more than the skew margin: it may then replay an outcome that has expired
    ///   elsewhere, and been replaced.
    ///
    /// From a SnapStart snapshot many processes start with one memory. Where the environment says that there is one
    /// (`AWS_LAMBDA_INITIALIZATION_TYPE` is `snap-start`), only operations of a known [`Invocation`](crate::Invocation)
    /// are kept, so that the snapshot's cache is empty; after any other restore, call
    /// [`Idempotency::clear_local_cache`].
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let builder = Idempotency::builder(store.clone()).function("orders");
    /// let idempotency = builder.local_cache(4 * 1024 * 1024).build()?;
    ///
    /// let charge = idempotency.operation("charge")?;
    /// let work = async || Ok::<_, std::io::Error>(String::from("receipt 1"));
    /// let first: String = charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// // From here on the store is not asked, so that it is not missed.
    /// for (key, _) in store.all() {
    ///     store.set(&key, None);
    /// }
    /// let again: String = charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// assert_eq!(first, again);
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_cache(mut self, bytes: usize) -> Self {
        self.settings.local_cache = bytes;
        self
    }

    /// All settings at once.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The clock: for tests.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Where owners are drawn from: for simulations that must be repeatable. In production leave the
    /// default, the operating system: two executors that draw one owner are one to the protocol.
    pub fn owner_source(mut self, draw: impl Fn() -> Result<Owner, Error> + Send + Sync + 'static) -> Self {
        self.owners = Arc::new(draw);
        self
    }

    /// Checks everything and builds the engine. No request is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a duration of zero or out of its bounds, a local cache of under 64 KiB, an empty or malformed name, or a
    /// function whose name is neither given nor in the environment.
    pub fn build(self) -> Result<Idempotency, Error> {
        self.build_in(|name| std::env::var(name).ok())
    }

    /// [`build`](Self::build), in an environment with these variables.
    pub(super) fn build_in(
        self,
        environment: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Idempotency, Error> {
        let variable = |name| environment(name).filter(|value| !value.is_empty());
        self.settings.validate()?;
        let initialization = variable("AWS_LAMBDA_INITIALIZATION_TYPE");
        let function = match self.function {
            Some(function) => function,
            None => variable("AWS_LAMBDA_FUNCTION_NAME").ok_or_else(no_function)?,
        };
        Scope::new(&function, "x")?;
        let is_snapshotted = initialization.as_deref() == Some("snap-start");
        let engine = Engine {
            local_cache: LocalCache::new(self.settings.local_cache, is_snapshotted),
            store: self.store,
            clock: self.clock,
            owners: self.owners,
            settings: self.settings,
            function,
            is_in_lambda: variable("AWS_LAMBDA_RUNTIME_API").is_some(),
            no_invocation: std::sync::Once::new(),
            #[cfg(feature = "events")]
            unknown_deadline: std::sync::Once::new(),
        };
        let idempotency = Idempotency {
            engine: Arc::new(engine),
            operation: None,
            invocation: None,
            mode: Mode::default(),
        };
        match self.operation {
            Some(operation) => idempotency.named(&operation),
            None => Ok(idempotency),
        }
    }
}

fn no_function() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the scope has no function name: AWS_LAMBDA_FUNCTION_NAME is not set; outside Lambda, give one to the builder",
    )
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("store", &self.store)
            .field("function", &self.function)
            .field("operation", &self.operation)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
