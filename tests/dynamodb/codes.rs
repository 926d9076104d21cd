//! Checks the error kind that the store reports for each of DynamoDB's error codes. Only errors about the size of an
//! item, an item collection or a request are `Unstorable`.

use bytes::Bytes;
use lambda_idempotency::store::{
    Outcome, Place, Put, PutOutcome, Record, ResponseChunks, State, Store,
    StoreErrorKind::{self, Conflict, Rejected, Unavailable, Unstorable},
    StoredResponse,
    dynamodb::DynamoDbStore,
};
use testkit::puts::{self, Settlement};

use super::{
    emulator::{Table, builder},
    fixtures::{
        SETTLED_UNTIL, completed, item, key, lasting_lock, lock, next_lock, owner, release, s, settle,
        started,
    },
    wire::{Reply, Wire},
};

const TOO_LARGE: [&str; 2] = [
    "Item size has exceeded the maximum allowed size",
    "Item size to update has exceeded the maximum allowed size",
];

/// The status, code and message of DynamoDB's answers, each with the error kind that the store reports.
const CODES: [(u16, &str, &str, StoreErrorKind); 33] = [
    (400, "ProvisionedThroughputExceededException", "slower", Unavailable),
    (400, "ThrottlingException", "slower", Unavailable),
    (400, "RequestLimitExceeded", "slower", Unavailable),
    (400, "LimitExceededException", "too many at once", Unavailable),
    (400, "RequestTimeoutException", "too late", Unavailable),
    (500, "InternalServerError", "internal", Unavailable),
    (503, "ServiceUnavailable", "later", Unavailable),
    (400, "TransactionConflictException", "ongoing", Conflict),
    (400, "ReplicatedWriteConflictException", "ongoing", Conflict),
    (400, "ValidationException", TOO_LARGE[0], Unstorable),
    (400, "ValidationException", TOO_LARGE[1], Unstorable),
    (400, "ItemCollectionSizeLimitExceededException", "Collection size exceeded.", Unstorable),
    (413, "RequestEntityTooLarge", "x", Unstorable),
    (400, "ValidationException", "The provided key element does not match the schema", Rejected),
    (400, "ValidationException", "Expression size has exceeded the maximum allowed size", Rejected),
    (400, "ResourceNotFoundException", "Requested resource not found", Rejected),
    (400, "ResourceInUseException", "being created", Rejected),
    (400, "AccessDeniedException", "not authorized", Rejected),
    (400, "UnrecognizedClientException", "The security token included in the request is invalid.", Rejected),
    (400, "ExpiredTokenException", "The security token included in the request is expired", Unavailable),
    (400, "InvalidSignatureException", "Signature expired", Rejected),
    (403, "SignatureDoesNotMatch", "no", Rejected),
    (403, "RequestTimeTooSkewed", "no", Rejected),
    (400, "IncompleteSignatureException", "no", Rejected),
    (400, "MissingAuthenticationTokenException", "no", Rejected),
    (400, "OptInRequired", "no", Rejected),
    (400, "SubscriptionRequiredException", "no", Rejected),
    (400, "KMSAccessDeniedException", "no", Rejected),
    (400, "KMSDisabledException", "no", Rejected),
    (400, "KMSInvalidStateException", "no", Rejected),
    (400, "InaccessibleEncryptionCredentialsException", "no", Rejected),
    (400, "SerializationException", "no", Rejected),
    (400, "SomethingNew", "no", Rejected),
];

/// Builds a store whose every request gets this answer, except `DescribeTable`, which is denied.
async fn answered(status: u16, code: &'static str, message: &'static str) -> (Wire, DynamoDbStore) {
    let wire = Wire::new(None, move |_, operation| match operation {
        "DescribeTable" => Reply::error(400, "AccessDeniedException", "no"),
        _ => Reply::error(status, code, message),
    })
    .await;
    let store = builder(wire.address).build().await.unwrap();
    (wire, store)
}

#[tokio::test]
async fn each_error_code_maps_to_its_kind() {
    for (status, code, message, kind) in CODES {
        let (_wire, store) = answered(status, code, message).await;
        let is_definite = status < 500;
        let writes = [
            puts::claim(lasting_lock()),
            puts::take_over(&started(), next_lock()),
            settle(Settlement::Complete(Outcome::Omitted, SETTLED_UNTIL)),
            settle(release(true)),
            puts::conclude(None, completed()),
        ];
        for write in writes {
            let error = store.put(&key(), &write).await.unwrap_err();
            let what = format!("{code}: {message}: {error}");
            assert_eq!((error.kind(), error.is_maybe_applied()), (kind, !is_definite), "{what}");
        }
        let bytes = Bytes::from(vec![1; 1_000_000]);
        let error = store.write_chunks(&key(), owner(1), &bytes, SETTLED_UNTIL).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code}, a chunk: {error}");
        for error in [
            store.read(&key()).await.unwrap_err(),
            store.read_chunks(&key(), owner(1), 1, 10).await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.is_maybe_applied()), (kind, false), "{code}, a read: {error}");
        }
    }
}

#[tokio::test]
async fn size_errors_are_reported_without_describing_tables() {
    for message in TOO_LARGE {
        let (wire, store) = answered(400, "ValidationException", message).await;
        let error = store.put(&key(), &settle(release(false))).await.unwrap_err();
        assert!(error.to_string().contains("it is too large"), "{error}");
        assert_eq!(wire.requests(), ["UpdateItem"]);
    }
}

fn large(bytes: usize) -> Outcome {
    Outcome::Retained(StoredResponse {
        deflated: false,
        length: bytes as u64,
        sha256: [1; 32],
        labels: None,
        place: Place::Inline(Bytes::from(vec![b'x'; bytes])),
    })
}

/// The emulator, and not a scripted answer, rejects each write of a record whose response is too large. If the response
/// is omitted, the record fits.
#[tokio::test]
async fn oversized_records_fit_without_their_response() {
    let table = Table::new().await;
    let complete = |outcome| settle(Settlement::Complete(outcome, SETTLED_UNTIL));
    let conclude = |outcome| {
        puts::conclude(Some(&started()), Record { state: State::Completed(outcome), ..lock().into() })
    };
    for write in [complete as fn(Outcome) -> Put, conclude] {
        table.put(item(&key(), &started())).await;
        let error = table.store.put(&key(), &write(large(410_000))).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (Unstorable, false), "{error}");
        assert_eq!(table.store.read(&key()).await.unwrap(), Some(started()));
        let omitted = table.store.put(&key(), &write(Outcome::Omitted)).await.unwrap();
        assert_eq!(omitted, PutOutcome::Applied);
    }
    // Other attributes count toward the item's size too.
    let mut heavy = item(&key(), &started());
    heavy.insert("note".into(), s("x".repeat(380_000)));
    table.put(heavy).await;
    let error = table.store.put(&key(), &complete(large(30_000))).await.unwrap_err();
    assert_eq!(error.kind(), Unstorable, "{error}");
    assert_eq!(table.store.put(&key(), &complete(Outcome::Omitted)).await.unwrap(), PutOutcome::Applied);
}
