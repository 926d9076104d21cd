//! Builds an [`Idempotency`]: takes the components, applies defaults, and refuses invalid settings.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    error::{Error, ErrorKind},
    idempotency::Idempotency,
    internal::SettingsExt as _,
    internal::snapshot::is_snapshotted,
    key::Scope,
    observe,
    record::Owner,
    run::{
        brake::Brake,
        cache::LocalCache,
        driver::{Driver, OwnerSource, Shared, Way},
    },
    settings::{Execution, Mode, Settings},
    span::OperationSpan,
    store::{Cipher, Store, named},
    time::{Clock, LaterClock, system_clock},
};

/// The environment variable that sets the mode.
const MODE: &str = "IDEMPOTENCY_MODE";
/// The environment variable that forbids the modes without protection.
const REQUIRED: &str = "IDEMPOTENCY_REQUIRED";
/// The value of [`MODE`] that switches protection off even where [`REQUIRED`] is 1.
const OFF_ANYWAY: &str = "off!";

/// Builds an [`Idempotency`]; see [`Idempotency::builder`].
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    owners: OwnerSource,
    cipher: Option<Arc<dyn Cipher>>,
    settings: Settings,
    /// The mode that the environment sets, if it sets one.
    mode_outside: Option<Mode>,
    /// Whether the store is only a substitute, because the environment names none.
    lacks_store: bool,
    function: Option<String>,
    operation: Option<String>,
}

impl Builder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            clock: Arc::new(system_clock()),
            owners: Arc::new(Owner::random),
            cipher: None,
            settings: Settings::default(),
            mode_outside: None,
            lacks_store: false,
            function: None,
            operation: None,
        }
    }

    /// Sets the mode that the environment names, if it names one, and whether the environment names no store.
    pub(super) fn outside(mut self, mode: Option<Mode>, lacks_store: bool) -> Self {
        self.settings.mode = mode.unwrap_or_default();
        Self { mode_outside: mode, lacks_store, ..self }
    }

    /// Sets the function's name in the scope. Default: `AWS_LAMBDA_FUNCTION_NAME`, which contains no version or alias.
    pub fn function(mut self, name: impl Into<String>) -> Self {
        self.function = Some(name.into());
        self
    }

    /// Sets the name of the operation that the layers wrap, for a function with more than one such layer.
    /// Default: none. Operations from [`Idempotency::operation`] have their own names.
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// See [`Settings::retention`].
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// See [`Settings::execution`].
    pub fn execution(mut self, execution: Execution) -> Self {
        self.settings.execution = execution;
        self
    }

    /// Encrypts responses and recorded failures with `cipher` before they're stored. Without a cipher, they're stored
    /// in plaintext: only the table's encryption at rest protects them.
    pub fn cipher(mut self, cipher: impl Cipher) -> Self {
        self.cipher = Some(Arc::new(cipher));
        self
    }

    /// Sets whether idempotency is enforced, only reported, or off. Default: enforced. The environment's
    /// equivalent is `IDEMPOTENCY_MODE`, which [`Idempotency::from_env`] and [`Idempotency::builder_from_env`] read.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lambda_idempotency::settings::Mode;
    ///
    /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").mode(Mode::Shadow).build()?;
    /// let charge = idempotency.operation("charge")?;
    /// let mut charged = 0;
    /// for _ in 0..2 {
    ///     let work = async || {
    ///         charged += 1;
    ///         Ok::<_, std::io::Error>(())
    ///     };
    ///     charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
    /// }
    /// assert_eq!(charged, 2, "nothing is protected");
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// Changes settings: see [`Settings`]. If `IDEMPOTENCY_MODE` set the mode of this builder (see
    /// [`Idempotency::builder_from_env`]), that mode is kept. To replace it, call [`mode`](Self::mode).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lambda_idempotency::{Idempotency, store::memory::MemoryStore};
    /// let builder = Idempotency::builder(MemoryStore::new()).function("reports");
    /// let idempotency = builder.settings(|s| s.lease_extension = Some(Duration::from_secs(30))).build()?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let mode = self.settings.mode;
        change(&mut self.settings);
        if self.mode_outside.is_some() {
            self.settings.mode = mode;
        }
        self
    }

    /// Sets the clock, for tests.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Sets the source of owners, for simulations that must be repeatable. In production, keep the default, which is
    /// the operating system's random generator: if two executors draw the same owner, the protocol treats them as one.
    pub fn owner_source(mut self, draw: impl Fn() -> Result<Owner, Error> + Send + Sync + 'static) -> Self {
        self.owners = Arc::new(draw);
        self
    }

    /// Checks everything and builds the [`Idempotency`]. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a duration that's zero or out of bounds, a local cache of less than 64 KiB (except
    /// 0), an empty or malformed name, a function whose name is neither given nor in the environment, a mode other
    /// than [`Mode::Enforce`] where the environment has `IDEMPOTENCY_REQUIRED=1` (except [`Mode::Off`] with
    /// `IDEMPOTENCY_MODE=off!`), or a mode other than [`Mode::Off`]
    /// after [`Idempotency::builder_from_env`] where the environment names no store.
    pub fn build(self) -> Result<Idempotency, Error> {
        self.build_in(|name| std::env::var(name).ok())
    }

    /// Like [`build`](Self::build), but reads the variables through `environment`.
    pub(super) fn build_in(
        self,
        environment: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Idempotency, Error> {
        let variable = |name| environment(name).filter(|value| !value.is_empty());
        self.settings.validate()?;
        let function = match self.function {
            Some(function) => function,
            None => variable("AWS_LAMBDA_FUNCTION_NAME").ok_or_else(no_function)?,
        };
        Scope::new(&function, "x")?;
        let is_required = is_required(variable(REQUIRED))?;
        let is_overridden =
            is_required && self.settings.mode == Mode::Off && variable(MODE).as_deref() == Some(OFF_ANYWAY);
        if is_overridden {
            observe::required_overridden();
        }
        let is_required = is_required && !is_overridden;
        check_store(self.settings.mode, self.lacks_store)?;
        switch(self.settings.mode, is_required)?;
        let is_snapshotted = is_snapshotted(&environment);
        let shared = Shared {
            cache: LocalCache::new(&self.settings, is_snapshotted),
            brake: Brake::default(),
            store: self.store,
            owners: self.owners,
            cipher: self.cipher,
            lacks_store: self.lacks_store,
            is_required,
            is_snapshotted,
            is_in_lambda: variable("AWS_LAMBDA_RUNTIME_API").is_some(),
            no_invocation: std::sync::Once::new(),
            unknown_deadline: std::sync::Once::new(),
        };
        let idempotency = Idempotency {
            driver: Driver {
                span: OperationSpan::none(),
                shared: shared.share(),
                settings: Arc::new(self.settings),
                clock: LaterClock::new(self.clock),
                is_reconciled: false,
            },
            function: function.into(),
            operation: None,
            invocation: None,
            way: Way::default(),
        };
        match self.operation {
            Some(operation) => idempotency.named(&operation),
            None => Ok(idempotency),
        }
    }
}

/// Reads the mode from the environment. `None` if the environment doesn't set it.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for an unknown name.
pub(super) fn mode_in(environment: impl Fn(&'static str) -> Option<String>) -> Result<Option<Mode>, Error> {
    let name = environment(MODE).filter(|name| !name.is_empty());
    let invalid = |error: Error| Error::new(ErrorKind::Invalid, format!("{MODE} is invalid: {error}"));
    let parse = |name: String| match name.as_str() {
        OFF_ANYWAY => Ok(Mode::Off),
        name => name.parse::<Mode>().map_err(invalid),
    };
    name.map(parse).transpose()
}

/// Whether the environment requires that idempotency is enforced.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for anything but `1` and `0`: a misspelt value mustn't disable the guard.
fn is_required(value: Option<String>) -> Result<bool, Error> {
    match value.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err(Error::new(ErrorKind::Invalid, format!("{REQUIRED} is neither 1 nor 0; set it to 1"))),
    }
}

/// Refuses every mode but `off` if the environment names no store. The builder then has only a store in memory, and
/// sandboxes don't share memory.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the mode is refused.
pub(super) fn check_store(mode: Mode, lacks_store: bool) -> Result<(), Error> {
    if !lacks_store || mode == Mode::Off {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "no store is configured, but the mode `{}` needs one (only `off` doesn't); {}",
            mode.as_str(),
            named::HOW_TO_NAME_A_STORE
        ),
    ))
}

/// Refuses a mode without protection if the environment requires enforcement. Otherwise logs a warning about such a
/// mode.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the mode is refused.
pub(super) fn switch(mode: Mode, is_required: bool) -> Result<(), Error> {
    match (mode, is_required) {
        (Mode::Enforce, _) => Ok(()),
        (mode, true) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the mode is `{}`, but {REQUIRED}=1 requires that idempotency is enforced; set the mode to `enforce` \
                 in {MODE}, or in the code that sets it. In an emergency, {MODE}={OFF_ANYWAY} switches protection off \
                 anyway",
                mode.as_str()
            ),
        )),
        (mode, false) => {
            observe::switched(mode);
            Ok(())
        }
    }
}

fn no_function() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the scope has no function name: AWS_LAMBDA_FUNCTION_NAME isn't set; outside Lambda, set it, or name the function in code",
    )
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("store", &self.store)
            .field("function", &self.function)
            .field("operation", &self.operation)
            .field("cipher", &self.cipher)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
