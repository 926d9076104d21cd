//! The conformance suite for stores: one case for each statement of the [`Store`] contract. A case fails if the
//! store breaks the statement. Feature `conformance`.
//!
//! ```
//! # extern crate lambda_idempotency_core as lambda_idempotency;
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
//! The suite uses only fresh random keys, of functions whose names begin with `conformance`, and touches no other
//! record, so it may run against a table that is in use. It leaves about two thousand records behind, and
//! about 10 MB of responses. They expire a day later. At the end, each case replaces its
//! records that never expire with records that expire, unless the case fails.
//!
//! Keys and owners are random, and times are counted from now. Everything else is the same in every run. A
//! few records are a minute past their expiry when they're written, and must still be there when the case
//! reads them. So a store with a fast sweeper must keep a record some minutes beyond `expires_at`. Because of the skew
//! margin, a store should keep expired records for a while anyway.
//!
//! # What it can't show
//!
//! - How a store behaves when it fails: someone has to inject a fault, and the suite doesn't know any store's
//!   internals.
//! - That written data survives a power loss of the store.
//! - That a condition is missing, if another condition implies it. A settled record has no lease, so a takeover or
//!   an extension that doesn't test the status still fails on the lease. A test has to edit the stored item to show the
//!   difference.
//! - That the server doesn't remove records early. It may keep the TTL of a record that was replaced, cap a TTL, or
//!   evict records when its memory is full. Check the TTL after each kind of write, and turn eviction off.
//! - That reads are strongly consistent on replicas. A single node never shows an old record, so run the suite on the
//!   setup that you deploy.
//! - How a store applies a handler's writes ([`Transactions`](crate::store::Transactions)): they have the
//!   store's own types, which the suite doesn't know.

mod bench;
mod chunks;
mod contention;
mod differential;
mod drops;
mod fields;
mod keys;
mod large;
mod lifecycle;
mod numbers;
mod random;
mod samples;
mod transitions;

pub use contention::check_contention;
pub use differential::differential;

use std::fmt;

use crate::{future::BoxFuture, store::Store};

/// One case: its name, and the function that runs it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    run: for<'a> fn(&'a dyn Store) -> BoxFuture<'a, Verdict>,
}

/// The result of a check; an error says what is wrong with the store.
type Verdict<T = ()> = Result<T, String>;

macro_rules! cases {
    ($($name:literal => $case:path,)*) => {
        &[$(Case { name: $name, run: |store| Box::pin($case(store)) }),*]
    };
}

/// Every case. Add new ones here: every store has to pass them.
const CASES: &[Case] = cases! {
    "a put where there's no record" => transitions::create,
    "a put in place of the version that was seen" => transitions::replace,
    "a put under a claim, whatever its lease is" => transitions::mine,
    "an extension keeps the rest of the record" => numbers::extension_keeps_the_rest,
    "a lock round-trips in every field" => fields::locks,
    "an outcome round-trips in every field" => fields::outcomes,
    "a large response stays whole, or is unstorable" => large::responses,
    "later writes keep every field" => fields::later_writes,
    "a conclusion round-trips in every field" => fields::conclusions,
    "versions are compared by exact numbers" => numbers::versions,
    "a reclaim removes the old outcome" => lifecycle::reclaim_leaves_nothing,
    "a takeover stores its own invocation and keeps the fingerprint" => lifecycle::take_over_replaces,
    "a takeover by the claim's own owner shortens the lease" => lifecycle::shortened_leases,
    "a claim without an expiry behaves like any other" => lifecycle::lasting_claims,
    "an interrupted attempt is recorded" => lifecycle::interrupted_is_kept,
    "a settled record has no lease, and its own expiry" => lifecycle::settled_without_lease,
    "an operator's write removes the old outcome and fences the owner" => lifecycle::operators_replace,
    "a conclusion removes the old record and fences its owner" => lifecycle::conclusions_leave_nothing,
    "a settlement over an extension that its owner doesn't know leaves nothing of it" => lifecycle::settles_over_extension,
    "a late write of a predecessor changes nothing" => lifecycle::predecessors_are_fenced,
    "the store doesn't judge a record's age" => lifecycle::age_is_not_judged,
    "keys may have any form and length" => keys::long_keys,
    "keys don't affect each other" => keys::neighbours,
    "concurrent claims have one winner" => contention::claims,
    "concurrent takeovers have one winner" => contention::takeovers,
    "concurrent reclaims have one winner" => contention::reclaims,
    "a concurrent settlement and takeover have one winner" => contention::settlement_and_takeover,
    "a concurrent settlement and operator's write have one winner" => contention::settlement_and_operator,
    "concurrent extensions to one lease have one winner" => contention::extensions,
    "a concurrent extension and takeover have one winner" => contention::extension_and_takeover,
    "concurrent conclusions have one winner" => contention::conclusions,
    "concurrent conclusions and claims have one winner" => contention::conclusions_and_claims,
    "chunks round-trip" => chunks::round_trip,
    "chunks of two owners, and of two keys, stay apart" => chunks::owners_and_keys,
    "a missing chunk is an error" => chunks::missing,
    "chunks over the limit are an error" => chunks::limit,
    "chunks and the record don't affect each other" => chunks::beside_the_record,
    "random operations match the memory store" => differential::case,
    // Keep this case last: after a dropped call, a store that mixes up answers may give wrong answers from then on.
    "dropped calls leave the old or the new record, and later calls get their own answers" => drops::calls,
};

/// A case that a store fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The case's name.
    pub case: &'static str,
    /// The write, the expected result and the actual result. The text contains none of your keys, because the suite
    /// uses its own.
    pub finding: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.finding)
    }
}

/// Runs every case against `store`. See the [module](self) for what that does to the store.
///
/// If there's no emulator or server to run against, let the test fail, or exclude it by name: a suite that passes
/// because it was skipped proves nothing.
///
/// # Panics
///
/// If a case fails. The message has each failed case's name, the expected result and the actual one.
///
/// # Cancel safety
///
/// Dropping the future ends the run. The records that the run wrote stay until they expire. A record without an expiry
/// stays until you delete it.
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

/// Runs every case like [`check`], but returns the failed ones, each with its first finding, instead of
/// panicking.
///
/// # Cancel safety
///
/// The same as for [`check`].
pub async fn failures(store: &dyn Store) -> Vec<Failure> {
    let mut failures = Vec::new();
    for case in CASES {
        if let Err(finding) = (case.run)(store).await {
            failures.push(Failure { case: case.name, finding });
        }
    }
    failures
}
