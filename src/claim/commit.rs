//! Settles a claim together with the handler's own writes, for code that holds the claim itself.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Claim, Extended, Replay, Turned};
use crate::{
    engine::{Verdict, in_progress, not_made, refusal_error},
    error::{Error, ErrorKind},
    observe,
    protocol::{Decline, End, Refusal},
    store::{StoreErrorKind, Writes},
};

/// How [`Claim::commit`] ended, when it didn't fail.
#[derive(Debug)]
#[must_use = "a transaction that was not made leaves the claim held"]
pub enum Settled {
    /// The outcome and the writes are stored.
    Recorded,
    /// The claim had been taken over, and the successor settled first: answer with its outcome. This
    /// transaction wrote nothing.
    Superseded(Replay),
    /// Nothing was written, and the claim is still held.
    NotCommitted(NotCommitted),
}

/// A transaction that was definitely not applied, and the claim, which is still held.
#[must_use = "the claim is still held"]
pub struct NotCommitted {
    claim: Box<Claim>,
    error: Error,
    details: Option<Box<dyn Any + Send + Sync>>,
}

impl NotCommitted {
    /// The reason. [`ErrorKind::Declined`]: a condition of the handler's writes failed.
    /// [`ErrorKind::Invalid`]: the store doesn't accept these writes. [`ErrorKind::Unavailable`]: the store
    /// couldn't apply them, or every attempt conflicted.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The store's details about a failed condition of the handler's writes. For DynamoDB it's a
    /// [`Declined`](crate::store::dynamodb::Declined).
    pub fn details<D: Any>(&self) -> Option<&D> {
        let details: &dyn Any = self.details.as_deref()?;
        details.downcast_ref()
    }

    /// Returns the claim, to settle it in another way.
    pub fn into_claim(self) -> Claim {
        *self.claim
    }
}

impl fmt::Debug for NotCommitted {
    /// Shows the reason, never the store's details.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotCommitted")
            .field("claim", &self.claim)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Claim {
    /// T8: stores `response` as the operation's outcome and commits `writes`, in one transaction: all or nothing.
    ///
    /// If the answer is lost, the library sends the same transaction again under the same token, for which
    /// DynamoDB repeats its first answer for ten minutes ("TransactWriteItems", API reference). Then it reads
    /// the record, which has the outcome if, and only if, the writes were applied.
    ///
    /// ```
    /// # use lambda_idempotency::{Begun, Settled, Error, Idempotency, Key, Fingerprint};
    /// # use lambda_idempotency::store::dynamodb::{Declined, Transaction};
    /// # async fn example(idempotency: Idempotency, withdraw: aws_sdk_dynamodb::types::Update) -> Result<(), Error> {
    /// let Begun::Claimed(claim) = idempotency.operation("pay")?.begin(Key::new("payment-17")?, Fingerprint::of(&12)?).await? else {
    ///     return Ok(());
    /// };
    /// match claim.commit("receipt 17", Transaction::new().update(withdraw)).await? {
    ///     Settled::Recorded => println!("paid"),
    ///     Settled::Superseded(replay) => println!("paid by another run: {:?}", replay.response()),
    ///     Settled::NotCommitted(not_made) if not_made.details::<Declined>().is_some() => {
    ///         let _ = not_made.into_claim().complete("not enough money").await?;
    ///     }
    ///     Settled::NotCommitted(not_made) => not_made.into_claim().release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`] or [`ErrorKind::NotRetained`]: as [`complete`](Self::complete); nothing was written.
    /// - [`ErrorKind::InProgress`]: it's unknown whether the transaction was applied. A retry gets its
    ///   outcome, or another claim once this one is stale, which fences the transaction if it's still on its
    ///   way. So retrying is safe.
    /// - Any other: the claim was lost, and the key is now used for something else; nothing was written.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves everything written, nothing written, or the write still on its way; the
    /// lease frees the key.
    pub async fn commit<W: Writes>(self, response: impl Into<Bytes>, writes: W) -> Result<Settled, Error> {
        let (engine, key, answer_by) = (Arc::clone(self.engine()), self.key().clone(), self.answer_by());
        let checked = match engine.store.transactions() {
            Some(transactions) => transactions.check(&key, &writes).err(),
            None => None,
        };
        if let Some(wrong) = checked {
            let error = not_made(&key, Decline::Store(StoreErrorKind::Rejected), Some(wrong));
            return Ok(Settled::NotCommitted(NotCommitted { claim: Box::new(self), error, details: None }));
        }
        let settled = match self.settle_with(Verdict::Complete(response.into()), &writes).await {
            Ok(settled) => settled,
            Err(Turned { right: claim, why, details, store_error }) => {
                let error = not_made(&key, why, store_error);
                observe::not_committed(&key, &error);
                return Ok(Settled::NotCommitted(NotCommitted { claim: Box::new(claim), error, details }));
            }
        };
        match settled.end {
            End::Recorded => Ok(Settled::Recorded),
            End::Superseded(record) => {
                let outcome = engine.successors_outcome(&key, &record, ErrorKind::Fenced, answer_by).await;
                outcome.map(Settled::Superseded)
            }
            End::Fenced(_) => Err(super::settle_error(&key, End::Fenced(None), settled.store_error)),
            End::Unresolved(until) => Err(engine.unresolved(&key, until, settled.store_error)),
            End::Unrecorded(Refusal::InProgress(until)) | End::NotCommitted(Refusal::InProgress(until)) => {
                Err(in_progress(&key, until, engine.clock.now()))
            }
            End::Unrecorded(refusal) | End::NotCommitted(refusal) => {
                Err(refusal_error(&key, refusal, settled.store_error, engine.clock.now()))
            }
        }
    }

    /// T7: extends the lease to `length` from now, for work that takes longer than its lease. It never
    /// shortens a lease. The wrappers do this automatically if
    /// [`Settings::lease_extension`](crate::settings::Settings::lease_extension) is set.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: the claim has been taken over. Stop.
    /// - [`ErrorKind::Unavailable`]: the lease couldn't be extended now, and is unchanged: try again before
    ///   it ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lease extended or unchanged; it's never shorter than before.
    pub async fn extend(&mut self, length: Duration) -> Result<(), Error> {
        let until = self.engine().clock.now().saturating_add(length);
        if until <= self.held().lease_until {
            return Ok(());
        }
        match self.extend_until(until).await {
            Extended::Until(_) => Ok(()),
            Extended::Lost => Err(super::settle_error(self.key(), End::Fenced(None), None)),
            Extended::NotNow => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{}: the lease could not be extended just now; it stands as before", self.key()),
            )),
        }
    }
}
