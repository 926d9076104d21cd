//! Settles a claim together with the handler's own writes, for code that holds the claim itself.

use std::{any::Any, error::Error as StdError, fmt};

use bytes::Bytes;
use tracing::Instrument as _;

use crate::{
    error::{Error, ErrorKind},
    observe,
    protocol::{Decline, End},
    run::{
        claim::{Claim, Settled},
        driver::Declined,
        refusal::{alone_in_doubt, concluded, declined, fenced},
        response::Verdict,
        staging::NO_TRANSACTIONS,
    },
    store::{StoreError, StoreErrorKind},
};

/// Why [`Claim::commit`] stored neither the outcome nor the writes.
#[derive(Debug)]
#[must_use = "the claim may still be held"]
pub struct NotCommitted {
    error: Error,
    claim: Option<Box<Claim>>,
    details: Option<Details>,
}

/// The store's details about a failed condition. Each store has its own type for them.
struct Details(Box<dyn Any + Send + Sync>);

impl NotCommitted {
    /// The reason; see [`Claim::commit`].
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The store's details about a failed condition of the handler's writes. For DynamoDB it's a
    /// [`Declined`](crate::store::dynamodb::Declined).
    pub fn details<D: Any>(&self) -> Option<&D> {
        let details: &dyn Any = &*self.details.as_ref()?.0;
        details.downcast_ref()
    }

    /// Returns the claim, to settle it in another way.
    ///
    /// # Errors
    ///
    /// The [reason](Self::error), if the claim isn't held anymore.
    pub fn into_claim(self) -> Result<Claim, Error> {
        match self.claim {
            Some(claim) => Ok(*claim),
            None => Err(self.error),
        }
    }
}

impl From<Error> for NotCommitted {
    fn from(error: Error) -> Self {
        Self { error, claim: None, details: None }
    }
}

impl From<NotCommitted> for Error {
    /// Drops the claim, if it's still held.
    fn from(not_committed: NotCommitted) -> Self {
        not_committed.error
    }
}

impl fmt::Display for NotCommitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for NotCommitted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl fmt::Debug for Details {
    /// Shows none of the details, since they may contain items.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Details(…)")
    }
}

impl Claim {
    /// T8: stores `response` as the operation's outcome and commits `writes`, in one transaction: all or nothing.
    ///
    /// If the answer is lost, the library sends the same transaction again under the same token. DynamoDB repeats
    /// its first answer to that token for ten minutes ("TransactWriteItems", API reference). If the repeated answer is
    /// lost too, the library reads the record, which has the outcome if, and only if, the writes were applied.
    ///
    /// ```
    /// # use lambda_idempotency::{Begun, Error, Idempotency, Key, Fingerprint, Settled};
    /// # use lambda_idempotency::store::dynamodb::{Declined, Transaction};
    /// # async fn example(idempotency: Idempotency, withdraw: aws_sdk_dynamodb::types::Update) -> Result<(), Error> {
    /// let Begun::Claimed(claim) = idempotency.operation("pay")?.begin(Key::new("payment-17")?, Fingerprint::of(&12)?).await? else {
    ///     return Ok(());
    /// };
    /// match claim.commit("receipt 17", Transaction::new().update(withdraw)).await {
    ///     Ok(Settled::Recorded) => println!("paid"),
    ///     Ok(Settled::Superseded(replay)) => println!("paid by another run: {:?}", replay.response()),
    ///     Err(not_committed) if not_committed.details::<Declined>().is_some() => {
    ///         let _ = not_committed.into_claim()?.complete("not enough money").await?;
    ///     }
    ///     Err(not_committed) => not_committed.into_claim()?.release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The following errors contain the claim, which is still held: the last attempt wrote nothing. If an earlier
    /// attempt may still be applied, the message says so, and settling the claim either prevents that attempt or finds
    /// its outcome.
    ///
    /// - [`ErrorKind::Declined`]: a condition of the handler's writes failed.
    /// - [`ErrorKind::Invalid`]: the store doesn't accept these writes, or doesn't support transactions.
    /// - [`ErrorKind::Unavailable`]: the store couldn't apply the writes, or every attempt conflicted.
    ///
    /// These errors don't contain the claim:
    ///
    /// - [`ErrorKind::Fenced`] or [`ErrorKind::NotRetained`]: as [`complete`](Self::complete); nothing was written.
    /// - [`ErrorKind::InProgress`]: it's unknown whether the transaction was applied. Retrying is safe: a retry
    ///   gets the transaction's outcome, or a new claim once this claim is stale. The new claim fences
    ///   the transaction, in case it's still on its way.
    /// - [`ErrorKind::Unrecorded`]: idempotency isn't enforced, and it's unknown whether the writes were applied.
    /// - Any other: the claim was lost, and the library couldn't claim the key again, for example because another
    ///   request uses the key now, or because the store failed. Nothing was written.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves everything written, nothing written, or the transaction still on its way. If nothing
    /// is written, the claim is like one that was dropped.
    pub async fn commit<W: Any + Send + Sync>(
        self,
        response: impl Into<Bytes>,
        writes: W,
    ) -> Result<Settled, NotCommitted> {
        let (span, verdict) = (self.driver().span.clone(), Verdict::complete(response));
        let name = self.outcome_of(&verdict);
        let committing = self.commit_within_span(verdict, writes);
        let committed = committing.instrument(span.span().clone()).await;
        match &committed {
            Ok(Settled::Recorded) => span.ended(name),
            Ok(Settled::Superseded(replay)) => replay.shown_in(&span),
            Err(NotCommitted { error, claim: None, .. }) => span.refused(error.kind()),
            Err(NotCommitted { claim: Some(_), .. }) => {}
        }
        committed
    }

    async fn commit_within_span<W: Any + Send + Sync>(
        mut self,
        verdict: Verdict,
        writes: W,
    ) -> Result<Settled, NotCommitted> {
        let store = self.driver().store();
        let checked = match store.transactions() {
            Some(transactions) => transactions.check(self.key(), &writes),
            // Checked here, because the settlement would retry this error, and no retry can succeed.
            None => Err(StoreError::new(StoreErrorKind::Rejected, NO_TRANSACTIONS)),
        };
        if let Err(wrong) = checked {
            let error = declined(self.key(), Decline::Store(StoreErrorKind::Rejected), Some(wrong), false);
            return Err(NotCommitted { error, claim: Some(Box::new(self)), details: None });
        }
        let ending = match self.settle_with(verdict, &writes).await {
            Ok(ending) => ending,
            Err(Declined { why, details, store_error, is_in_doubt }) => {
                let error = declined(self.key(), why, store_error, is_in_doubt);
                observe::not_committed(self.key(), &error, is_in_doubt);
                let details = details.map(Details);
                return Err(NotCommitted { error, claim: Some(Box::new(self)), details });
            }
        };
        let (key, driver) = (self.key(), self.driver());
        match ending.end {
            End::Unresolved(_) if self.is_unenforced() => Err(alone_in_doubt(key, ending.store_error).into()),
            End::Fenced(_) => Err(fenced(key, ending.store_error).into()),
            end => match concluded(key, end, ending.store_error, driver.now())? {
                None => Ok(Settled::Recorded),
                Some(record) => {
                    let until = self.limits().answer_by;
                    let outcome = driver.successors_outcome(key, &record, ErrorKind::Fenced, until).await?;
                    Ok(Settled::Superseded(outcome))
                }
            },
        }
    }
}
