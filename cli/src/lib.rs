//! The parts of the command `idempotency`: what a rehearsal is played with is of use to the safety net too.
//!
//! Not published, and no promise is made about it: the library's API is the crate `lambda_idempotency`.

pub mod dynamodb;
pub mod problem;
pub mod record;
pub mod rehearse;
pub mod store;
pub mod sweep;
pub mod table;
pub mod words;
