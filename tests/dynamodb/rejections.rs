//! What the log and the caller learn when DynamoDB rejects the library's requests.

use std::error::Error as StdError;

use lambda_idempotency::{Error, ErrorKind, Idempotency, Key, RunError, store::memory::MemoryStore};
use testkit::logged::logged;

use super::{
    emulator::on,
    wire::{Reply, Wire},
};

const ARN: &str = "arn:aws:dynamodb:eu-central-1:123456789012:table/idempotency";

async fn run(idempotency: &Idempotency) -> Result<String, RunError<std::io::Error>> {
    let operation = idempotency.operation("step").unwrap();
    operation.run(Key::new("order-17").unwrap(), &1, || async { Ok("done".to_owned()) }).await
}

/// Runs three operations while DynamoDB rejects every request with this error. Returns the caller's last error, and the
/// events.
async fn rejected(code: &'static str, message: &'static str) -> (Error, Vec<String>) {
    let wire = Wire::new(None, move |_, _| Reply::error(400, code, message)).await;
    let store = on(&wire).await;
    let idempotency = Idempotency::builder(store).function("payments").build().unwrap();
    let working = Idempotency::builder(MemoryStore::new()).function("payments").build().unwrap();
    let (last, logged) = logged(async {
        // Ends any outage that another test began.
        run(&working).await.unwrap();
        let mut last = None;
        for _ in 0..3 {
            match run(&idempotency).await {
                Err(RunError::Idempotency(error)) => last = Some(error),
                other => panic!("{code}: {other:?}"),
            }
        }
        last
    })
    .await;
    (last.unwrap(), logged.events)
}

#[tokio::test]
async fn causes_of_rejections_are_logged_once() {
    for (code, message, kind, advice) in [
        (
            "AccessDeniedException",
            "User: arn:aws:sts::123456789012:assumed-role/pay is not authorized to perform: dynamodb:PutItem on \
             resource: arn:aws:dynamodb:eu-central-1:123456789012:table/idempotency",
            ErrorKind::Invalid,
            "give the function's role the action",
        ),
        (
            "KMSAccessDeniedException",
            "The key arn:aws:dynamodb:eu-central-1:123456789012:table/idempotency denies access",
            ErrorKind::Invalid,
            "KMS key",
        ),
        (
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            ErrorKind::Invalid,
            "check the AWS credentials",
        ),
        (
            "ValidationException",
            "One or more parameter values were invalid: Missing the key pk in the item",
            ErrorKind::Invalid,
            "the configured key is",
        ),
        (
            "ExpiredTokenException",
            "The security token included in the request is expired",
            ErrorKind::Unavailable,
            "",
        ),
    ] {
        let (error, events) = rejected(code, message).await;
        let text = error.to_string();
        assert_eq!((error.kind(), error.is_retryable()), (kind, kind == ErrorKind::Unavailable), "{code}");
        assert!(!text.contains("arn:") && !text.contains("123456789012"), "{text}");
        assert!(text.contains(advice), "{code}: {text}");
        assert!(code == "ValidationException" || advice.is_empty() || text.contains(code), "{text}");
        // The chain has the whole message, with the action and the request's id.
        let chain: Vec<_> =
            std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        assert!(chain.iter().any(|cause| cause.contains(code) && cause.contains(message)), "{chain:?}");
        let is_refusal =
            |event: &&String| event.contains("store_unavailable") || event.contains("\"refused\"");
        let (loud, quiet): (Vec<_>, Vec<_>) =
            events.iter().filter(is_refusal).partition(|event| event.starts_with("WARN "));
        // Another test's outage may already have been logged.
        assert!(loud.len() <= 1 && loud.len() + quiet.len() == 3, "{events:?}");
        assert!(loud.iter().all(|event| event.contains(code) && event.contains(message)), "{loud:?}");
        assert!(quiet.iter().all(|event| !event.contains(ARN)), "{quiet:?}");
    }
}
