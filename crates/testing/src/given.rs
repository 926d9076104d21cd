//! [`Given`]: the state of the record that a delivery finds.

use std::time::Duration;

use bytes::Bytes;

/// The record that the next delivery finds under its key, as an earlier delivery of the same request left it. See
/// [`Bench::given`](super::Bench::given).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Given {
    /// Another delivery runs the operation, and its lease expires after this time.
    InProgress(Duration),
    /// The delivery that claimed the key died, and its lease has expired.
    Stale,
    /// The operation is done, with this response: the JSON of a result, or
    /// [`http::recorded`](lambda_idempotency::lambda::http::recorded).
    Completed(Bytes),
    /// The operation failed permanently, with this failure: the JSON of a
    /// [`RecordedFailure`](lambda_idempotency_core::RecordedFailure).
    Failed(Bytes),
    /// The operation was done, and its record has expired.
    Expired,
    /// The record can't be read.
    Corrupt,
    /// A newer version of the library wrote the record.
    OfAFutureVersion,
}
