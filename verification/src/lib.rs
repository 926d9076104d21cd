//! The verification suite of `lambda-idempotency`: explores every failure within bounds, on the code that
//! ships.
//!
//! The library's rules are one pure function, and its store's contract is another. The model checker runs both
//! with several executors. Their clocks differ. Their requests and responses get lost, arrive late or arrive
//! twice. The executors die, freeze and thaw, while a sweeper removes expired records. The model checker visits
//! every state that's reachable within the bounds of a [`Configuration`](configuration::Configuration). On every
//! transition it checks every [`Invariant`](invariants::Invariant), and a [`Coverage`](coverage::Coverage) shows that
//! the failures were reached.
//!
//! There's no second model of the protocol: the model checker drives
//! [`step`](lambda_idempotency::protocol::step) and
//! [`Put::apply_to`](lambda_idempotency::store::Put::apply_to) themselves.
//!
//! # Assumptions
//!
//! - There's one key. Keys don't affect each other.
//! - True time counts as one of the clocks: if the clocks agree up to the skew margin, each also differs from true
//!   time by at most the skew margin.
//! - Ordinary Lambda ends a process after its deadline, but before the lease's grace is over.
//! - When the sweeper removes a record, every request that was sent before the record expired has arrived, or
//!   never will. This assumption doesn't cover a request that a frozen executor hasn't sent yet.
//! - In every space with transactions, the retention is at least as long as the lease and the skew margin together.
//! - A conclusion (the write that stores the outcome of a run without a claim) never arrives so late that the
//!   sweeper has already removed a record that would have made the store refuse it. A request lives for seconds, and
//!   the sweeper doesn't remove a record before its expiry.
//! - A conclusion never recreates a version of a record that the sweeper has removed. By rule, an ambiguous
//!   conclusion is sent again only until the record that it stores expires. The last attempt arrives before the
//!   sweeper removes that record.
//! - A delivery may report that it claimed nothing and still leave a claim behind, if the sweeper removed the
//!   record that blocked the claim while the claim was in flight.
//! - The checks say nothing about a delivery that meets a record it can't read, such as a corrupt one.
//! - A handler's own writes are one unit: a transaction applies all of them or none. The store promises to
//!   apply them atomically with the record. If a token that the store remembers arrives again, the store
//!   promises to repeat the first answer.
//! - While a handler runs, no operator decides on the record of its delivery. A late transaction may have settled
//!   that record already. An operator who changes it even so is responsible for the result.
//! - In a space with a reconciler, a handler has its effect on the remote system at most once. An effect is on its way at
//!   the latest when the lease has ended by the executor's own clock, and arrives within the reconciler's time after that.
//!   A [`Remote`](configuration::Remote) that is late or wrong breaks this, and the space says which invariants that
//!   costs.
//!
//! # How to extend the model checker
//!
//! A new purpose of a put is a variant of [`Purpose`](under_test::Purpose). The compiler then asks for it in
//! `checker::record` (who may change what, and a mark in [`coverage`]), in [`judge`] (its contents) and in [`trace`]
//! (its name). If an executor can send the put while its handler runs, add a [`Choice`](faults::Choice). A new fault is
//! a variant of
//! [`Fault`](lambda_idempotency_testing::Fault), a choice in [`faults`], its effect in `checker::fault`, and a mark.
//! A new space is an entry in [`spaces`], and a new promise is an entry in [`invariants`].

#![expect(clippy::large_enum_variant, reason = "a record in a box would cost each step an allocation")]

pub mod checker;
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
pub mod packed;
pub mod powertools;
pub mod recorded;
pub mod report;
pub mod simulation;
pub mod spaces;
pub mod stamp;
pub mod terminate;
pub mod trace;
pub mod under_test;

use testkit::random;
