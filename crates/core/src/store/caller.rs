//! [`CallerTransactions`]: the capability to keep the record in a transaction of the caller's own.

use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{Put, PutOutcome, Store, StoreError},
};

/// Optional store capability: keeps the record in a transaction of the caller's own, so that the caller's work and its
/// outcome are either both committed or both rolled back.
///
/// [`Operation::run_in`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run_in) and [`Operation::begin_in`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.begin_in) take any
/// store with this trait. The PostgreSQL store has it, and so has a small store in memory, in the repository's
/// `tests/wrappers/own_transactions.rs`.
///
/// # Contract
///
/// - A transaction holds the lock of the key that it has locked until the transaction ends. Meanwhile, no other
///   transaction locks the key or waits for the lock.
/// - Only the transaction itself sees its put before it's committed. From the put to the transaction's end, other writes
///   of the record wait or fail.
/// - A transaction that's dropped is rolled back.
///
/// # Cancel safety
///
/// If the future of a method with a transaction is dropped, the key may stay locked until the transaction ends. A
/// commit whose future is dropped leaves everything committed or rolled back.
pub trait CallerTransactions: Store {
    /// The caller's connection.
    type Connection: Send;

    /// A transaction on the caller's connection.
    type Transaction<'c>: Send + Sync;

    /// Begins a transaction on `connection`.
    ///
    /// # Errors
    ///
    /// If the transaction didn't begin.
    fn begin<'c>(
        &'c self,
        connection: &'c mut Self::Connection,
    ) -> BoxFuture<'c, Result<Self::Transaction<'c>, StoreError>>;

    /// Locks `key` for `transaction` if the lock is free, without waiting, and reads the record. Also returns a number
    /// that identifies the transaction on its connection, for [`put_in`](Self::put_in); for example, the time when it
    /// began.
    ///
    /// The record may be older than the lock: a put based on an older record is refused, and returns the current one.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Conflict`](crate::store::StoreErrorKind::Conflict) if another transaction holds the lock: the
    /// operation is in progress there. The other errors are those of [`Store::read`]. After any error except this
    /// conflict, roll the transaction back.
    fn lock_and_read_in<'a>(
        &'a self,
        transaction: &'a Self::Transaction<'_>,
        key: &'a StoredKey,
    ) -> BoxFuture<'a, Result<(Option<Record>, i64), StoreError>>;

    /// Stores `put`'s record under `key` in `transaction`, if the put's condition holds.
    ///
    /// `since` is the transaction's number, if the key was locked. `None` means that the transaction isn't that one any
    /// more, so that nothing was written: the caller's code has ended it, for example with an SQL statement. A store
    /// whose transactions can't be ended like that ignores `since`.
    ///
    /// # Errors
    ///
    /// As [`Store::put`]. After any error, roll the transaction back.
    fn put_in<'a>(
        &'a self,
        transaction: &'a Self::Transaction<'_>,
        key: &'a StoredKey,
        put: &'a Put,
        since: Option<i64>,
    ) -> BoxFuture<'a, Result<Option<PutOutcome>, StoreError>>;

    /// Commits `transaction`. `after_put` says that the transaction's last statement was a put that was applied. So
    /// nothing in the transaction has failed.
    ///
    /// # Errors
    ///
    /// As [`Store::put`]. If the answer was lost, the error is marked as ambiguous.
    /// [`StoreErrorKind::Rejected`](crate::store::StoreErrorKind::Rejected) if an earlier statement of the transaction
    /// failed: nothing was written.
    fn commit<'c>(
        &'c self,
        transaction: Self::Transaction<'c>,
        after_put: bool,
    ) -> BoxFuture<'c, Result<(), StoreError>>;

    /// Rolls `transaction` back, and waits for the answer.
    ///
    /// # Errors
    ///
    /// If the rollback wasn't confirmed. The transaction is never committed.
    fn roll_back<'c>(&'c self, transaction: Self::Transaction<'c>) -> BoxFuture<'c, Result<(), StoreError>>;

    /// Reads the record of `key`, if no transaction holds the key's lock, over another connection than the caller's.
    /// The library calls it after a commit whose answer was lost, until the transaction has ended.
    ///
    /// As in [`lock_and_read_in`](Self::lock_and_read_in), the record may be older than the moment when the lock was
    /// free.
    ///
    /// # Errors
    ///
    /// As [`lock_and_read_in`](Self::lock_and_read_in).
    fn look<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;
}
