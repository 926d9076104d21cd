//! The response that Lambda reads for a batch: the records to redeliver.

use serde::Serialize;

/// The records to redeliver (`ReportBatchItemFailures`). An empty list acknowledges the whole batch.
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

    /// The identifiers of the records to redeliver: SQS messages' ids, or, for a stream, the sequence number of
    /// the first one.
    pub fn returned(&self) -> impl Iterator<Item = &str> {
        self.batch_item_failures.iter().map(|item| item.item_identifier.as_str())
    }
}
