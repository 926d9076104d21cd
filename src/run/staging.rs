//! [`Staging`]: collects the handler's writes, to commit them with its outcome.

use std::{
    any::Any,
    fmt,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    error::{Error, ErrorKind},
    key::StoredKey,
    store::{OwnWrites, Store, StoreError},
};

/// The error for transactional writes to a store that doesn't have [`Transactions`](crate::store::Transactions).
pub(super) const NO_TRANSACTIONS: &str = "this store doesn't support transactional writes";

/// A handler's answer, of any type.
pub(crate) type AnyAnswer = Box<dyn Any + Send>;
/// The closure that answers in place of the handler if a condition of its writes fails. `None` if the closure takes
/// another type of details.
pub(crate) type OnDeclined = Box<dyn FnOnce(&(dyn Any + Send + Sync)) -> Option<AnyAnswer> + Send>;

/// Collects the handler's writes, to commit them with its outcome. When the handler returns, the library
/// commits them in one transaction: all or nothing.
///
/// So the effects of these writes happen exactly once, even if a process dies. The handler's other effects may happen
/// again.
///
/// The writes are committed only if the handler's result is recorded as a success. If the handler fails, panics or
/// is cut off, or its HTTP response isn't recorded, the writes are dropped.
///
/// Cheap to clone; you can pass it on to tasks that the handler waits for. See [`staging`](crate::staging())
/// for an example.
#[derive(Clone)]
pub struct Staging {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    key: StoredKey,
    slot: Mutex<Slot>,
}

/// The writes so far, and whether more are accepted.
#[derive(Default)]
struct Slot {
    staged: Staged,
    is_closed: bool,
}

/// The writes and the closure that a handler has staged.
#[derive(Default)]
pub(crate) struct Staged {
    pub(crate) writes: Option<Box<OwnWrites>>,
    pub(crate) on_declined: Option<OnDeclined>,
}

impl Staging {
    pub(crate) fn new(store: Arc<dyn Store>, key: StoredKey) -> Self {
        Self { shared: Arc::new(Shared { store, key, slot: Mutex::default() }) }
    }

    /// Adds these writes to those already staged.
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
    /// [`ErrorKind::Invalid`], and nothing is added, in these cases:
    ///
    /// - The store doesn't support transactions, or doesn't support writes of this type.
    /// - There are too many writes, or they're too large.
    /// - Two writes are for the same item, or a write is for the record itself.
    /// - The handler has returned.
    pub fn add<W: AddAssign + Any + Clone + Send + Sync>(&self, writes: W) -> Result<(), Error> {
        let mut slot = self.slot();
        if slot.is_closed {
            return Err(self.invalid(
                "the handler has returned, and its writes are being committed; stage writes before it returns",
            ));
        }
        let Some(transactions) = self.shared.store.transactions() else {
            return Err(self.invalid(NO_TRANSACTIONS));
        };
        let all = match slot.staged.writes.as_deref() {
            None => writes,
            Some(there) => {
                let there: &dyn Any = there;
                let Some(there) = there.downcast_ref::<W>() else {
                    return Err(self.invalid("writes of another type are already staged"));
                };
                let mut all = there.clone();
                all += writes;
                all
            }
        };
        transactions.check(&self.shared.key, &all).map_err(|error| self.refused(&error))?;
        slot.staged.writes = Some(Box::new(all));
        Ok(())
    }

    /// Sets the closure that answers in place of the handler if a condition of its writes fails.
    ///
    /// The library calls the closure at most once. The rejected transaction wrote nothing. If an earlier attempt at
    /// this transaction is applied after all, its outcome counts, and the closure's answer is dropped. The closure gets
    /// the store's details (for DynamoDB, [`Declined`](crate::store::dynamodb::Declined): the failed conditions, and
    /// the items that made them fail, if you asked for the items). It returns a value of the handler's output type, and
    /// may stage new writes and a new closure.
    ///
    /// Without a closure, the wrapper treats a failed condition as a handler error, and answers with
    /// [`ErrorKind::Declined`].
    ///
    /// The closure's answer is judged like the handler's own result: an HTTP response of a status that isn't
    /// recorded, such as 409, releases the key, unless it carries
    /// [`Recording::Record`](crate::settings::Recording).
    ///
    /// `D` is the type of the store's details, and `T` the output type of the wrapped handler's future: a `Result` for
    /// [`run`](crate::Operation::run) and a layered service. A wrong type shows up only when the closure is
    /// needed: the caller gets [`ErrorKind::Invalid`] (over HTTP, 500 `misconfigured`), and the library logs the
    /// expected type at ERROR.
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

    /// Whether the handler has staged writes.
    pub(crate) fn has_writes(&self) -> bool {
        self.slot().staged.writes.is_some()
    }

    /// Returns the staged writes, and accepts no more.
    pub(crate) fn close(&self) -> Staged {
        let mut slot = self.slot();
        slot.is_closed = true;
        std::mem::take(&mut slot.staged)
    }

    /// Accepts writes again, while the `on_declined` closure runs.
    pub(crate) fn reopen(&self) {
        self.slot().is_closed = false;
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // A poisoned lock's content is consistent: no code between two related changes can panic.
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
    /// Shows the key, never the writes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot();
        f.debug_struct("Staging")
            .field("key", &self.shared.key)
            .field("has_writes", &slot.staged.writes.is_some())
            .field("is_closed", &slot.is_closed)
            .finish_non_exhaustive()
    }
}
