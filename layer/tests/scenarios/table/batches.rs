//! The scenarios of batches.

use super::*;

pub(super) fn batches() -> Vec<Scenario> {
    let abc: &[(&str, &str)] = &[("a", "effect"), ("b", "first-error:Unavailable effect"), ("c", "effect")];
    let each = |runs_of_b| {
        [("a", Exactly(1), Exactly(1)), ("b", Exactly(runs_of_b), Exactly(1)), ("c", Exactly(1), Exactly(1))]
    };
    vec![
        of(
            "SQS batch",
            [
                Send(Batch(Sqs, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
                Send(Batch(Sqs, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
            ],
            &[("a", Exactly(1), Exactly(1)), ("b", Exactly(1), Exactly(1))],
        )
        .with(SQS),
        of(
            "SQS batch with a failure",
            [Send(Batch(Sqs, abc), Fail(&["b"])), Send(Batch(Sqs, abc), Fail(&[]))],
            &each(2),
        )
        .with(SQS),
        of(
            "SQS duplicates in a batch",
            [Send(Batch(Sqs, &[("a", "effect"), ("a~2", "effect"), ("b", "effect")]), Fail(&[]))],
            &[("a", Exactly(1), Exactly(1)), ("b", Exactly(1), Exactly(1))],
        )
        .with(SQS),
        of(
            "SQS by message id",
            [
                Send(Batch(Sqs, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
                Send(Batch(Sqs, &[("b", "effect"), ("c", "effect")]), Fail(&[])),
            ],
            &each(1),
        )
        .with(&[("IDEMPOTENCY_EVENT", "sqs"), ("IDEMPOTENCY_KEY", "sqs")]),
        of(
            "FIFO order",
            [Send(Batch(Fifo, abc), Fail(&["b", "c"])), Send(Batch(Fifo, &abc[1..]), Fail(&[]))],
            &each(2),
        )
        .with(&[("IDEMPOTENCY_EVENT", "fifo"), ("IDEMPOTENCY_KEY", "/id")])
        .order(&["a", "b", "c"]),
        of(
            "FIFO, each",
            [Send(Batch(Fifo, abc), Fail(&["b", "c"])), Send(Batch(Fifo, &abc[1..]), Fail(&[]))],
            &each(2),
        )
        .with(&[
            ("IDEMPOTENCY_EVENT", "fifo"),
            ("IDEMPOTENCY_KEY", "/id"),
            ("IDEMPOTENCY_BATCH", "each"),
            ("WHOLE", "1"),
        ])
        .order(&["a", "b", "c"]),
        of("SQS, each", [Send(Batch(Sqs, abc), Fail(&["b"])), Send(Batch(Sqs, abc), Fail(&[]))], &each(2))
            .with(&[
                ("IDEMPOTENCY_EVENT", "sqs"),
                ("IDEMPOTENCY_KEY", "/id"),
                ("IDEMPOTENCY_BATCH", "each"),
                ("WHOLE", "1"),
            ]),
        of(
            "SQS without a key",
            [Send(Batch(Sqs, &[("a", "effect")]), Fail(&["a"]))],
            &[("a", Exactly(0), Exactly(0))],
        )
        .with(&[("IDEMPOTENCY_EVENT", "sqs"), ("IDEMPOTENCY_KEY", "/order")]),
        of(
            "Kinesis batch",
            [
                Send(Batch(Kinesis, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
                Send(Batch(Kinesis, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
            ],
            &[("a", Exactly(1), Exactly(1)), ("b", Exactly(1), Exactly(1))],
        )
        .with(&[("IDEMPOTENCY_EVENT", "kinesis"), ("IDEMPOTENCY_KEY", "kinesis")]),
        of(
            "Kinesis batch with a failure",
            [Send(Batch(Kinesis, abc), Anything), Send(Batch(Kinesis, abc), Fail(&[]))],
            &each(2),
        )
        .with(&[("IDEMPOTENCY_EVENT", "kinesis"), ("IDEMPOTENCY_KEY", "/id")])
        .order(&["a", "b", "c"]),
        of(
            "DynamoDB, each",
            [Send(Batch(DynamoDb, abc), Anything), Send(Batch(DynamoDb, abc), Fail(&[]))],
            &each(2),
        )
        .with(&[
            ("IDEMPOTENCY_EVENT", "dynamodb"),
            ("IDEMPOTENCY_KEY", "dynamodb"),
            ("IDEMPOTENCY_BATCH", "each"),
            ("WHOLE", "1"),
        ])
        .order(&["a", "b", "c"]),
        of(
            "SQS, all fail, as an error",
            [
                Send(Batch(Sqs, &[("a", "first-error:Unavailable effect")]), Fails),
                Send(Batch(Sqs, &[("a", "first-error:Unavailable effect")]), Fail(&[])),
            ],
            &[("a", Exactly(2), Exactly(1))],
        )
        .with(&[
            ("IDEMPOTENCY_EVENT", "sqs"),
            ("IDEMPOTENCY_KEY", "/id"),
            ("IDEMPOTENCY_BATCH_ANSWER", "fail"),
        ]),
        of(
            "Kinesis by a field",
            [
                Send(Batch(Kinesis, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
                Send(Batch(Kinesis, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
            ],
            &[("a", Exactly(1), Exactly(1)), ("b", Exactly(1), Exactly(1))],
        )
        .with(&[("IDEMPOTENCY_EVENT", "kinesis"), ("IDEMPOTENCY_KEY", "/id")]),
        of(
            "DynamoDB batch",
            [
                Send(Batch(DynamoDb, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
                Send(Batch(DynamoDb, &[("a", "effect"), ("b", "effect")]), Fail(&[])),
            ],
            &[("a", Exactly(1), Exactly(1)), ("b", Exactly(1), Exactly(1))],
        )
        .with(&[("IDEMPOTENCY_EVENT", "dynamodb"), ("IDEMPOTENCY_KEY", "dynamodb")]),
    ]
}
