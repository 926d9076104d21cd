//! [`Staging`]: where a handler lays down writes of its own, to be made together with its outcome.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    error::{Error, ErrorKind},
    invocation,
    key::StoredKey,
    store::{OwnWrites, Store, StoreError, Writes},
};

/// A handler's answer, of whatever type the handler has.
pub(crate) type AnyAnswer = Box<dyn Any + Send>;
/// What a handler says when one of its own conditions has failed.
pub(crate) type OnDeclined = Box<dyn FnOnce(&(dyn Any + Send + Sync)) -> Option<AnyAnswer> + Send>;

/// Where the calling handler lays down writes of its own. When it returns, they are committed together with its
/// outcome, in one transaction: either all of it is there afterwards, or nothing is.
///
/// So their effects happen exactly once, wherever a process dies. That holds for these writes alone: what the handler
/// does besides may happen again.
///
/// They are made only if the handler's result is recorded as a success. If it fails, panics or is cut off, or its HTTP
/// response is one that is not recorded, they are dropped.
///
/// Cheap to clone; it may be passed on to tasks that the handler waits for. See [`staging`] for an example.
#[derive(Clone)]
pub struct Staging {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    key: StoredKey,
    slot: Mutex<Slot>,
}

/// What was laid down so far.
#[derive(Default)]
struct Slot {
    staged: Staged,
    is_closed: bool,
}

/// What a handler has laid down.
#[derive(Default)]
pub(crate) struct Staged {
    pub(crate) writes: Option<Box<OwnWrites>>,
    pub(crate) on_declined: Option<OnDeclined>,
}

impl Staging {
    pub(crate) fn new(store: Arc<dyn Store>, key: StoredKey) -> Self {
        Self { shared: Arc::new(Shared { store, key, slot: Mutex::default() }) }
    }

    /// Adds these writes to those that are there.
    ///
    /// ```
    /// # use aws_sdk_dynamodb::types::{AttributeValue, Put};
    /// # use lambda_idempotency::{Staging, store::dynamodb::Transaction};
    /// # fn example(staging: Staging) -> Result<(), Box<dyn std::error::Error>> {
    /// let id = AttributeValue::S("order-17".to_owned());
    /// let order = Put::builder().table_name("orders").item("id", id).build()?;
    /// staging.add(Transaction::new().put(order))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`], and nothing is added: the store makes no transactions, or not with such writes; there are
    /// more than it takes, or larger ones; two are on one item, or one is on the record itself; or the handler has
    /// returned.
    pub fn add<W: Writes>(&self, writes: W) -> Result<(), Error> {
        let mut slot = self.slot();
        if slot.is_closed {
            return Err(self.invalid(
                "the handler has returned, so that its writes are on their way; stage them before",
            ));
        }
        let Some(transactions) = self.shared.store.transactions() else {
            return Err(self.invalid("this store makes no transactions with writes of a handler's own"));
        };
        let all = match slot.staged.writes.as_deref() {
            None => writes,
            Some(there) => {
                let there: &dyn Any = there;
                let Some(there) = there.downcast_ref::<W>() else {
                    return Err(self.invalid("writes of another type are staged already"));
                };
                let mut all = there.clone();
                all.append(writes);
                all
            }
        };
        transactions.check(&self.shared.key, &all).map_err(|error| self.refused(&error))?;
        slot.staged.writes = Some(Box::new(all));
        Ok(())
    }

    /// What the handler answers if a condition of its own writes fails, in place of what it has returned. Nothing was
    /// written then. It is called at most once, gets what the store tells (for DynamoDB,
    /// [`Declined`](crate::store::dynamodb::Declined): which conditions failed, and the items that they met if they were
    /// asked for), and returns what the handler returns; it may stage writes anew, and a closure anew.
    ///
    /// Without one, the wrapper treats it as an error of the handler's, and answers with
    /// [`ErrorKind::Declined`].
    ///
    /// What it answers is judged as the handler's own result is: an HTTP response of a status that is not recorded, such as
    /// 409, gives the key back, unless it carries [`Recording::Record`](crate::lambda::http::Recording).
    ///
    /// `D` is the store's type, and `T` the type that the wrapped handler's future has: for
    /// [`run`](crate::Operation::run) and a layered service a `Result`. Another one is found out when it is needed,
    /// and is [`ErrorKind::Invalid`] (over HTTP, 500 `misconfigured`), with the expected type in a log line at ERROR.
    ///
    /// ```
    /// # use lambda_idempotency::{Staging, store::dynamodb::Declined};
    /// # fn example(staging: &Staging) {
    /// staging.on_declined(|declined: &Declined| -> Result<String, std::io::Error> {
    ///     Ok(format!("sold out ({} conditions failed)", declined.conditions().len()))
    /// });
    /// # }
    /// ```
    pub fn on_declined<D, T>(&self, answer: impl FnOnce(&D) -> T + Send + 'static)
    where
        D: Any + Send + Sync,
        T: Any + Send,
    {
        let answer: OnDeclined = Box::new(move |details| {
            let details: &dyn Any = details;
            details.downcast_ref::<D>().map(|details| Box::new(answer(details)) as AnyAnswer)
        });
        self.slot().staged.on_declined = Some(answer);
    }

    /// What was laid down. From here on nothing more is taken.
    pub(crate) fn close(&self) -> Staged {
        let mut slot = self.slot();
        slot.is_closed = true;
        std::mem::take(&mut slot.staged)
    }

    /// Takes writes again: the handler has another word.
    pub(crate) fn reopen(&self) {
        self.slot().is_closed = false;
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Nothing panics between two changes that belong together.
        self.shared.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn invalid(&self, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {why}", self.shared.key))
    }

    fn refused(&self, error: &StoreError) -> Error {
        self.invalid(&error.to_string())
    }
}

impl fmt::Debug for Staging {
    /// Shows whose it is, never what was laid down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot();
        f.debug_struct("Staging")
            .field("key", &self.shared.key)
            .field("has_writes", &slot.staged.writes.is_some())
            .field("is_closed", &slot.is_closed)
            .finish_non_exhaustive()
    }
}

/// Where the calling handler lays down writes of its own, if it is a wrapped one that runs under a claim, or claim-free.
///
/// It is known inside the handler's future, not in tasks that the handler spawns: pass it on to those. For HTTP it is in the
/// request's extensions too.
///
/// ```
/// # #[cfg(feature = "dynamodb")] {
/// use aws_sdk_dynamodb::types::{AttributeValue, Update};
/// use lambda_idempotency::{Idempotency, Key, RunError, staging, store::dynamodb::Transaction};
///
/// type Error = Box<dyn std::error::Error + Send + Sync>;
///
/// /// Takes the money and records the receipt, or neither; and that exactly once.
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
///             // No receipt without the withdrawal: each of these is an error.
///             let staging = staging().ok_or("this runs without protection")?;
///             staging.add(Transaction::new().update(withdraw()?))?;
///             Ok("receipt 17".to_owned())
///         })
///         .await
/// }
/// # }
/// ```
pub fn staging() -> Option<Staging> {
    invocation::current().and_then(|surroundings| surroundings.staging)
}
