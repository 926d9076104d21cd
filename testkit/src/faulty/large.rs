//! Responses over 1 MiB, for the sabotages of a store without chunks.

use lambda_idempotency::store::{Outcome, Place, Settlement, StoredResponse, Write};

pub(super) const LARGE: usize = 1 << 20;

/// Whether a settlement has a response over 1 MiB.
pub(super) fn is_large(write: &Write) -> bool {
    let Write::Settle { settlement, .. } = write else { return false };
    let (Settlement::Complete(outcome, _) | Settlement::Fail(outcome, _)) = settlement else { return false };
    let Outcome::Retained(StoredResponse { place: Place::Inline(bytes), .. }) = outcome else { return false };
    bytes.len() > LARGE
}
