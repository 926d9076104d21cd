//! What one delivery, or several, did: runs, payments and requests.

use std::collections::HashSet;

use super::wire::Exchange;

/// Measurements since a mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Runs of the handler, if they can be counted.
    pub(crate) runs: Option<usize>,
    /// Payments made, if the function makes any.
    pub(crate) payments: Option<usize>,
    /// The requests on the wire.
    pub(crate) passed: Vec<Exchange>,
}

impl Measured {
    /// The requests that the wire forwarded to the store.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Exchange> {
        self.passed.iter().filter(|exchange| exchange.to_store)
    }

    /// How many claims were won, including takeovers.
    pub(crate) fn claims_won(&self) -> usize {
        self.requests().filter(|one| one.meaning.claims() && one.applied()).count()
    }

    /// How many claims were settled.
    pub(crate) fn settled(&self) -> usize {
        let settled = self.requests().filter(|one| one.meaning.settles() && one.applied());
        // A transaction whose response was lost is sent again with the same token, and succeeds again. It
        // counts once.
        let mut tokens = HashSet::new();
        settled.filter(|one| one.token.as_ref().is_none_or(|token| tokens.insert(token))).count()
    }
}
