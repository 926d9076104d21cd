//! The values for each transition's expressions: the version that was seen, the claim, and what to write.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use super::{
    codec,
    expressions::{Plan, Settling},
};
use crate::{
    outcome::{Outcome, Place},
    record::{Generation, Lock, Owner, Status},
    store::{Revision, Settlement},
    time::Timestamp,
};

/// Values by placeholder: exactly those that the expressions use, since DynamoDB rejects others.
pub(super) type Values = HashMap<String, AttributeValue>;

/// Values for the condition of T2: the version that was seen. An expiry or a lease that this version doesn't have is
/// left out, because the condition for such a version doesn't use it.
pub(super) fn reclaim(seen: &Revision) -> Values {
    let mut values = Values::with_capacity(8);
    values.insert(":seen_status".to_owned(), codec::status(seen.status));
    values.insert(":seen_owner".to_owned(), codec::owner(seen.owner));
    values.insert(":seen_generation".to_owned(), codec::generation(seen.generation));
    if let Some(expires_at) = seen.expires_at {
        values.insert(":seen_expires_at".to_owned(), codec::seconds(expires_at));
    }
    if let Some(lease_until) = seen.lease_until {
        values.insert(":seen_lease_until".to_owned(), codec::millis(lease_until));
    }
    values
}

/// Values for the expressions of T3.
pub(super) fn take_over(seen: &Revision, seen_lease: Timestamp, lock: &Lock) -> Values {
    // The pattern names every field. If a field is added to `Lock`, this code doesn't compile until it names the field.
    // T3 takes over only the same operation, so the fingerprint stays.
    let Lock {
        owner,
        generation,
        attempt,
        fingerprint: _,
        lock_acquired_at,
        lease_until,
        expires_at,
        interrupted,
        request_id,
    } = lock;
    let mut values = Values::with_capacity(16);
    values.insert(":started".to_owned(), codec::status(Status::Started));
    values.insert(":seen_owner".to_owned(), codec::owner(seen.owner));
    values.insert(":seen_generation".to_owned(), codec::generation(seen.generation));
    values.insert(":seen_lock_acquired_at".to_owned(), codec::millis(seen.lock_acquired_at));
    values.insert(":seen_lease_until".to_owned(), codec::millis(seen_lease));
    values.insert(":owner".to_owned(), codec::owner(*owner));
    values.insert(":generation".to_owned(), codec::generation(*generation));
    values.insert(":attempt".to_owned(), codec::number(*attempt));
    values.insert(":lock_acquired_at".to_owned(), codec::millis(*lock_acquired_at));
    values.insert(":lease_until".to_owned(), codec::millis(*lease_until));
    if let Some(expires_at) = expires_at {
        values.insert(":expires_at".to_owned(), codec::seconds(*expires_at));
    }
    if *interrupted {
        values.insert(":interrupted".to_owned(), codec::interrupted());
    }
    if let Some(request_id) = request_id {
        values.insert(":request_id".to_owned(), codec::text(&**request_id));
    }
    values
}

/// Returns the plan that writes `settlement`, and the values to write. The condition's values depend on the writer:
/// [`of_mine`] or [`of_operator`] adds them.
pub(super) fn settle<'a>(plans: &'a Settling<Plan>, settlement: &Settlement) -> (&'a Plan, Values) {
    let mut values = Values::with_capacity(16);
    values.insert(":status".to_owned(), codec::status(settlement.status()));
    let (outcome, expires_at) = match settlement {
        Settlement::Complete(outcome, expires_at) | Settlement::Fail(outcome, expires_at) => {
            (Some(outcome), expires_at)
        }
        Settlement::Release { expires_at, .. } => (None, expires_at),
    };
    values.insert(":expires_at".to_owned(), codec::seconds(*expires_at));
    let Some(outcome) = outcome else {
        if matches!(settlement, Settlement::Release { interrupted: true, .. }) {
            values.insert(":interrupted".to_owned(), codec::interrupted());
            return (&plans.release_interrupted, values);
        }
        return (&plans.release, values);
    };
    values.insert(":response_encoding".to_owned(), codec::encoding(outcome));
    let Outcome::Retained(response) = outcome else { return (&plans.omitted, values) };
    values.insert(":response_length".to_owned(), codec::number(response.length));
    values.insert(":response_sha256".to_owned(), codec::sha256(&response.sha256));
    match &response.place {
        Place::Inline(kept) => {
            values.insert(":response".to_owned(), codec::binary(kept));
            (&plans.inline, values)
        }
        Place::Chunks(_) => (&plans.chunks, values),
    }
}

/// Adds the values of the claim, for the condition of T4 to T7.
pub(super) fn of_mine(mut values: Values, owner: Owner, generation: Generation) -> Values {
    values.insert(":started".to_owned(), codec::status(Status::Started));
    values.insert(":owner".to_owned(), codec::owner(owner));
    values.insert(":generation".to_owned(), codec::generation(generation));
    values
}

/// Values for the expressions of T7.
pub(super) fn extend(lease_until: Timestamp, expires_at: Option<Timestamp>) -> Values {
    let mut values = Values::with_capacity(8);
    values.insert(":lease_until".to_owned(), codec::millis(lease_until));
    if let Some(expires_at) = expires_at {
        values.insert(":expires_at".to_owned(), codec::seconds(expires_at));
    }
    values
}

/// Values of the whole version that was seen.
pub(super) fn as_seen(seen: &Revision) -> Values {
    let mut values = reclaim(seen);
    values.insert(":seen_lock_acquired_at".to_owned(), codec::millis(seen.lock_acquired_at));
    values
}

/// Adds the version that an operator saw, and the operator's owner and generation.
pub(super) fn of_operator(
    mut values: Values,
    seen: &Revision,
    owner: Owner,
    generation: Generation,
) -> Values {
    values.extend(as_seen(seen));
    values.insert(":owner".to_owned(), codec::owner(owner));
    values.insert(":generation".to_owned(), codec::generation(generation));
    values
}
