//! Transactions of the simulated store. Each contains a put of the protocol, and the effects that a handler staged.

use lambda_idempotency::{
    StoredKey,
    store::{BoxFuture, CommitOutcome, OwnWrites, Put, PutOutcome, StoreError, StoreErrorKind, Transactions},
};

use super::{ITEM_LIMIT, SimulatedStore, apply, failed, response_bytes};
use crate::simulation::{
    audit::Audit,
    config::Sabotage,
    table::{Effects, Request, Stored},
    trouble::{Circumstance, Fault},
};

/// How long the store remembers a transaction's token, in ms: ten minutes, as in DynamoDB.
const TOKEN_WINDOW: u64 = 600_000;

/// The store's error when a condition on the handler's own writes fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoldOut;

/// The result of a transaction at the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered(PutOutcome),
    Declined,
}

/// Applies a transaction at the table. `declines` is whether a condition on the handler's own writes fails.
pub(super) fn commit(
    stored: &mut Stored,
    audit: &Audit,
    at: u64,
    key: &StoredKey,
    (put, effects, token): (&Put, &Effects, &str),
    declines: bool,
) -> Fate {
    let request = Request::Commit { put: put.clone(), effects: effects.clone(), token: token.to_owned() };
    if let Some((made_at, of, made)) = stored.tokens.get(token)
        && made_at.saturating_add(TOKEN_WINDOW) >= at
    {
        if (of, made) != (key, &request) {
            audit.violate(
                "a token names one request",
                format!("{key}: token {token} is used for another request at {at}"),
            );
        }
        audit.repeated(at, key);
        return Fate::Answered(PutOutcome::Applied);
    }
    let before = stored.records.get(key).cloned();
    if declines && put.apply_to(before.as_ref()).is_some() {
        audit.declined(at, key);
        return Fate::Declined;
    }
    let written = apply(stored, audit, at, key, put, Some(effects));
    match written {
        PutOutcome::Applied => {
            stored.tokens.insert(token.to_owned(), (at, key.clone(), request));
        }
        PutOutcome::Refused(_) if audit.sabotage() == Sabotage::EffectUnconditionally => {
            audit.committed(at, key, effects, before.as_ref());
        }
        PutOutcome::Refused(_) => {}
    }
    Fate::Answered(written)
}

impl SimulatedStore {
    async fn commit_now(
        &self,
        key: &StoredKey,
        put: &Put,
        effects: &Effects,
        token: &str,
    ) -> Result<CommitOutcome, StoreError> {
        let world = &self.world;
        world.count(|figures| figures.calls += 1);
        self.travel().await;
        let arrives = || drop(self.commit_at_the_table(key, put, effects, token));
        if let Some(failed) = self.in_outage(arrives, true).await {
            return Err(failed);
        }
        if response_bytes(put) > ITEM_LIMIT && world.strikes(Fault::Unstorable, 1000) {
            return failed(Fault::Unstorable);
        }
        if world.strikes(Fault::Throttle, 30) {
            return failed(Fault::Throttle);
        }
        if world.strikes(Fault::Conflict, 80) {
            return failed(Fault::Conflict)
                .map_err(|error: StoreError| error.maybe_applied(self.is_on_its_way(token)));
        }
        if world.strikes(Fault::LoseRequest, 30) {
            return self.no_answer(Fault::LoseRequest).await;
        }
        if world.strikes(Fault::Late, 50) {
            let at = world.now() + world.random(|random| random.between(1, 100_000));
            let request =
                Request::Commit { put: put.clone(), effects: effects.clone(), token: token.to_owned() };
            self.table.stored().late.push((at, key.clone(), request));
            return self.no_answer(Fault::Late).await;
        }
        let mut fate = self.commit_at_the_table(key, put, effects, token);
        if world.strikes(Fault::Retry, 60) {
            self.travel().await;
            fate = self.commit_at_the_table(key, put, effects, token);
        }
        if world.strikes(Fault::LoseAnswer, 60) {
            return self.no_answer(Fault::LoseAnswer).await;
        }
        self.travel().await;
        Ok(match fate {
            Fate::Answered(written) => CommitOutcome::Answered(written),
            Fate::Declined => CommitOutcome::Declined(Box::new(SoldOut)),
        })
    }

    /// Whether a transaction with this token was sent before, and hasn't arrived yet.
    fn is_on_its_way(&self, token: &str) -> bool {
        let is_it = |request: &Request| matches!(request, Request::Commit { token: of, .. } if of == token);
        self.table.stored().late.iter().any(|(_, _, request)| is_it(request))
    }

    fn commit_at_the_table(&self, key: &StoredKey, put: &Put, effects: &Effects, token: &str) -> Fate {
        let declines = self.world.strikes(Circumstance::Declined, 150);
        let mut stored = self.table.stored();
        self.settle_down(&mut stored, key);
        commit(&mut stored, &self.audit, self.world.now(), key, (put, effects, token), declines)
    }
}

fn effects(writes: &OwnWrites) -> Result<&Effects, StoreError> {
    let writes: &dyn std::any::Any = writes;
    let rejected = || StoreError::new(StoreErrorKind::Rejected, "the staged writes aren't `Effects`");
    writes.downcast_ref().ok_or_else(rejected)
}

impl Transactions for SimulatedStore {
    fn check(&self, _: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        effects(writes).map(drop)
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move { self.commit_now(key, put, effects(writes)?, token).await })
    }
}
