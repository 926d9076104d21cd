//! The parts of the command `idempotency`, as a library for the verification suite, which reuses the rehearsal's.
//!
//! It isn't published and promises no stable API: the public API is the crate `lambda_idempotency`.

pub mod dynamodb;
pub mod problem;
pub mod record;
pub mod rehearse;
pub mod store;
pub mod sweep;
pub mod table;
pub mod words;
