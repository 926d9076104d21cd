//! The entry point: [`Idempotency`], its [`Builder`] and its [`Operation`]s.

mod builder;
mod in_transaction;
mod operation;
mod operator;
pub(crate) mod reconcile;

pub use builder::Builder;
pub use operation::Operation;
pub use operator::Resolution;
pub use reconcile::{Found, Reconciled};

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, ErrorKind},
    internal::SettingsExt as _,
    invocation::Invocation,
    key::{Key, Scope, StoredKey},
    observe,
    record::Record,
    run::{
        context::surrounding,
        driver::{Driver, Way},
        handle::ClaimHandle,
        replay::Replay,
    },
    settings::{Mode, Settings},
    store::{
        Store,
        named::{NamedStore, start_random},
    },
};

/// How long [`Idempotency::warm_up`] waits: Lambda gives the whole init ten seconds ("Understanding the Lambda execution
/// environment lifecycle", AWS Lambda developer guide), and a connection takes milliseconds.
const WARM_UP: Duration = Duration::from_secs(1);
const WITHOUT_A_CLAIM: &str = "a handler that runs without a claim";

/// Makes operations idempotent: one logical operation, one outcome.
///
/// Cheap to clone, and shared by all invocations of a process. Its memory doesn't grow with the number of keys. (The
/// [local cache](Settings::local_cache) is bounded, and off by default.)
#[derive(Clone)]
pub struct Idempotency {
    driver: Driver,
    function: Arc<str>,
    /// The name that the user gave the operation, if any.
    operation: Option<Arc<str>>,
    /// The invocation, if the user set it.
    invocation: Option<Invocation>,
    way: Way,
}

impl Idempotency {
    /// Starts building an [`Idempotency`] over `store`.
    pub fn builder(store: impl Store) -> Builder {
        Builder::new(Arc::new(store))
    }

    /// Creates an [`Idempotency`] with default settings, over the store that the environment variables choose. Set
    /// either `IDEMPOTENCY_TABLE` to the name of a DynamoDB table, or `IDEMPOTENCY_STORE` to a URL. The function's name
    /// comes from `AWS_LAMBDA_FUNCTION_NAME`.
    ///
    /// | `IDEMPOTENCY_STORE` | store | feature |
    /// |---|---|---|
    /// | `dynamodb://TABLE` | that table; also `?endpoint=URL`, `&region=NAME`, `&sort_key=ATTRIBUTE`, `&partition=VALUE`, `&attributes=id:pk,expires_at:ttl` for attribute names other than the default ones | `dynamodb` |
    /// | `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, `rediss://…` for TLS | that server of Redis or Valkey; also `?prefix=TEXT`, `&sslrootcert=FILE`; with the feature `iam`, `rediss://USER@…` with `&iam=elasticache:NAME`, `elasticache-serverless:NAME` or `memorydb:NAME` | `redis` |
    /// | `redis-cluster://…`, `rediss-cluster://…` for TLS | that cluster; also `&node=HOST:PORT` | `redis` |
    /// | `postgres://USER:PASSWORD@HOST[:PORT]/DATABASE` | that PostgreSQL; also `?table=NAME`, `&sslmode=MODE`, `&sslrootcert=FILE`, `&timeouts=startup`, `transaction` or `role`, `&prepared=true`; with the feature `iam`, no password and `&iam=rds` | `postgres` |
    /// | `memory:` | this process's memory: only for trying the library out on one machine. Refused inside Lambda | |
    ///
    /// Percent-encode special characters in a parameter's value: write `%25` for a percent sign.
    ///
    /// `IDEMPOTENCY_MODE` sets the mode: `enforce` (default), `shadow` or `off`; see [`Mode`].
    /// In the mode `off`, the environment doesn't have to choose a store. `IDEMPOTENCY_REQUIRED=1` refuses every mode
    /// but `enforce`, even if the function's code sets the mode. In an emergency, `IDEMPOTENCY_MODE=off!` is `off`, and
    /// overrides `IDEMPOTENCY_REQUIRED`.
    ///
    /// For DynamoDB, credentials, Region and endpoint come from the environment, as with any AWS SDK. Call
    /// this once, when the function starts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if neither or both of `IDEMPOTENCY_TABLE` and `IDEMPOTENCY_STORE` are set, if one is
    /// malformed, or if the mode is unknown or refused. This call sends no request, so you learn of a missing table or
    /// server only at the first use.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn from_env() -> Result<Self, Error> {
        Self::builder_from_env().await?.build()
    }

    /// Creates a builder over the store that the environment variables choose, so that you can change the default
    /// settings.
    ///
    /// # Errors
    ///
    /// Same as [`from_env`](Self::from_env).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn builder_from_env() -> Result<Builder, Error> {
        let mode = builder::mode_in(|name| std::env::var(name).ok())?;
        let named = NamedStore::from_env_in(mode.unwrap_or_default())?;
        let store = named.open_for_function().await?;
        Ok(Self::builder(store).outside(mode, !NamedStore::is_in_environment()))
    }

    /// Returns the operation `name` of this function. Operations with different names never share a record, even if
    /// both [`run`](Operation::run) with the same key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or has characters other than ASCII letters,
    /// digits, `-`, `_` and `.`.
    pub fn operation(&self, name: impl AsRef<str>) -> Result<Operation, Error> {
        Operation::new(self, name.as_ref())
    }

    /// Returns a clone whose layers use this name for the operation.
    pub(crate) fn named(&self, name: &str) -> Result<Self, Error> {
        // In a scope, a colon separates the entry point from the operation's name.
        let checked = Scope::new(&self.function, name)?;
        if checked.operation().contains(':') {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the operation's name has a colon; use a name without one",
            ));
        }
        Ok(Self { operation: Some(name.into()), ..self.clone() })
    }

    /// Returns a clone for one invocation. The invocation's deadline bounds the clone's leases. The layers do this
    /// automatically.
    #[must_use]
    pub fn for_invocation(&self, invocation: Invocation) -> Self {
        let invocation = invocation.beginning(self.driver.clock());
        Self { invocation: Some(invocation), ..self.clone() }
    }

    /// Returns a clone that runs without claims: for handlers whose only effects are the writes that they
    /// [stage](crate::staging()).
    ///
    /// Nothing is written before the handler runs. When the handler returns, the library commits the handler's outcome
    /// and its staged writes in one transaction, if the key has no outcome yet. A first run costs one request instead
    /// of two, nothing is locked, and nothing can go stale. Concurrent deliveries all run the handler. One of them
    /// commits. The others write nothing, and answer with the committed outcome. A later duplicate runs the handler
    /// too, but its writes aren't applied. If duplicates are frequent, or the handler is slow or costly, use
    /// [`optimistic_reading_first`](Self::optimistic_reading_first): it avoids these runs with one read per delivery.
    ///
    /// Run without claims only if the handler has no side effects besides its staged writes, so that it may run any
    /// number of times, also concurrently. A handler that charges a card, sends a mail or calls another service needs
    /// a claim. Inside the handler, [`current`](crate::current) returns `None`. If the handler fails or panics, the
    /// library drops the staged writes, and stores nothing unless it records the failure: see
    /// [`Settings::on_handler_error`](crate::settings::Settings::on_handler_error).
    ///
    /// Deliveries with and without a claim may share keys, for example while a deployment switches a function from
    /// claims to runs without claims. A delivery without a claim gets [`ErrorKind::InProgress`] if another delivery has
    /// a live claim. If that claim is stale, the outcome replaces it.
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
    /// [`ErrorKind::Invalid`] for [`Execution::AtMostOnce`](crate::settings::Execution::AtMostOnce): without a claim,
    /// nothing prevents a second run of the handler.
    pub fn optimistic(&self) -> Result<Self, Error> {
        self.without_claims(Way::Optimistic { reads_first: false })
    }

    /// Like [`optimistic`](Self::optimistic), with one consistent read before the handler. If the read finds an
    /// outcome, the library answers with it, and the handler doesn't run.
    ///
    /// # Errors
    ///
    /// Same as [`optimistic`](Self::optimistic).
    pub fn optimistic_reading_first(&self) -> Result<Self, Error> {
        self.without_claims(Way::Optimistic { reads_first: true })
    }

    fn without_claims(&self, way: Way) -> Result<Self, Error> {
        self.driver.settings.refuse_at_most_once(WITHOUT_A_CLAIM)?;
        Ok(Self { way, ..self.clone() })
    }

    /// Opens a connection to the store, so that the first invocation doesn't wait for the name's resolution, the TLS
    /// handshake and the authentication. Call it once, before the function takes its first event. Optional.
    ///
    /// It costs one consistent read of a record that doesn't exist, and takes at most a second of the function's init.
    /// A failure is only logged: the first invocation then connects as it would without this call. Does nothing if the
    /// mode is [`off`](crate::settings::Mode::Off), or before a SnapStart snapshot, whose connections would all be dead.
    ///
    /// Each further client of the AWS SDK has its own connections, unless it shares this one's HTTP client.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    ///
    /// ```no_run
    /// # use lambda_idempotency::Idempotency;
    /// # async fn example() -> Result<(), lambda_idempotency::Error> {
    /// let idempotency = Idempotency::from_env().await?;
    /// idempotency.warm_up().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn warm_up(&self) {
        let driver = &self.driver;
        let (Ok(scope), Ok(key)) = (Scope::new(&self.function, "warm-up"), Key::new("no-such-key")) else {
            return;
        };
        if driver.shared.is_snapshotted || driver.settings.mode == Mode::Off {
            return;
        }
        let (now, id) = (driver.now(), StoredKey::new(&scope, &key));
        let until = Some(now.saturating_add(WARM_UP));
        let warming = async {
            start_random().await;
            driver.store().read(&id).await
        };
        if let Err(error) = driver.in_time(now, until, Box::pin(warming)).await {
            observe::not_warm(&error);
        }
    }

    /// Empties the [local cache](crate::settings::Settings::local_cache) of this value and all its clones: the next
    /// delivery of each key asks the store. Does nothing without a cache.
    ///
    /// Call it after the process was restored from a memory snapshot, if your platform has a hook for that, and call the
    /// store's [`close_connections`](Store::close_connections). Under SnapStart, the library calls both: see
    /// [`guide::operations`](crate::guide::operations#snapstart). Also call it when you know that a person changed a
    /// record from another process. Operations in flight don't cache answers that they got from the store before this
    /// call.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let builder = Idempotency::builder(store.clone()).function("orders");
    /// let idempotency = builder.settings(|s| s.local_cache = 4 * 1024 * 1024).build()?;
    ///
    /// let charge = idempotency.operation("charge")?;
    /// let work = async || Ok::<_, std::io::Error>(String::from("receipt 1"));
    /// let first: String = charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// // From here on, the cache answers even without the record.
    /// for (key, _) in store.all() {
    ///     store.set(&key, None);
    /// }
    /// let again: String = charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// assert_eq!(first, again);
    /// idempotency.clear_local_cache();
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear_local_cache(&self) {
        self.driver.shared.clear_cache();
    }

    /// Settles the record of `key` by hand, whatever its state is. Use it in an operator's tool, or in a job that
    /// asks the downstream system whether the effect happened. The record must still be the version `seen`, or the
    /// same claim with an extended lease.
    ///
    /// The record gets a new owner and a new generation. They fence an executor that's still running: its settlement is
    /// rejected, and it answers with the outcome in the record. If you released the key, the executor claims it again
    /// and records its own outcome.
    ///
    /// An outcome expires [`Settings::retention`](crate::settings::Settings::retention) from now.
    ///
    /// Returns the new record, or `None` if the record is no longer the version `seen`. In that case, read the record
    /// again and decide. A longer lease of the same claim isn't another version, unless the claim was stale and is live
    /// again: then its handler may still run. `None` means that nothing was written, with one exception: the write was applied, its answer
    /// was lost, and another delivery replaced the record before the store's own client repeated the request.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, Resolution, store::{Store, memory::MemoryStore}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = MemoryStore::new();
    /// # let idempotency = Idempotency::builder(store.clone()).function("orders").build()?;
    /// # let none = async || Err::<(), _>(std::io::Error::other("no"));
    /// let charge = idempotency.operation("charge")?;
    /// # let _ = charge.run(Key::new("order-17")?, &"12.50 EUR", none).await;
    /// let key = charge.stored_key(&Key::new("order-17")?);
    /// if let Some(seen) = store.read(&key).await? {
    ///     // The gateway says that the charge went through.
    ///     let response = Resolution::Complete(r#"{"receipt":17}"#.into());
    ///     match idempotency.resolve(&key, &seen, response).await? {
    ///         Some(record) => println!("{}", record.status().as_str()),
    ///         None => println!("another write was faster: read the record again"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unavailable`]: the store couldn't be reached, or its answer was lost and the record doesn't show
    ///   whether the write was applied, for example because another claim has replaced the record. Retrying is
    ///   harmless: the write applies only to the version that was seen.
    /// - [`ErrorKind::Invalid`]: the response is over
    ///   [`Settings::max_response`](crate::settings::Settings::max_response), or the store rejects the request itself.
    ///   Nothing was written.
    /// - [`ErrorKind::Corrupt`]: the current record is unreadable. Nothing was written.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the record may be unchanged or settled, or the write may still reach the store later.
    pub async fn resolve(
        &self,
        key: &StoredKey,
        seen: &Record,
        resolution: Resolution,
    ) -> Result<Option<Record>, Error> {
        operator::resolve(self.driver(), key, seen, resolution).await
    }

    /// Returns the outcome in `record`, which is the record of `key`, for an operator's tool. Reads the response's
    /// chunks from the store if it has any. This call isn't logged or counted as a replay.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NotRetained`]: the record has an outcome, but its response wasn't kept.
    /// - [`ErrorKind::Corrupt`]: the record has no outcome, or the response is damaged.
    /// - [`ErrorKind::Unavailable`] or [`ErrorKind::Invalid`]: a chunk of the response couldn't be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn outcome_of(&self, key: &StoredKey, record: &Record) -> Result<Replay, Error> {
        self.driver().outcome_in(key, record, None).await
    }

    /// Returns the same `Idempotency` with other settings: for one layer, one worker or, with
    /// [`Operation::with_settings`], one operation. The store, the clock and the local cache stay shared.
    ///
    /// All executors of an operation should use the same settings. If two versions of a function have different
    /// settings, each version applies its own settings to the records that it writes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_idempotency::{Idempotency, store::memory::MemoryStore};
    /// use lambda_idempotency::settings::Execution;
    ///
    /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let charge = idempotency.operation("charge")?.with_settings(|settings| {
    ///     settings.execution = Execution::AtMostOnce;
    ///     settings.retention = Duration::from_secs(7 * 24 * 60 * 60);
    /// })?;
    /// # let _ = charge;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] as in [`Builder::build`], for at-most-once execution without claims, or if `change` sets
    /// a local cache but the builder set up none.
    pub fn with_settings(&self, change: impl FnOnce(&mut Settings)) -> Result<Self, Error> {
        let mut settings = Settings::clone(&self.driver.settings);
        change(&mut settings);
        settings.validate()?;
        if let Way::Optimistic { .. } = self.way {
            settings.refuse_at_most_once(WITHOUT_A_CLAIM)?;
        }
        if settings.local_cache > 0 && self.driver.shared.cache.is_none() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "`local_cache` is set, but the builder set up no local cache; set it on the builder too",
            ));
        }
        builder::check_store(settings.mode, self.driver.shared.lacks_store)?;
        if !settings.is_enforced() && settings.mode != self.driver.settings.mode {
            builder::switch(settings.mode, self.driver.shared.is_required)?;
        }
        let driver = Driver { settings: Arc::new(settings), ..self.driver.clone() };
        Ok(Self { driver, ..self.clone() })
    }

    /// Asks for the effect of a record's attempt that ended without an answer, and records what was found. Use it for
    /// records that aren't redelivered: from a schedule, over the records of
    /// [`scan`](crate::store::dynamodb::DynamoDbStore::scan). The question gets only the new claim, whose
    /// [`derive_key`](crate::ClaimHandle::derive_key) gives the same keys as the handler's.
    ///
    /// Returns whether the operation has an outcome now. If not, the effect didn't happen, or the key is free: nothing can
    /// run the handler here, so the record stays as it is for the next delivery, which asks again.
    ///
    /// The recorded outcome is JSON, as [`run`](Operation::run) and the batch workers replay it.
    ///
    /// ```
    /// # use lambda_idempotency::{ClaimHandle, Error, Found, Idempotency, StoredKey};
    /// # use lambda_idempotency::store::{Record, Status};
    /// # async fn find(_: &str) -> Result<Option<String>, std::io::Error> { Ok(None) }
    /// /// Settles the charges whose attempts ended without an answer.
    /// async fn settle(idempotency: &Idempotency, records: Vec<(StoredKey, Record)>) -> Result<(), Error> {
    ///     for (key, record) in records.iter().filter(|(_, record)| record.status() == Status::Started) {
    ///         let question = async |claim: ClaimHandle| {
    ///             Ok(find(&claim.derive_key("charge")).await?.map_or(Found::DidNotHappen, Found::Happened))
    ///         };
    ///         match idempotency.reconcile_record(key, record, question).await {
    ///             Err(error) if error.retry_after().is_some() => {} // still running, or not known yet
    ///             settled => println!("{key}: settled: {}", settled?),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`Reconciled::run`]: [`ErrorKind::InProgress`] while a claim is live, or until the question may be asked;
    /// [`ErrorKind::OutcomeUnknown`] under at-most-once if the effect wasn't found. [`ErrorKind::Invalid`] as in
    /// [`reconcile`](Operation::reconcile).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the record to the next attempt, once the lease has ended.
    pub async fn reconcile_record<T, Q>(
        &self,
        key: &StoredKey,
        record: &Record,
        question: Q,
    ) -> Result<bool, Error>
    where
        T: Serialize + DeserializeOwned,
        Q: AsyncFnOnce(ClaimHandle) -> Result<Found<T>, Box<dyn std::error::Error + Send + Sync>>,
    {
        reconcile::record(&self.asking()?, key, record, question).await
    }

    /// Returns a clone whose operations have a reconciler.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for settings under which a handler may run without the question.
    pub(crate) fn asking(&self) -> Result<Self, Error> {
        let invalid = |why| Err(Error::new(ErrorKind::Invalid, why));
        if let Way::Optimistic { .. } = self.way() {
            return invalid(
                "an optimistic operation has no claim, so no attempt can be reconciled: use a claim",
            );
        }
        if self.settings().fail_open {
            return invalid("with fail_open, a handler may run without the question: set fail_open to false");
        }
        Ok(Self { driver: Driver { is_reconciled: true, ..self.driver.clone() }, ..self.clone() })
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// Returns the settings of this value.
    pub fn settings(&self) -> &Settings {
        &self.driver.settings
    }

    pub(crate) fn function_name(&self) -> &str {
        &self.function
    }

    pub(crate) fn operation_name(&self) -> Option<&str> {
        self.operation.as_deref()
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the scope of operations with the entry point `via`: `http`, `event`, `run`… Since the entry point is in
    /// the scope, an HTTP request and a step inside its handler can use the same key and stay two operations.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the function's or the operation's name isn't valid.
    pub fn scope(&self, via: &str) -> Result<Scope, Error> {
        Scope::new(&self.function, labelled(via, self.operation.as_deref()))
    }

    /// Returns the current invocation's tenant. If `for_invocation` set an invocation without a tenant, returns the
    /// surrounding layer's tenant. So a step that gets its own invocation, for another deadline, stays in its tenant.
    pub(crate) fn tenant(&self) -> Option<Arc<str>> {
        let own = self.invocation.as_ref().and_then(Invocation::tenant).cloned();
        own.or_else(|| surrounding()?.invocation.tenant().cloned())
    }

    /// Returns the current invocation: the one that `for_invocation` set, or else the surrounding layer's. Without
    /// either, logs that once and returns an unknown invocation.
    pub(crate) fn invocation(&self) -> Invocation {
        self.invocation.clone().or_else(|| surrounding().map(|context| context.invocation)).unwrap_or_else(
            || {
                let shared = &self.driver.shared;
                shared.no_invocation.call_once(|| {
                    observe::no_invocation(&self.driver.settings, shared.is_in_lambda);
                });
                Invocation::unknown()
            },
        )
    }
}

/// Returns the operation's name in the scope: the entry point and, if the user gave the operation a name, that name.
fn labelled<'a>(via: &'a str, operation: Option<&str>) -> Cow<'a, str> {
    match operation {
        Some(operation) => format!("{via}:{operation}").into(),
        None => via.into(),
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("function", &self.function)
            .field("operation", &self.operation)
            .field("store", self.driver.store())
            .field("settings", &self.driver.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
