//! The source of a batch's record.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Default, Deserialize)]
struct Origin<'e> {
    #[serde(rename = "eventSourceARN", borrow, default)]
    arn: Option<Cow<'e, str>>,
}

/// Returns the ARN of the queue, stream or table that `record` is from; empty if the record has no ARN.
///
/// Scopes and fingerprints contain the returned ARN, so it must stay the same. A Kinesis consumer's ARN changes when
/// someone registers the consumer again, and a table's stream gets another ARN when someone enables it again. So the
/// returned ARN leaves out the consumer and the table's stream.
pub(super) fn source_arn(record: &RawValue) -> String {
    let origin: Origin<'_> = serde_json::from_str(record.get()).unwrap_or_default();
    let arn = origin.arn.unwrap_or_default();
    let end = ["/consumer/", "/stream/"].iter().filter_map(|part| arn.find(part)).min();
    arn[..end.unwrap_or(arn.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_arns_omit_consumer_and_table_stream() {
        let of = |arn: &str| {
            let record =
                RawValue::from_string(serde_json::json!({ "eventSourceARN": arn }).to_string()).unwrap();
            source_arn(&record)
        };
        let (queue, stream) = ("arn:aws:sqs:eu-west-1:1:orders", "arn:aws:kinesis:eu-west-1:1:stream/orders");
        let table = "arn:aws:dynamodb:eu-west-1:1:table/orders";
        assert_eq!((of(queue).as_str(), of(stream).as_str()), (queue, stream));
        assert_eq!(of(&format!("{stream}/consumer/fast:1795000000")), stream);
        assert_eq!(of(&format!("{table}/stream/2026-11-01T08:00:00.000")), table);
        assert_eq!(source_arn(&RawValue::from_string("{}".to_owned()).unwrap()), "");
    }
}
