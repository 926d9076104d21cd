//! The response that Lambda reads for a batch: the records to redeliver (`ReportBatchItemFailures`).

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::error::{Error, ErrorKind};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'i> {
    batch_item_failures: Vec<Item<'i>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item<'i> {
    item_identifier: Identifier<'i>,
}

/// A record's identifier in the response.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Identifier<'i> {
    Text(&'i str),
    /// A record of Kafka: its topic and partition, such as `orders-0`, and its offset in the partition.
    Offset {
        partition: &'i str,
        offset: u64,
    },
}

/// The response that lists these records. An empty list acknowledges the whole batch.
pub(super) fn naming<'i>(identifiers: impl Iterator<Item = Identifier<'i>>) -> Result<Box<RawValue>, Error> {
    let items = identifiers.map(|item_identifier| Item { item_identifier }).collect();
    to_raw_value(&Answer { batch_item_failures: items })
        .map_err(|error| Error::new(ErrorKind::Invalid, "the response can't be written").with_source(error))
}
