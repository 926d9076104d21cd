//! The safety net of `lambda-idempotency`: enumerates what can go wrong, on the machine that ships.
//!
//! The library's rules are one pure function, and its store's contract another. This package puts both
//! into a world of executors whose clocks differ, whose requests and answers get lost, come late or come
//! twice, who die, freeze and thaw, beside a sweeper that removes what has expired; and visits every
//! world that can come about, within the bounds of a [`Configuration`](configuration::Configuration).
//! On every transition it checks every [`Invariant`](invariants::Invariant), and a
//! [`Coverage`](coverage::Coverage) shows that what can go wrong did.
//!
//! There is no second model of the protocol in here: the net drives
//! [`step`](lambda_idempotency::protocol::step) and
//! [`Write::apply_to`](lambda_idempotency::store::Write::apply_to) themselves.
//!
//! # What is taken for granted
//!
//! - One key. Keys do not touch each other.
//! - True time is one of the clocks: executors' clocks are as far from it as from each other, at most.
//! - Ordinary Lambda ends a process after its deadline, but before the lease's grace is over.
//! - What was sent before a record expired has arrived, or never will, when the sweeper removes it; not so
//!   what a frozen executor has yet to send.
//! - The retention is longer than the lease and the skew margin together.
//! - A conclusion without a claim is never so late that the sweeper has removed, meanwhile, a record that was in its
//!   way: a request lives for seconds, and a sweeper comes when a record has expired.
//! - A version of a record is not made again after it was swept, as far as conclusions without a claim go: one in doubt is
//!   sent again only while its record counts, which is a rule, and arrives before that is swept.
//! - Who is told that nothing is claimed may leave a claim behind where the sweeper removed, while that claim was on its
//!   way, what stood in its way.
//! - What nobody can read, such as a record that is corrupt, nobody says anything about.
//! - A handler's own writes are one thing, which is made with the transaction or not. That the store makes them in one
//!   step with the record, and answers a token that it knows as the first time, is what a store promises.
//! - What an operator does to a record that a transaction has settled late, while its handler still runs, is the
//!   operator's own doing.
//!
//! # What joins later
//!
//! A new write is a new variant of [`Write`](lambda_idempotency::store::Write): the compiler asks for
//! it where a write's kind matters, in `net::record` (who may change what), [`judge`] (what it must say),
//! [`trace`] (its name) and [`coverage`] (a mark). What an executor does with it while its handler runs is
//! one more [`Choice`](faults::Choice). A new fault is a `Choice` and a mark; a new space is a line in
//! [`spaces`]; a new promise a line in [`invariants`].

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
pub mod net;
pub mod packed;
pub mod peer;
pub mod random;
pub mod recorded;
pub mod report;
pub mod simulation;
pub mod spaces;
pub mod stamp;
pub mod terminate;
pub mod trace;
pub mod under_test;
