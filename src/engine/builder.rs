//! Builds an [`Idempotency`]: components given, settings defaulted, mistakes refused.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    engine::{Engine, Idempotency, OwnerSource},
    error::{Error, ErrorKind},
    key::Scope,
    policy::{Execution, OnHandlerError, OnInProgress, OnStoreFailure, Platform, Settings},
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

    /// The operation's name in the scope, where a function has more than one. Default: none.
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

    /// See [`Settings::platform`].
    pub fn platform(mut self, platform: Platform) -> Self {
        self.settings.platform = platform;
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
    /// [`ErrorKind::Invalid`] for a duration of zero, an empty or malformed name, or a function whose
    /// name is neither given nor in the environment.
    pub fn build(self) -> Result<Idempotency, Error> {
        self.build_in(|name| std::env::var(name).ok())
    }

    /// [`build`](Self::build), in an environment with these variables.
    pub(super) fn build_in(
        mut self,
        environment: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Idempotency, Error> {
        let variable = |name| environment(name).filter(|value| !value.is_empty());
        self.settings.validate()?;
        self.settings.platform = self.settings.platform.resolved(
            variable("AWS_LAMBDA_INITIALIZATION_TYPE").as_deref(),
            variable("AWS_LAMBDA_MAX_CONCURRENCY").as_deref(),
        );
        let function = match self.function {
            Some(function) => function,
            None => variable("AWS_LAMBDA_FUNCTION_NAME").ok_or_else(no_function)?,
        };
        Scope::new(&function, "x")?;
        let engine = Engine {
            store: self.store,
            clock: self.clock,
            owners: self.owners,
            settings: self.settings,
            function,
        };
        let idempotency = Idempotency { engine: Arc::new(engine), operation: None, invocation: None };
        match self.operation {
            Some(operation) => idempotency.operation(operation),
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
