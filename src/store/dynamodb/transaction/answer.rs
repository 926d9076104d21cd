//! Interprets DynamoDB's answer to a transaction that wasn't applied.

use aws_sdk_dynamodb::{
    error::SdkError, operation::transact_write_items::TransactWriteItemsError, types::CancellationReason,
};

use super::{Declined, Transaction, limits};
use crate::{
    key::StoredKey,
    store::{
        CommitOutcome, StoreError, StoreErrorKind,
        dynamodb::{
            DynamoDbStore,
            attempts::Findings,
            fault::{Class, Fault, is_about_size, sentence},
        },
    },
};

/// `CancellationReason.Code` ("TransactWriteItems", DynamoDB API reference).
const CONDITION: &str = "ConditionalCheckFailed";
const NONE: &str = "None";
const CONFLICT: &str = "TransactionConflict";
const THROTTLES: [&str; 3] = ["ProvisionedThroughputExceeded", "ThrottlingError", "RequestLimitExceeded"];
const INVALID: &str = "ValidationError";

impl DynamoDbStore {
    /// Interprets `error`. With a `key`, the first item of the transaction is that key's record.
    pub(super) async fn cancelled(
        &self,
        key: Option<&StoredKey>,
        own: &Transaction,
        error: SdkError<TransactWriteItemsError>,
        findings: Findings,
    ) -> Result<CommitOutcome, StoreError> {
        use TransactWriteItemsError::{
            IdempotentParameterMismatchException, TransactionCanceledException,
            TransactionInProgressException,
        };
        match error {
            // Another transaction was applied under this token: only the record shows the current state.
            SdkError::ServiceError(service)
                if matches!(service.err(), IdempotentParameterMismatchException(_)) =>
            {
                let error = self.error(&SdkError::ServiceError(service), findings).await;
                Err(error.maybe_applied(true))
            }
            SdkError::ServiceError(service)
                if matches!(
                    service.err(),
                    TransactionCanceledException(_) | TransactionInProgressException(_)
                ) =>
            {
                match service.into_err() {
                    TransactionCanceledException(cancelled) => {
                        let reasons = cancelled.cancellation_reasons.unwrap_or_default();
                        self.judged(key, own, reasons, findings.maybe_applied)
                    }
                    // An earlier attempt of this same transaction is still running.
                    _ => {
                        Err(self.conflict("is still in progress from an earlier attempt").maybe_applied(true))
                    }
                }
            }
            // If DynamoDB calls the transaction invalid, one of the handler's writes is: the record's part is the
            // same in every transaction.
            error => Err(self.told(Fault::new(&error, findings), Class::WrongWrites).await),
        }
    }

    /// Interprets the cancellation reasons. If the record's condition failed, no other reason matters.
    fn judged(
        &self,
        key: Option<&StoredKey>,
        own: &Transaction,
        mut reasons: Vec<CancellationReason>,
        maybe_applied: bool,
    ) -> Result<CommitOutcome, StoreError> {
        if reasons.is_empty() {
            return Err(self.conflict("was cancelled without a reason").maybe_applied(maybe_applied));
        }
        let records = match key {
            None => CancellationReason::builder().code(NONE).build(),
            Some(key) => {
                let records = reasons.remove(0);
                if records.code() == Some(CONDITION) {
                    return self.refused(key, records.item).map(CommitOutcome::Answered);
                }
                records
            }
        };
        let codes = || std::iter::once(&records).chain(&reasons).filter_map(CancellationReason::code);
        if codes().any(|code| code == CONFLICT) {
            let why = "was cancelled: another transaction holds one of its items";
            return Err(self.conflict(why).maybe_applied(maybe_applied));
        }
        if codes().any(|code| THROTTLES.contains(&code)) {
            let table = &self.inner.table;
            let text = format!(
                "the transaction with the record in table `{table}` was cancelled: one of its tables is throttled"
            );
            return Err(StoreError::new(StoreErrorKind::Unavailable, text).maybe_applied(maybe_applied));
        }
        if let Some(wrong) = self.wrong(own, &records, &reasons) {
            return Err(wrong.maybe_applied(maybe_applied));
        }
        let failed = reasons.into_iter().enumerate().filter(|(_, reason)| reason.code() == Some(CONDITION));
        let conditions: Vec<_> =
            failed.map(|(place, reason)| (place, reason.item.filter(|item| !item.is_empty()))).collect();
        if conditions.is_empty() {
            return Err(self.conflict("was cancelled without a reason").maybe_applied(maybe_applied));
        }
        if maybe_applied {
            // An earlier attempt of this call may still arrive later, and find other items than this attempt did.
            let table = &self.inner.table;
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "an attempt at the transaction with the record in table `{table}` got no response, and a later \
                     one failed a condition"
                ),
            )
            .maybe_applied(true));
        }
        Ok(CommitOutcome::Declined(Box::new(Declined { conditions })))
    }

    /// Returns the error for the first item that DynamoDB rejects. An item that's too large and an invalid write of
    /// the handler fail permanently. A record without its response is never too large.
    fn wrong(
        &self,
        own: &Transaction,
        records: &CancellationReason,
        reasons: &[CancellationReason],
    ) -> Option<StoreError> {
        let is_wrong =
            |reason: &CancellationReason| reason.code().is_some_and(|code| code != NONE && code != CONDITION);
        let told = |what: String, reason: &CancellationReason, is_the_handlers: bool| {
            let code = reason.code().unwrap_or_default();
            let message = sentence(reason.message().unwrap_or("no message"));
            let is_for_good = is_about_size(code, message) || (is_the_handlers && code == INVALID);
            let kind = if is_for_good { StoreErrorKind::Unstorable } else { StoreErrorKind::Rejected };
            let text = format!("DynamoDB rejected the transaction because of {what}: {code}: {message}");
            StoreError::new(kind, text)
        };
        if is_wrong(records) {
            return Some(told(format!("the record in table `{}`", self.inner.table), records, false));
        }
        let (place, reason) = reasons.iter().enumerate().find(|(_, reason)| is_wrong(reason))?;
        let what = own.items.get(place).map_or_else(|| "an item".to_owned(), limits::described_text);
        Some(told(format!("the handler's write {place} ({what})"), reason, true))
    }

    fn conflict(&self, why: &str) -> StoreError {
        let table = &self.inner.table;
        StoreError::new(
            StoreErrorKind::Conflict,
            format!("the transaction with the record in table `{table}` {why}"),
        )
    }
}
