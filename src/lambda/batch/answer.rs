//! What Lambda reads of a batch: the records that must come back.

use serde::Serialize;

/// The records that must come back (`ReportBatchItemFailures`); none of them is that all are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchAnswer {
    batch_item_failures: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    item_identifier: String,
}

impl BatchAnswer {
    pub(super) fn of(identifiers: impl IntoIterator<Item = String>) -> Self {
        let items = identifiers.into_iter().map(|item_identifier| Item { item_identifier });
        Self { batch_item_failures: items.collect() }
    }

    /// The identifiers of the records that must come back: an SQS message's id; of a stream, the first one's
    /// sequence number.
    pub fn returned(&self) -> impl Iterator<Item = &str> {
        self.batch_item_failures.iter().map(|item| item.item_identifier.as_str())
    }
}
