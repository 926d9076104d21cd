//! The suite that proves a store: every sentence of the [`Store`] contract, as a case that fails if the
//! store does not keep it. Feature `conformance`.
//!
//! ```
//! use lambda_idempotency::{conformance, store::memory::MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! conformance::check(&MemoryStore::new()).await;
//! # }
//! ```
//!
//! # What it does to the store
//!
//! It uses fresh random keys only, of functions whose names begin with `conformance`, and touches no other
//! record: it may run against a table that is in use. It leaves some two thousand records behind, and some
//! 10 MB of parts where the store keeps parts, which expire a day later. Records that never expire are replaced by
//! ones that do, unless the case that wrote them fails.
//!
//! Keys and owners are random, and times are counted from now; all else is the same in every run. A few
//! records are a minute past their expiry when they are written, and must still be there when they are
//! looked for: a store whose sweeper is swift needs to give a record some minutes beyond `expires_at`,
//! which it should do for the sake of the skew margin as well.
//!
//! # What it cannot show
//!
//! - What a store does when it fails: a fault must be put into it, and the suite knows no store's inside.
//! - That what is written survives the store's own loss of power.
//! - A condition that another one implies. A settled record has no lease, so a takeover or an extension that
//!   does not test the status still fails by the lease; only a look at the stored item tells the two apart.
//! - What a store does with a handler's own writes ([`Transactions`](crate::store::Transactions)): they are in
//!   its own types, and the suite knows none.

mod bench;
mod contention;
mod differential;
mod fields;
mod keys;
mod lifecycle;
mod numbers;
mod parts;
mod random;
mod samples;
mod transitions;

pub use contention::check_contention;
pub use differential::differential;

use std::fmt;

use crate::{future::BoxFuture, store::Store};

/// One case: what it is called, and what it does.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    run: for<'a> fn(&'a dyn Store) -> BoxFuture<'a, Verdict>,
}

/// Nothing, or what is wrong with the store.
type Verdict<T = ()> = Result<T, String>;

macro_rules! cases {
    ($($name:literal => $case:path,)*) => {
        &[$(Case { name: $name, run: |store| Box::pin($case(store)) }),*]
    };
}

/// Every case. A new one is written here, and every store has to pass it.
const CASES: &[Case] = cases! {
    "T1: a claim of an absent record" => transitions::claim,
    "T2: a reclaim of a record that no longer counts" => transitions::reclaim,
    "T3: a takeover of a stale claim" => transitions::take_over,
    "T4: a completion" => transitions::complete,
    "T5: a failure" => transitions::fail,
    "T6: a release" => transitions::release,
    "T7: an extension of the lease" => transitions::extend,
    "T7: a lease is compared as a number" => numbers::leases,
    "T7: an extension keeps the rest of the record" => numbers::extension_keeps_the_rest,
    "a conclusion to COMPLETED without a claim" => transitions::conclude_complete,
    "a conclusion to FAILED without a claim" => transitions::conclude_fail,
    "a conclusion to RELEASED without a claim" => transitions::conclude_release,
    "a conclusion to STARTED without a claim" => transitions::conclude_start,
    "an operator's completion of the version that was seen" => transitions::resolve_complete,
    "an operator's failure of the version that was seen" => transitions::resolve_fail,
    "an operator's release of the version that was seen" => transitions::resolve_release,
    "a lock comes back equal in every field" => fields::locks,
    "an outcome comes back equal in every field" => fields::outcomes,
    "every later write keeps every field too" => fields::later_writes,
    "a conclusion comes back equal in every field" => fields::conclusions,
    "versions are told apart by numbers of any size" => numbers::versions,
    "a reclaim leaves nothing of the old outcome" => lifecycle::reclaim_leaves_nothing,
    "a takeover puts in its own invocation and keeps the fingerprint" => lifecycle::take_over_replaces,
    "a claim without an expiry is a claim as any other" => lifecycle::lasting_claims,
    "an interrupted attempt is remembered" => lifecycle::interrupted_is_kept,
    "a settled record has no lease, and its own expiry" => lifecycle::settled_without_lease,
    "an operator's write leaves nothing of the old outcome, and fences" => lifecycle::operators_replace,
    "a conclusion leaves nothing of the old record, and fences" => lifecycle::conclusions_leave_nothing,
    "a late write of a predecessor changes nothing" => lifecycle::predecessors_are_fenced,
    "age is not the store's to judge" => lifecycle::age_is_not_judged,
    "keys have any form and length" => keys::long_keys,
    "keys do not touch each other" => keys::neighbours,
    "many claims at once have one winner" => contention::claims,
    "many takeovers at once have one winner" => contention::takeovers,
    "many reclaims at once have one winner" => contention::reclaims,
    "a settlement and a takeover at once have one winner" => contention::settlement_and_takeover,
    "a settlement and an operator's write at once have one winner" => contention::settlement_and_operator,
    "many extensions to one lease at once have one winner" => contention::extensions,
    "an extension and a takeover at once have one winner" => contention::extension_and_takeover,
    "many conclusions at once have one winner" => contention::conclusions,
    "many conclusions and claims at once have one winner" => contention::conclusions_and_claims,
    "parts come back whole" => parts::round_trip,
    "parts of two owners, and of two keys, do not touch" => parts::owners_and_keys,
    "a missing part is an error" => parts::missing,
    "parts over the limit are an error" => parts::limit,
    "parts and the record do not touch" => parts::beside_the_record,
    "random operations are answered as in memory" => differential::case,
};

/// A case that a store does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The case's name.
    pub case: &'static str,
    /// What was done, what had to come of it, and what did. It shows no key of yours: there is none in it.
    pub finding: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.finding)
    }
}

/// Proves `store`: runs every case against it. See the [module](self) for what that does to the store.
///
/// Where there is no emulator or server to run against, fail or leave it out by name: a suite that passes
/// because it was skipped proves nothing.
///
/// # Panics
///
/// If a case fails. The message has each failed case's name, what was expected and what was found.
///
/// # Cancel safety
///
/// Dropping the future ends the run; what it wrote stays until it expires.
pub async fn check(store: &dyn Store) {
    let failures = failures(store).await;
    if !failures.is_empty() {
        let list: String = failures.iter().map(|failure| format!("\n- {failure}")).collect();
        panic!("{} of {} conformance cases failed:{list}", failures.len(), CASES.len());
    }
}

/// The names of the cases, in the order in which they run.
pub fn cases() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// The cases that `store` does not pass, each with its first finding: [`check`] without the panic.
///
/// # Cancel safety
///
/// As [`check`].
pub async fn failures(store: &dyn Store) -> Vec<Failure> {
    let mut failures = Vec::new();
    for case in CASES {
        if let Err(finding) = (case.run)(store).await {
            failures.push(Failure { case: case.name, finding });
        }
    }
    failures
}
