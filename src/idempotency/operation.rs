//! An [`Operation`]: a named piece of work that runs once per key, such as charging a card.

use std::{borrow::Borrow, fmt, future::Future, marker::PhantomData};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, RecordedFailure, RunError, own},
    failure::{ErrorPolicy, OnError},
    fingerprint::Fingerprint,
    format::{Format, Json},
    idempotency::Idempotency,
    internal::{FingerprintExt as _, ScopeExt as _, SettingsExt as _, finite},
    invocation::Invocation,
    key::{Key, Scope, StoredKey},
    run::{
        begin::begin,
        claim::{Begun, Claim},
        context::{attempting, refused_within},
        driver::Driver,
        handle::ClaimHandle,
        protect::{Protected, Target, as_it_is, never_asked, protect_asking},
        question::Asked,
        replay::{Replay, in_span},
        response::Verdict,
    },
    settings::Settings,
    span::OperationSpan,
};

/// One operation of a function, by name: [`run`](Self::run) it, or [`begin`](Self::begin) and settle it yourself.
///
/// [`Idempotency::operation`] creates it. Two operations never share a record, even if both get the same key.
/// You can run one operation for any number of keys, and for one key again and again. Cheap to clone.
///
/// Its results are recorded as JSON, or in the [format](Self::format) `F`.
pub struct Operation<F = Json> {
    idempotency: Idempotency,
    scope: Scope,
    format: PhantomData<fn() -> F>,
}

/// Why an operation has no result.
pub(super) enum Failing<E> {
    /// The handler's error, which isn't recorded.
    Passing(E),
    /// The failure that's recorded, and the handler's error if the handler ran.
    Final(RecordedFailure, Option<E>),
}

impl Operation {
    pub(crate) fn new(idempotency: &Idempotency, name: &str) -> Result<Self, Error> {
        let idempotency = idempotency.named(name)?;
        let scope = idempotency.scope("run")?;
        Ok(Self { idempotency, scope, format: PhantomData })
    }
}

impl<F> Clone for Operation<F> {
    fn clone(&self) -> Self {
        Self { idempotency: self.idempotency.clone(), scope: self.scope.clone(), format: PhantomData }
    }
}

impl<F: Format> fmt::Debug for Operation<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("idempotency", &self.idempotency)
            .field("scope", &self.scope)
            .field("format", &F::NAME)
            .finish()
    }
}

impl<F: Format> Operation<F> {
    /// Returns the same operation, but records its results in the [`Format`] `G`.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// use std::borrow::Cow;
    /// use lambda_idempotency::store::Format;
    /// use serde::{Serialize, de::DeserializeOwned};
    ///
    /// struct Cbor;
    ///
    /// impl Format for Cbor {
    ///     const NAME: &'static str = "cbor";
    ///
    ///     fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Cow<'static, str>> {
    ///         let mut bytes = Vec::new();
    ///         ciborium::into_writer(value, &mut bytes).map_err(|_| "its type can't be written as CBOR")?;
    ///         Ok(bytes)
    ///     }
    ///
    ///     fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Cow<'static, str>> {
    ///         ciborium::from_reader(bytes).map_err(|_| "it isn't CBOR of this type".into())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("maps").build()?;
    /// let tiles = idempotency.operation("tiles")?.format::<Cbor>();
    /// let render = async || Ok::<_, std::io::Error>(vec![f64::NAN, 1.5]);
    /// tiles.run(Key::new("map-7")?, &"zoom 3", render).await?;
    /// // JSON couldn't have kept the NaN.
    /// let (again, replay) = tiles.run_with_replay(Key::new("map-7")?, &"zoom 3", render).await?;
    /// assert!(again[0].is_nan() && replay.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn format<G: Format>(&self) -> Operation<G> {
        Operation { idempotency: self.idempotency.clone(), scope: self.scope.clone(), format: PhantomData }
    }

    /// Returns the same operation for one caller. Callers don't share keys. Pass a verified identity, never a token:
    /// the caller's next token would count as another caller. In a function with tenant isolation, the invocation's
    /// tenant is part of the key anyway.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let charge = idempotency.operation("charge")?;
    /// let receipt = async |by: &'static str| {
    ///     let run = || async move { Ok::<_, std::io::Error>(format!("{by}'s receipt")) };
    ///     charge.for_caller(by)?.run(Key::new("order-17")?, &"12.50 EUR", run).await
    /// };
    /// assert_eq!(receipt("anna").await?, "anna's receipt");
    /// assert_eq!(receipt("otto").await?, "otto's receipt");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the caller is empty or over 2,048 bytes.
    pub fn for_caller(&self, caller: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self { scope: self.scope.with_caller(caller)?, ..self.clone() })
    }

    /// Returns the same operation with other settings than the function's; see [`Idempotency::with_settings`].
    ///
    /// # Errors
    ///
    /// Same as [`Idempotency::with_settings`].
    pub fn with_settings(&self, change: impl FnOnce(&mut Settings)) -> Result<Self, Error> {
        Ok(Self { idempotency: self.idempotency.with_settings(change)?, ..self.clone() })
    }

    /// Returns the same operation in one invocation, whose deadline limits its leases. The layers set the
    /// invocation. In a spawned task, set it yourself: see [`Invocation::current`].
    #[must_use]
    pub fn for_invocation(&self, invocation: Invocation) -> Self {
        Self { idempotency: self.idempotency.for_invocation(invocation), ..self.clone() }
    }

    /// Returns the ID of `key`'s record in the store, for operators' tools. If the invocation has a tenant, it's the
    /// record of that tenant.
    pub fn stored_key(&self, key: &Key) -> StoredKey {
        match self.idempotency.tenant() {
            Some(tenant) => StoredKey::new(&self.scope.of_tenant(&tenant), key),
            None => StoredKey::new(&self.scope, key),
        }
    }

    /// Returns the same operation over another `Idempotency` of this function.
    pub(super) fn over(self, idempotency: Idempotency) -> Self {
        Self { idempotency, ..self }
    }

    pub(crate) fn idempotency(&self) -> &Idempotency {
        &self.idempotency
    }

    /// Claims `key`, or finds its outcome. This is the low-level interface for operations that aren't a single closure.
    ///
    /// The claim's lease expires [`lease_grace`](crate::settings::Settings::lease_grace) after the invocation's
    /// deadline, or after [`lease_fallback`](crate::settings::Settings::lease_fallback) if the deadline is unknown.
    /// With [`lease_extension`](crate::settings::Settings::lease_extension), the lease has that length instead. Only
    /// [`Claim::extend`](crate::Claim::extend) extends the lease, and the library doesn't cut your work off: settle the
    /// claim before [`ClaimHandle::lease_until`](crate::ClaimHandle::lease_until). Once the lease and the skew margin
    /// have passed, the next delivery takes over and runs too. Under at-most-once, it gets
    /// [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) instead.
    ///
    /// # Errors
    ///
    /// In each case, nothing ran, and you hold no claim:
    ///
    /// - [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch): the key was used with another fingerprint.
    /// - [`ErrorKind::InProgress`](crate::ErrorKind::InProgress): another claim is live; see
    ///   [`Error::retry_after`].
    /// - [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): an earlier run ended without an answer, and
    ///   execution is at most once, now or in that run.
    /// - [`ErrorKind::NotRetained`](crate::ErrorKind::NotRetained): the operation is done, but its response wasn't
    ///   kept.
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store couldn't be reached, or no time
    ///   is left.
    /// - [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): the record is unreadable.
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the store rejects the request itself: see the
    ///   source error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a claim without an executor. The next delivery takes it over once the lease and
    /// the skew margin have passed. Under at-most-once, it gets
    /// [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) instead.
    pub async fn begin(&self, key: impl Borrow<Key>, fingerprint: Fingerprint) -> Result<Begun, Error> {
        let key = self.stored_key(key.borrow());
        let invocation = self.idempotency.invocation().without_short_leases();
        let span = &OperationSpan::new(&key, || None);
        let driver = &Driver { span: span.clone(), ..self.idempotency.driver().begun(&invocation) };
        let beginning = async {
            if !driver.settings.is_enforced() {
                let way = self.idempotency.way();
                return Ok(Begun::Claimed(
                    Claim::unenforced(driver, &key, fingerprint, &invocation, way).await,
                ));
            }
            attempting(&invocation, &key);
            let begun = begin(driver, &key, fingerprint, &invocation).await;
            let begun = begun.inspect(|_| driver.knows(&key));
            begun.map_err(|refused| refused_within(&invocation, &key, refused.error))
        };
        in_span(span, beginning, Begun::replay).await
    }

    /// Runs `operation` once for `key`, and answers every later call with its recorded result.
    ///
    /// `payload` must be the same each time the key is used. A retry must serialise it to the same JSON: a
    /// `HashSet` changes its order every time, which makes each retry a mismatch, so sort it first.
    ///
    /// The result is recorded as JSON, or in another [`format`](Self::format). Integers and finite floats are
    /// replayed to the last bit. A result that can't be read back, such as NaN, isn't recorded: this call returns
    /// it, and duplicates get [`ErrorKind::NotRetained`](crate::ErrorKind::NotRetained). If
    /// [`max_response`](crate::settings::Settings::max_response) is 0, duplicates get that error too.
    ///
    /// A duplicate gets what the recorded form reads back as, and some values have no form of their own. In JSON,
    /// `Some(())` of an `Option<()>` and `Some(None)` of an `Option<Option<_>>` read back as `None`, and a value of an
    /// untagged enum as the first variant that fits. Debug builds and the testing kit compare the two values, and log
    /// the error `result_reads_differently`. Return a type that distinguishes them. [A result's type can
    /// change](crate::guide::recipes#change-a-results-type) while its records live, with care.
    ///
    /// A handler that returns `lambda_runtime::Error` or another box passes the error on with `?`. Start the function with
    /// `lambda::run` (feature `events`), which finds the error in the box: Lambda then reports its type, such as
    /// `Idempotency.InProgress`. `lambda_runtime::run` reports the box's type.
    ///
    /// An error releases the key. With [`Recording::Record`](crate::settings::Recording::Record), the error is recorded
    /// instead: this call and every later call fail with [`RunError::Recorded`] and the same error type, so that a Step
    /// Functions `Catch` handles them alike. Exception: if a nested step was refused, the key is released; see
    /// [`on_handler_error`](crate::settings::Settings::on_handler_error).
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let charge = idempotency.operation("charge")?;
    /// let mut charged = 0;
    /// for _ in 0..2 {
    ///     let receipt: String = charge
    ///         .run(Key::new("order-17")?, &"12.50 EUR", || async {
    ///             charged += 1;
    ///             Ok::<_, std::io::Error>("receipt 1".to_owned())
    ///         })
    ///         .await?;
    ///     assert_eq!(receipt, "receipt 1");
    /// }
    /// assert_eq!(charged, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RunError::Handler`] with the operation's own error, if it isn't recorded; [`RunError::Recorded`]
    /// with an error that this call or an earlier call recorded; or [`RunError::Idempotency`]:
    ///
    /// - As in [`begin`](Self::begin), if the operation didn't run, or if another run recorded the outcome but it can't
    ///   be returned.
    /// - [`ErrorKind::InProgress`](crate::ErrorKind::InProgress) or
    ///   [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) if the operation was cut off, or
    ///   [`ErrorKind::InProgress`](crate::ErrorKind::InProgress) if another claim took over and is still running.
    /// - [`ErrorKind::Declined`](crate::ErrorKind::Declined) if a condition on the operation's staged writes failed.
    /// - Another kind if the staged writes couldn't be applied. If nothing was written, the message says so.
    ///
    /// # Panics
    ///
    /// If `operation` panics: the claim is settled, and the panic resumes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the operation and settles nothing. The next delivery takes over once the lease and the
    /// skew margin have passed. Under at-most-once, it gets
    /// [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) instead.
    pub async fn run<T, E, P, H, Fut>(
        &self,
        key: impl Borrow<Key>,
        payload: &P,
        operation: H,
    ) -> Result<T, RunError<E>>
    where
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
        P: Serialize + ?Sized,
        H: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        Ok(self.run_with_replay(key, payload, operation).await?.0)
    }

    /// Like [`run`](Self::run), and also returns the [`Replay`] if the result comes from the record: the attempt that
    /// recorded it, and the time until which it's replayed. `None` means that the operation ran now.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let charge = idempotency.operation("charge")?;
    /// let work = async || Ok::<_, std::io::Error>("receipt 1".to_owned());
    /// let (_, replay) = charge.run_with_replay(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// assert!(replay.is_none());
    /// let (receipt, replay) = charge.run_with_replay(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// assert_eq!((receipt.as_str(), replay.map(|replay| replay.attempt())), ("receipt 1", Some(1)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// Same as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// Same as [`run`](Self::run).
    pub async fn run_with_replay<T, E, P, H, Fut>(
        &self,
        key: impl Borrow<Key>,
        payload: &P,
        operation: H,
    ) -> Result<(T, Option<Replay>), RunError<E>>
    where
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
        P: Serialize + ?Sized,
        H: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.run_asking(key.borrow(), payload, operation, never_asked()).await
    }

    /// As [`run_with_replay`](Self::run_with_replay), for an operation that may have a reconciler.
    pub(super) async fn run_asking<T, E, P, H, Fut, Asking>(
        &self,
        key: &Key,
        payload: &P,
        operation: H,
        question: Option<impl FnOnce(ClaimHandle) -> Asking>,
    ) -> Result<(T, Option<Replay>), RunError<E>>
    where
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
        P: Serialize + ?Sized,
        H: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        Asking: Future<Output = Asked<Result<T, Failing<E>>>>,
    {
        let target_key = self.stored_key(key);
        let invocation = self.idempotency.invocation();
        let (fingerprint, text) = self.fingerprint_and_text(&target_key, payload)?;
        let target = Target {
            span: OperationSpan::new(&target_key, || None),
            key: target_key.clone(),
            fingerprint,
            invocation: invocation.clone(),
            cut_off: None,
            way: self.idempotency.way(),
            inside: None,
        };
        let judge = |result: Result<T, E>, policy: ErrorPolicy| -> (Verdict, Result<T, Failing<E>>) {
            let error = match result {
                Ok(value) => return (Verdict::result::<T, F>(&target_key, &value), Ok(value)),
                Err(error) => error,
            };
            let said = match policy.on_shown(&error) {
                OnError::Record(said) => said,
                OnError::Release => {
                    return (Verdict::Release { interrupted: false }, Err(Failing::Passing(error)));
                }
                OnError::Leave => return (Verdict::Unanswered { until: None }, Err(Failing::Passing(error))),
            };
            let described = || {
                let own = own::shown_by(&error).error_type;
                let error_type = own.unwrap_or_else(|| std::any::type_name::<E>().to_owned());
                RecordedFailure::new(error_type, error.to_string())
            };
            let failure = said.unwrap_or_else(described);
            (Verdict::failure(&failure), Err(Failing::Final(failure, Some(error))))
        };
        attempting(&invocation, &target_key);
        let driver = self.idempotency.driver();
        let protected = protect_asking(driver, target, operation, judge, as_it_is, question).await;
        let protected = protected.map_err(|error| refused_within(&invocation, &target_key, error))?;
        if let (Some(cache), Some(text)) = (driver.cache(), text) {
            cache.remember(&target_key, fingerprint, text);
        }
        match protected {
            Protected::Ran(Ok(value)) | Protected::RanUnrecorded(Ok(value)) => Ok((value, None)),
            // This call gets the recorded failure too, like its duplicates.
            Protected::Ran(Err(Failing::Final(failure, _)))
            | Protected::RanUnrecorded(Err(Failing::Final(failure, None))) => {
                Err(RunError::Recorded(failure))
            }
            Protected::RanUnrecorded(Err(Failing::Final(_, Some(error))))
            | Protected::Ran(Err(Failing::Passing(error)))
            | Protected::RanUnrecorded(Err(Failing::Passing(error))) => Err(RunError::Handler(error)),
            Protected::Replayed(replay) => Ok((replay.result_of::<T, F, E>(&target_key)?, Some(replay))),
        }
    }

    /// Returns the payload's fingerprint, and its JSON text if the local cache should remember the text.
    ///
    /// # Errors
    ///
    /// As [`fingerprint_of`](Self::fingerprint_of).
    fn fingerprint_and_text<P: Serialize + ?Sized>(
        &self,
        key: &StoredKey,
        payload: &P,
    ) -> Result<(Fingerprint, Option<String>), Error> {
        if let Some(cache) = self.idempotency.driver().cache()
            && let Ok(text) = finite::to_json(payload)
        {
            if let Some(fingerprint) = cache.fingerprint_of(key, &text) {
                return Ok((fingerprint, None));
            }
            if let Ok(fingerprint) = Fingerprint::of_written(&text) {
                return Ok((fingerprint, Some(text)));
            }
        }
        Ok((self.fingerprint_of(payload)?, None))
    }

    /// Returns the payload's fingerprint. If idempotency isn't enforced, a payload that can't be serialised as JSON
    /// gets a constant fingerprint.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if idempotency is enforced and the payload can't be
    /// serialised as JSON.
    pub(crate) fn fingerprint_of<P: Serialize + ?Sized>(&self, payload: &P) -> Result<Fingerprint, Error> {
        match Fingerprint::of(payload) {
            Err(_) if !self.idempotency.settings().is_enforced() => {
                Ok(Fingerprint::builder("unserialisable").finish())
            }
            fingerprint => fingerprint,
        }
    }
}
