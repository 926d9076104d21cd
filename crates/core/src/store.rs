//! The [`Store`] contract: the operations that the library needs from a database.

mod admin;
mod builder;
mod caller;
mod cipher;
mod codec;
mod error;
pub mod memory;
mod parameter;
mod put;
pub(crate) mod random;
mod serialized;
pub mod toolkit;

pub use admin::{Page, TableProblem};
pub use builder::StoreBuilder;
pub use caller::CallerTransactions;
pub use cipher::Cipher;
pub use error::{StoreError, StoreErrorKind};
pub use put::{Put, PutOutcome};

pub use crate::{
    format::{Format, Json},
    future::BoxFuture,
    outcome::{Outcome, Place, StoredResponse},
    record::{Generation, Lock, Mark, Owner, RECORD_VERSION, Record, State, Status},
};

use std::{any::Any, fmt, sync::Arc};

use bytes::Bytes;

use crate::{key::StoredKey, outcome::WORTH_COMPRESSING, time::Timestamp};

/// A conditional key-value map. It has no clock and makes no decisions.
///
/// All rules live in one pure state machine, which decides on each write and its condition. A store applies
/// that write in one atomic step, or returns the record that made the condition fail.
///
/// # Contract
///
/// - [`put`](Self::put) applies the put if and only if its condition holds, in one atomic step for the
///   key. [`Put::apply_to`] defines the condition and the resulting record. A store that reads and writes
///   under its own lock can call `apply_to`. Other stores send each write as a conditional request.
/// - When the condition fails, nothing changes. The answer contains the record that the condition was checked
///   against, if there was one.
/// - [`read`](Self::read) is strongly consistent: it sees every write that the store answered before the read began.
/// - Every field reads back equal to what was stored.
/// - A store never judges or removes a record by its age. Only a sweeper may remove a record: at its `expires_at` or
///   later, and for no other reason.
///
/// # Errors
///
/// An error is *ambiguous* if the write may have been applied, or may still be applied later. Examples are a timeout,
/// a lost connection, and an answer that doesn't say whether the write was applied. Mark such an error with
/// [`StoreError::maybe_applied`], even if only one of several attempts inside the store was ambiguous. A failed
/// condition isn't an error, and is always definite.
///
/// A record that can't be decoded is [`StoreErrorKind::Corrupt`], never absent.
///
/// # Cancel safety
///
/// If the future is dropped, the write may have been applied, may be applied later, or may never be applied.
///
/// # Example
///
/// [`MemoryStore`](memory::MemoryStore) implements the contract in a few lines. `conformance::check` (feature
/// `conformance`) tests your own store.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Stores `put`'s record under `key` if the condition holds.
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>>;

    /// Reads the record of `key`, strongly consistent.
    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// Returns the capability to store a large response beside the record, if this store has it. Without this
    /// capability, every response is stored in the record, whatever its size.
    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        None
    }

    /// Returns the capability to settle a record together with the handler's own writes in one transaction, if this
    /// store has it.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }

    /// The length in bytes from which a response of `key` is compressed. A store that bills records in units returns the
    /// length that no longer fits into the first unit. A response below 1,024 bytes stays compressed only if it then
    /// fits.
    fn compress_from(&self, key: &StoredKey) -> usize {
        let _ = key;
        WORTH_COMPRESSING
    }

    /// Stops using the connections that are open now. A call that already runs may end on its connection, and the next
    /// call connects again. Sends no request. By default, does nothing.
    ///
    /// After a process was restored from a snapshot of its memory, its connections look alive, but the server doesn't
    /// know them. A request on one may wait for its timeout. A store that forwards to another forwards this call too.
    fn close_connections(&self) {}
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        (**self).put(key, put)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        (**self).read(key)
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        (**self).chunks()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        (**self).transactions()
    }

    fn compress_from(&self, key: &StoredKey) -> usize {
        (**self).compress_from(key)
    }

    fn close_connections(&self) {
        (**self).close_connections();
    }
}

/// Optional store capability: if a response is too large for the record, stores it in chunks beside the record.
///
/// The library writes the chunks before the completion that makes them visible, and reads them when a replay
/// needs them.
pub trait ResponseChunks: Send + Sync {
    /// The size limit for a response inside the record, in stored bytes (after compression and encryption).
    fn inline_limit(&self) -> usize;

    /// Writes `bytes` beside `key` in chunks that belong only to `owner`, and returns the number of chunks. They're
    /// kept until a day after `expires_at`. Writing the same bytes again is harmless. If `owner` writes other bytes
    /// later, they may replace the earlier ones, because no record refers to the earlier ones.
    ///
    /// # Errors
    ///
    /// If a chunk couldn't be written. The completion then records the response as not retained.
    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Reads the bytes that `owner` wrote into `count` chunks beside `key`, at most `limit` bytes. The reads are
    /// strongly consistent. For an encrypted response, `limit` is [`u64::MAX`], because the ciphertext's length isn't
    /// recorded. So don't allocate `limit` bytes in advance.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Corrupt`] if a chunk is missing or there are more bytes than `limit`.
    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>>;
}

/// The handler's own writes, in the store's own type; for DynamoDB, `store::dynamodb::Transaction`.
///
/// The store's type implements `+=`, which appends more writes.
pub type OwnWrites = dyn Any + Send + Sync;

/// Optional store capability: applies a protocol write and the handler's own writes in one transaction, all or
/// nothing.
pub trait Transactions: Send + Sync {
    /// Checks, before anything is sent, whether `writes` can go into one transaction with a write to the record
    /// of `key`.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Rejected`], with the reason: the writes have another store's type, there are too many, they're
    /// too large, two of them are for the same item, or one of them is for the record itself.
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError>;

    /// Applies `write` to `key` together with `writes`, if all their conditions hold. Otherwise applies
    /// nothing.
    ///
    /// `token` identifies this transaction, in at most 36 characters. A transaction that was already applied
    /// under this token isn't applied again, and gets the same answer. Reuse a token only with the same `write`
    /// and `writes`.
    ///
    /// # Errors
    ///
    /// As [`Store::put`]. If the record's condition fails, the returned record shows whether an earlier attempt
    /// inside the store was applied. A failed condition of the handler's writes doesn't show this. So if an earlier
    /// attempt was ambiguous, the result is an ambiguous error instead of [`CommitOutcome::Declined`].
    ///
    /// [`StoreErrorKind::Conflict`] means that another transaction is using one of the items. If the error is marked
    /// [`maybe_applied`](StoreError::maybe_applied), that other transaction may be an earlier attempt of this call.
    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>>;

    /// Applies `writes` alone, without a record, if all their conditions hold. Otherwise applies nothing. The
    /// library calls this method while idempotency isn't enforced ([`Mode`](crate::settings::Mode)).
    ///
    /// `token` identifies this transaction as in [`commit`](Self::commit). If the writes were applied, the answer is
    /// [`CommitOutcome::Answered`] with [`PutOutcome::Applied`].
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit). The default implementation writes nothing, and returns
    /// [`StoreErrorKind::Rejected`].
    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let _ = (writes, token);
        let error = StoreError::new(
            StoreErrorKind::Rejected,
            "this store commits a handler's writes only together with a record, so idempotency must be enforced",
        );
        Box::pin(std::future::ready(Err(error)))
    }
}

/// The store's answer to a transaction.
#[derive(Debug)]
#[must_use]
pub enum CommitOutcome {
    /// The result of the write to the record. If the record's condition failed, nothing was written. The answer is then
    /// this variant even if one of the handler's conditions failed too.
    Answered(PutOutcome),
    /// The record's condition held, but one of the handler's conditions failed. Nothing was written, and no
    /// attempt of this call is still on its way. The value holds the details, in the store's own type.
    Declined(Box<dyn Any + Send + Sync>),
}
