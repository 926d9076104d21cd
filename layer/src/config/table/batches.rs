//! The settings for batches of SQS, Kinesis and DynamoDB Streams.

use super::Setting;
use crate::config::{BatchAnswer, BatchMode, value::Wrong};

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
            draft.rules.batch_answer = match answer {
                "report" => BatchAnswer::Report,
                "fail" => BatchAnswer::Fail,
                _ => return Err(Wrong::Value(answer.into())),
            };
            Ok(())
        },
    ),
];
