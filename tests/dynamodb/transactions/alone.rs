//! A handler's writes in their own `TransactWriteItems`, without a record.

use lambda_idempotency::store::{PutOutcome, Store as _, dynamodb::Transaction};

use super::{TABLE, TOKEN, cancelled, hasty, on, one, written};
use crate::wire::{Reply, Wire};

#[tokio::test]
async fn committing_an_empty_transaction_sends_nothing() {
    let wire = Wire::scripted(None, &[Reply::error(400, "ValidationException", "no items")]).await;
    let store = on(&wire).await;
    let committed = store.transactions().unwrap().commit_alone(&Transaction::new(), TOKEN).await;
    assert_eq!(written(committed), PutOutcome::Applied);
    assert!(wire.requests().is_empty());
}

#[tokio::test]
async fn errors_name_only_the_handlers_writes() {
    const ALONE: &str = "the transaction of the handler's own writes";
    let failed = || cancelled(&[("ConditionalCheckFailed", None)]);
    let rejected = |code| vec![Reply::error(400, code, "no")];
    for (script, says) in [
        (vec![cancelled(&[])], ALONE),
        (vec![cancelled(&[("TransactionConflict", None)])], ALONE),
        (vec![cancelled(&[("ThrottlingError", None)])], ALONE),
        (vec![Reply::internal(), failed()], ALONE),
        (vec![Reply::error(400, "TransactionInProgressException", "ongoing")], ALONE),
        (rejected("AccessDeniedException"), ALONE),
        (rejected("ThrottlingException"), ALONE),
        (rejected("IdempotentParameterMismatchException"), ALONE),
        (rejected("ResourceNotFoundException"), "one of its tables doesn't exist"),
        (vec![Reply::internal()], ALONE),
        (vec![Reply::Hang], ALONE),
        (vec![Reply::Close], ALONE),
        (
            vec![Reply::error(400, "ValidationException", "two on one item")],
            "one of the handler's writes is invalid",
        ),
    ] {
        let wire = Wire::scripted(None, &script).await;
        let hangs = matches!(script[..], [Reply::Hang]);
        let store = if hangs { hasty(&wire).await } else { on(&wire).await };
        let committed = store.transactions().unwrap().commit_alone(&one(), TOKEN).await;
        let error = committed.unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("record") && !error.contains(TABLE), "{error}");
        // The store sends `DescribeTable` only if the record's write may be invalid, and here there's no record.
        assert!(wire.requests().iter().all(|operation| operation == "TransactWriteItems"), "{error}");
    }
}
