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
            fault::{Class, Fault, is_about_size, without_arns, without_values},
        },
        toolkit::sentence,
    },
};

/// Values of `CancellationReason.Code` ("TransactWriteItems", DynamoDB API reference).
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
            // Another transaction was applied under this token. Only a read of the record shows its current state, so
            // mark the error as ambiguous.
            SdkError::ServiceError(service)
                if matches!(service.err(), IdempotentParameterMismatchException(_)) =>
            {
                let error = self.failed(key, &SdkError::ServiceError(service), findings).await;
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
                    _ => Err(self
                        .conflict(key, "is still in progress from an earlier attempt")
                        .maybe_applied(true)),
                }
            }
            error => Err(self.failed(key, &error, findings).await),
        }
    }

    /// Converts an error about the whole transaction to the store's. If DynamoDB calls the transaction invalid although
    /// the table's keys match the configuration, one of the handler's writes is invalid, because the record's write
    /// has the same valid form in every transaction.
    async fn failed(
        &self,
        key: Option<&StoredKey>,
        error: &SdkError<TransactWriteItemsError>,
        findings: Findings,
    ) -> StoreError {
        let region = self.region().map(|region| format!(" in {region}"));
        let endpoint = findings.endpoint.as_ref().map(|endpoint| format!(" at {endpoint}"));
        let place: String = [region, endpoint].into_iter().flatten().collect();
        let (mut fault, transaction) = (Fault::new(error, findings).without_values(), self.transaction(key));
        let message = match (key, fault.class) {
            (None, class) => {
                // The transaction has only the handler's writes, so `Invalid` means that one of them is invalid.
                if class == Class::Invalid {
                    fault = fault.of_class(Class::WrongWrites);
                }
                alone(&fault, &transaction, &place)
            }
            (Some(_), Class::MissingTable) => format!(
                "DynamoDB rejected {transaction}{place}: this table or a table of the handler's writes doesn't exist; \
                 create the records' table with `idempotency table create`, or correct the table names"
            ),
            (Some(_), _) => return self.told(fault, Class::WrongWrites).await,
        };
        StoreError::new(fault.class.kind(), message)
            .maybe_applied(fault.maybe_applied)
            .with_source(fault.cause)
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
            return Err(self.conflict(key, "was cancelled without a reason").maybe_applied(maybe_applied));
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
            let why = "was cancelled: one of its items is in use by another transaction";
            return Err(self.conflict(key, why).maybe_applied(maybe_applied));
        }
        if codes().any(|code| THROTTLES.contains(&code)) {
            let text = format!("{} was cancelled: one of its tables is throttled", self.transaction(key));
            return Err(StoreError::new(StoreErrorKind::Unavailable, text).maybe_applied(maybe_applied));
        }
        if let Some(wrong) = self.wrong(own, &records, &reasons) {
            return Err(wrong.maybe_applied(maybe_applied));
        }
        let failed = reasons.into_iter().enumerate().filter(|(_, reason)| reason.code() == Some(CONDITION));
        let conditions: Vec<_> =
            failed.map(|(place, reason)| (place, reason.item.filter(|item| !item.is_empty()))).collect();
        if conditions.is_empty() {
            return Err(self.conflict(key, "was cancelled without a reason").maybe_applied(maybe_applied));
        }
        if maybe_applied {
            // An earlier attempt of this call may still arrive later, and its conditions may hold then.
            let transaction = self.transaction(key);
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "an attempt at {transaction} got no response, and a later attempt failed a condition"
                ),
            )
            .maybe_applied(true));
        }
        Ok(CommitOutcome::Declined(Box::new(Declined { conditions })))
    }

    /// Returns the error for the first item that DynamoDB rejects. Its kind is `Unstorable` if the item is too large or
    /// is an invalid write of the handler. Otherwise, its kind is `Rejected`.
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
            let message = reason.message().unwrap_or("no message");
            let is_for_good = is_about_size(code, message) || (is_the_handlers && code == INVALID);
            let kind = if is_for_good { StoreErrorKind::Unstorable } else { StoreErrorKind::Rejected };
            let shown = if is_the_handlers { without_values(code, message) } else { sentence(message) };
            // Callers see the text. Only the log shows ARNs.
            let text = without_arns(shown);
            let text = format!("DynamoDB rejected the transaction because of {what}: {code}: {text}");
            StoreError::new(kind, text).with_source(format!("{code}: {shown}"))
        };
        if is_wrong(records) {
            return Some(told(format!("the record in table `{}`", self.inner.table), records, false));
        }
        let (place, reason) = reasons.iter().enumerate().find(|(_, reason)| is_wrong(reason))?;
        let what = own.items.get(place).map_or_else(|| "an item".to_owned(), limits::described_text);
        Some(told(format!("the handler's write {place} ({what})"), reason, true))
    }

    fn conflict(&self, key: Option<&StoredKey>, why: &str) -> StoreError {
        StoreError::new(StoreErrorKind::Conflict, format!("{} {why}", self.transaction(key)))
    }

    /// Names the transaction in an error. Without a `key`, the transaction has no record.
    fn transaction(&self, key: Option<&StoredKey>) -> String {
        match key {
            Some(_) => format!("the transaction with the record in table `{}`", self.inner.table),
            None => "the transaction of the handler's own writes".to_owned(),
        }
    }
}

/// Describes an error of a `transaction` without a record. The description names no table, because the error doesn't
/// say which of the handler's tables caused it.
fn alone(fault: &Fault, transaction: &str, place: &str) -> String {
    match fault.class {
        Class::NotBuilt => format!("{transaction} couldn't be built"),
        Class::NoCredentials => format!(
            "{transaction} wasn't sent, because no AWS credentials were found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID \
             and AWS_SECRET_ACCESS_KEY, or give the function a role"
        ),
        Class::NotSent => {
            format!("{transaction} wasn't sent; check the AWS credentials and the endpoint")
        }
        Class::TimedOut => format!("DynamoDB{place} didn't answer {transaction} in time"),
        Class::NotReached => format!(
            "DynamoDB{place} couldn't be reached for {transaction}; check the Region, the endpoint and the network"
        ),
        Class::Unreadable => {
            format!("the response to {transaction}{place} couldn't be read; check the endpoint")
        }
        Class::ServerError => format!("DynamoDB{place} failed to serve {transaction}"),
        Class::Throttled => format!("DynamoDB{place} throttled {transaction}"),
        Class::Conflict => format!("another transaction currently holds an item of {transaction}{place}"),
        Class::MissingTable => format!(
            "DynamoDB{place} rejected {transaction}: one of its tables doesn't exist; create the table, or correct its \
             name"
        ),
        Class::TooLarge => {
            format!(
                "DynamoDB{place} rejected {transaction}: one of its items is too large, or all its items together are"
            )
        }
        Class::Invalid | Class::WrongWrites => format!(
            "DynamoDB{place} rejected {transaction}: one of the handler's writes is invalid: {}",
            fault.reason()
        ),
        Class::ExpiredCredentials => format!(
            "DynamoDB{place} rejected {transaction}, because the AWS credentials have expired; retry once they're \
             renewed"
        ),
        Class::Refused => format!("DynamoDB{place} rejected {transaction}: {}", fault.reason()),
    }
}
