//! The context of a handler's future: its invocation, its claim, and what nested operations inherit from it.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{
    error::Error,
    invocation::Invocation,
    key::StoredKey,
    run::{handle::ClaimHandle, staging::Staging},
};

/// The context of a handler's future.
#[derive(Clone, Debug)]
pub(crate) struct OperationContext {
    pub(crate) invocation: Invocation,
    pub(crate) claim: Option<ClaimHandle>,
    pub(crate) staging: Option<Staging>,
    pub(crate) refusals: Refusals,
    pub(crate) running: Option<Arc<Running>>,
}

/// The operations that the calling code runs inside of, innermost first.
#[derive(Debug)]
pub(crate) struct Running {
    key: StoredKey,
    outer: Option<Arc<Self>>,
}

impl Running {
    /// Returns the operations that the calling code runs inside of, with the operation of `key` as the innermost.
    pub(crate) fn inside(key: StoredKey) -> Arc<Self> {
        Arc::new(Self { key, outer: outer() })
    }
}

/// Returns the operations that the calling code runs inside of, if any.
fn outer() -> Option<Arc<Running>> {
    CURRENT.try_with(|context| context.running.clone()).ok().flatten()
}

/// Refuses an operation inside itself: it would wait for itself, and report that another delivery is running.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
pub(crate) fn refuse_within_itself(key: &StoredKey) -> Result<(), Error> {
    let mut running = outer();
    while let Some(operation) = running {
        if operation.key == *key {
            return Err(Error::misuse(format!(
                "{key}: this call is inside the same operation, which this invocation already runs: either two layers \
                     wrap one handler, or a step has the key and the name of the operation around it. Leave one layer \
                     out, or name the step with `operation(…)`"
            )));
        }
        running = operation.outer.clone();
    }
    Ok(())
}

impl OperationContext {
    /// Returns the context of an unprotected handler.
    pub(crate) fn unprotected(invocation: Invocation) -> Self {
        Self { invocation, claim: None, staging: None, refusals: Refusals::inside(), running: outer() }
    }
}

/// The library's own retryable errors that nested operations returned to a handler. The library keeps only weak
/// references to them. If such an error still exists when the handler has returned, the library assumes that the
/// handler's result contains it. If the handler fails, the next outer operation watches the error from then on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    watched: Arc<Mutex<Vec<Weak<()>>>>,
    outer: Option<Arc<Self>>,
}

impl Refusals {
    /// Returns an empty `Refusals` for a new handler, nested inside the calling code's context.
    pub(crate) fn inside() -> Self {
        let outer = CURRENT.try_with(|context| Arc::new(context.refusals.clone())).ok();
        Self { watched: Arc::default(), outer }
    }

    /// Whether the handler runs inside another handler's context.
    #[cfg(feature = "testing")]
    pub(crate) fn is_nested(&self) -> bool {
        self.outer.is_some()
    }

    fn watch(&self, error: Error) -> Error {
        if !error.is_retryable() {
            return error;
        }
        let (error, watched) = error.watched();
        self.add([watched]);
        error
    }

    fn add(&self, errors: impl IntoIterator<Item = Weak<()>>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|error| error.strong_count() > 0);
        watched.extend(errors);
    }

    /// Notes that the handler failed, and that its error isn't recorded. The handler's error may contain a nested
    /// step's error that the handler kept. So the next outer operation watches the kept errors from now on.
    pub(crate) fn pass_on(&self) {
        let Some(outer) = &self.outer else { return };
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        outer.add(watched.into_iter().filter(|error| error.strong_count() > 0));
    }

    /// Whether one of these errors still exists, which means that the handler kept it.
    pub(crate) fn is_any_kept(&self) -> bool {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().any(|error| error.strong_count() > 0)
    }
}

/// Registers a nested operation's error, because the handler that called the operation may pass the error on.
pub(crate) fn refused_within(error: Error) -> Error {
    match surrounding() {
        Some(context) => context.refusals.watch(error),
        None => error,
    }
}

tokio::task_local! {
    static CURRENT: OperationContext;
}

/// Returns the calling code's context, if it's inside a wrapped handler.
pub(crate) fn surrounding() -> Option<OperationContext> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs `future` in this context.
pub(crate) fn within<F: Future>(context: OperationContext, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(context, future)
}

impl Invocation {
    /// Returns the invocation that the calling code runs in. A task that a handler spawns has no invocation: call this
    /// before you spawn the task, and pass the result to the task's operations with
    /// [`Idempotency::for_invocation`](crate::Idempotency::for_invocation). Their leases and answers then respect the
    /// deadline, and their keys include the tenant.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Invocation, Key, store::memory::MemoryStore};
    /// # async fn handler(idempotency: Idempotency) {
    /// let idempotency = idempotency.for_invocation(Invocation::current().unwrap_or_default());
    /// tokio::spawn(async move {
    ///     let (mail, key) = (idempotency.operation("mail")?, Key::new("order-17")?);
    ///     mail.run(key, &12, || async { Ok::<_, std::io::Error>("sent".to_owned()) }).await
    /// });
    /// # }
    /// ```
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|context| context.invocation.clone()).ok()
    }
}

/// Returns the claim that the calling handler runs under, if there is one.
///
/// The claim is set only inside the handler's future: pass it on to tasks that the handler spawns.
///
/// ```
/// if let Some(claim) = lambda_idempotency::current() {
///     println!("attempt {} under generation {}", claim.attempt(), claim.generation());
/// }
/// ```
pub fn current() -> Option<ClaimHandle> {
    surrounding().and_then(|context| context.claim)
}

/// Returns the calling handler's [`Staging`], if it's a wrapped handler that runs under a claim or optimistically.
///
/// The `Staging` is set only inside the handler's future: pass it on to tasks that the handler spawns. For HTTP,
/// it's in the request's extensions too.
///
/// ```
/// # #[cfg(feature = "dynamodb")] {
/// use aws_sdk_dynamodb::types::{AttributeValue, Update};
/// use lambda_idempotency::{Idempotency, Key, RunError, staging, store::dynamodb::Transaction};
///
/// type Error = Box<dyn std::error::Error + Send + Sync>;
///
/// /// Withdraws the money and records the receipt: both or neither, and exactly once.
/// async fn pay(idempotency: &Idempotency, account: &str, cents: u64) -> Result<String, RunError<Error>> {
///     let withdraw = || {
///         Update::builder()
///             .table_name("accounts")
///             .key("id", AttributeValue::S(account.to_owned()))
///             .update_expression("ADD balance :minus")
///             .condition_expression("balance >= :cents")
///             .expression_attribute_values(":minus", AttributeValue::N(format!("-{cents}")))
///             .expression_attribute_values(":cents", AttributeValue::N(cents.to_string()))
///             .build()
///     };
///     idempotency
///         .operation("withdraw")?
///         .run(Key::new("payment-17")?, &(account, cents), || async {
///             // If staging fails, `?` returns the error, so no receipt is recorded without the withdrawal.
///             let staging = staging().ok_or("this runs without protection")?;
///             staging.add(Transaction::new().update(withdraw()?))?;
///             Ok("receipt 17".to_owned())
///         })
///         .await
/// }
/// # }
/// ```
pub fn staging() -> Option<Staging> {
    surrounding().and_then(|context| context.staging)
}
