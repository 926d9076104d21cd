//! The context of a handler's future: its invocation, its claim, and what nested operations inherit from it.

use std::{future::Future, sync::Arc};

use crate::{
    error::Error,
    internal::ErrorExt as _,
    invocation::{Invocation, Refusals},
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
        let refusals = Refusals::inside(refusals_around(&invocation));
        Self { invocation, claim: None, staging: None, refusals, running: outer() }
    }
}

/// Returns the refused steps of the run that an operation in `invocation` is a step of. A task that the run spawned
/// gets them with the invocation.
pub(crate) fn refusals_around(invocation: &Invocation) -> Option<Refusals> {
    let around = CURRENT.try_with(|context| context.refusals.clone()).ok();
    around.or_else(|| invocation.refusals().cloned())
}

/// Notes that a step begins a new attempt.
pub(crate) fn attempting(invocation: &Invocation, step: &StoredKey) {
    if let Some(refusals) = refusals_around(invocation) {
        refusals.note(step, false);
    }
}

/// Notes that a step's attempt ended with this error of the library, and returns the error.
pub(crate) fn refused_within(invocation: &Invocation, step: &StoredKey, error: Error) -> Error {
    if let Some(refusals) = refusals_around(invocation).filter(|_| error.may_pass()) {
        refusals.note(step, true);
    }
    error.of_step()
}

tokio::task_local! {
    static CURRENT: OperationContext;
}

/// Returns the calling code's context, if it's inside a wrapped handler.
pub(crate) fn surrounding() -> Option<OperationContext> {
    CURRENT.try_with(Clone::clone).ok()
}

/// The operation that a handler belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerOf {
    /// The outermost operation, or no operation at all.
    Invocation,
    /// An operation inside another handler.
    Step,
}

/// Returns the operation that the calling handler belongs to. `None` outside of handlers.
pub fn handler() -> Option<HandlerOf> {
    let context = surrounding()?;
    Some(if context.refusals.is_nested() { HandlerOf::Step } else { HandlerOf::Invocation })
}

/// Runs an unprotected handler in `invocation`.
pub fn in_invocation<F: Future>(invocation: Invocation, handler: F) -> impl Future<Output = F::Output> {
    within(OperationContext::unprotected(invocation), handler)
}

/// Runs `future` in this context.
pub(crate) fn within<F: Future>(mut context: OperationContext, future: F) -> impl Future<Output = F::Output> {
    context.invocation = context.invocation.noting(context.refusals.clone());
    CURRENT.scope(context, future)
}

impl Invocation {
    /// Returns the invocation that the calling code runs in. A task that a handler spawns has no invocation: call this
    /// before you spawn the task, and pass the result to the task's operations with
    /// [`Idempotency::for_invocation`](crate::Idempotency::for_invocation). Their leases and answers then respect the
    /// deadline, their keys include the tenant, and they count as the handler's steps if the handler
    /// [fails](crate::settings::Settings::on_handler_error).
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
/// ```
pub fn staging() -> Option<Staging> {
    surrounding().and_then(|context| context.staging)
}
