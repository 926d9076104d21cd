//! The settings for batches of SQS, Kinesis, DynamoDB Streams and Kafka.

use super::Setting;
use crate::config::{
    BatchAnswer, BatchMode,
    value::{self, Wrong},
};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new("BATCH", "`whole`, `each` ([batches](#batches))", "whole or each", |draft, mode| {
        draft.rules.batch = match mode {
            "whole" => BatchMode::Whole,
            "each" => BatchMode::Each,
            _ => return Err(Wrong::Value(mode.into())),
        };
        Ok(())
    }),
    Setting::new(
        "BATCH_ANSWER",
        "`report`, `fail` ([batches](#batches))",
        "report or fail",
        |draft, answer| {
            draft.rules.batch_answer = Some(match answer {
                "report" => BatchAnswer::Report,
                "fail" => BatchAnswer::Fail,
                _ => return Err(Wrong::Value(answer.into())),
            });
            Ok(())
        },
    ),
    Setting::new(
        "BATCH_FAILED",
        "`redeliver`; `acknowledge`: a record whose error is recorded (`IDEMPOTENCY_ON_ERROR`) counts as done, and \
         doesn't go to the dead-letter queue",
        "redeliver or acknowledge",
        |draft, policy| {
            draft.rules.acknowledges_failures = match policy {
                "redeliver" => false,
                "acknowledge" => true,
                _ => return Err(Wrong::Value(policy.into())),
            };
            Ok(())
        },
    ),
    Setting::new(
        "BATCH_RESERVE",
        "`500ms`, but at most a sixth of the invocation's time: the layer claims no more records once only twice this time is \
         left before the deadline",
        value::TIME,
        |draft, time| {
            draft.rules.batch_reserve = Some(value::duration(time)?);
            Ok(())
        },
    ),
    Setting::new(
        "SOURCE_NAME",
        "the ARN of the queue, stream, table or cluster, or the brokers of your own cluster; or a name. A record then finds its outcome even if it comes from \
         another ARN later, such as a dead-letter queue's. All sources with this name share their keys",
        "a name",
        |draft, name| {
            draft.rules.source_name = Some(name.into());
            Ok(())
        },
    ),
];
