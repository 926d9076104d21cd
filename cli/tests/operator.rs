//! The commands for operators, on the built binary and an embedded DynamoDB.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail where it stands")]

mod operator {
    mod bad_input;
    mod bench;
    mod keys;
    mod look;
    mod settle;
    mod table;
}
