//! The verification suite of `lambda-idempotency`: explores every failure within bounds, on the code that
//! ships.
//!
//! The library's rules are one pure function, and its store's contract another. The model checker runs both
//! with several executors. Their clocks differ. Their requests and responses get lost, arrive late or arrive
//! twice. They die, freeze and thaw, while a sweeper removes expired records. It visits every state that's
//! reachable within the bounds of a [`Configuration`](configuration::Configuration). On every transition it
//! checks every [`Invariant`](invariants::Invariant), and a [`Coverage`](coverage::Coverage) shows that the
//! failures were reached.
//!
//! There's no second model of the protocol: the model checker drives
//! [`step`](lambda_idempotency::protocol::step) and
//! [`Write::apply_to`](lambda_idempotency::store::Write::apply_to) themselves.
//!
//! # Assumptions
//!
//! - There's one key. Keys don't affect each other.
//! - True time is one of the clocks: executors' clocks are at most as far from it as from each other.
//! - Ordinary Lambda ends a process after its deadline, but before the lease's grace is over.
//! - A request sent before a record expired has arrived, or never will, when the sweeper removes the record.
//!   This doesn't cover a request that a frozen executor hasn't sent yet.
//! - The retention is longer than the lease and the skew margin together.
//! - A conclusion without a claim never arrives so late that the sweeper has already removed a record that
//!   would have refused it: a request lives for seconds, and the sweeper only removes expired records.
//! - A conclusion without a claim never recreates a version of a record after it was swept. By rule, an
//!   ambiguous one is sent again only until its record expires, and it arrives before that record is swept.
//! - A delivery that learns that nothing is claimed may still leave a claim behind, if the sweeper removed the
//!   conflicting record while that claim was in flight.
//! - The checks say nothing about a delivery that meets a record it can't read, such as a corrupt one.
//! - A handler's own writes are one unit, applied with the transaction or not. The store promises to apply them
//!   atomically with the record, and to answer a token it knows as it did the first time.
//! - If a transaction has settled a record late, while its handler still runs, an operator's change to that
//!   record is the operator's responsibility.
//!
//! # How to extend it
//!
//! A new write is a new variant of [`Write`](lambda_idempotency::store::Write). The compiler then asks for it
//! wherever the kind of a write matters: in `net::record` (who may change what), [`judge`] (its contents),
//! [`trace`] (its name) and [`coverage`] (a mark). If an executor can send it while its handler runs, add a
//! [`Choice`](faults::Choice). A new fault is a variant of [`Fault`](lambda_idempotency::testing::Fault), offered in
//! [`faults`], and a mark. A new space is a line in [`spaces`], and a new promise is a line in [`invariants`].

pub mod configuration;
pub mod coverage;
pub mod explore;
pub mod faults;
pub mod fingerprints;
pub mod intern;
pub mod invariants;
pub mod judge;
pub mod model;
pub mod mutants;
#[expect(clippy::unit_arg, reason = "`Some(it.retry(…))`; a change of these lines would be explored again")]
pub mod net;
pub mod packed;
pub mod peer;
pub mod recorded;
pub mod report;
pub mod simulation;
pub mod spaces;
pub mod stamp;
pub mod terminate;
pub mod trace;
pub mod under_test;

use testkit::random;
