//! Deliveries that use the low-level `Claim`, and an operator who settles claims.

use lambda_idempotency::{
    Begun, Fingerprint, Key, Operation, Replay, Resolution, RunError, Settled,
    store::{Status, Store as _},
};

use super::{
    audit::{Ended, Right},
    deliveries::{Executor, stored_key},
    network::SimulatedStore,
    reached::Item,
    trouble::{Circumstance, Refusal},
};

/// A failure in the form in which `run` records it.
const FAILURE: &str = r#"{"error_type":"Refusal","error_message":"refused"}"#;

/// The result of a delivery.
type Answer = Result<String, RunError<Refusal>>;

impl Executor {
    /// Delivers one event with `begin`, and settles the claim.
    pub(super) async fn begin(&self, operation: &Operation, name: Key, key: u64, payload: u64) -> Answer {
        let fingerprint = Fingerprint::of(&payload).map_err(RunError::Idempotency)?;
        let claim = match operation.begin(name, fingerprint).await.map_err(RunError::Idempotency)? {
            Begun::Claimed(claim) => claim,
            Begun::Replay(replay) => return self.replayed(&replay),
        };
        let world = self.world();
        let right = Right::Claim(Some(claim.handle()));
        let run = self.audit().run_began(world.now(), self.id(), key, payload, right);
        self.work_briefly().await;
        let fails = world.strikes(Circumstance::HandlerError, 50);
        // Under at-most-once, a delivery that has begun its work never releases its key.
        let gives_back =
            !world.config.is_at_most_once(self.id()) && world.random(|random| random.chance(500));
        if fails && gives_back {
            self.audit().handler_failed(run);
            claim.release().await.map_err(RunError::Idempotency)?;
            self.audit().reached(Item::ClaimReleased);
            return Err(RunError::Handler(Refusal));
        }
        if fails {
            self.audit().handler_failed(run);
            let completion = claim.fail(FAILURE).await.map_err(RunError::Idempotency)?;
            self.audit().reached(Item::ClaimFailed);
            return match completion {
                Settled::Recorded => Err(RunError::Handler(Refusal)),
                Settled::Superseded(replay) => self.replayed(&replay),
            };
        }
        self.audit().effect(world.now(), run);
        world.count(|figures| figures.effects += 1);
        let value = format!("run {run} of key {key} with payload {payload}");
        self.audit().handler_ended(world.now(), run);
        let completion = claim.complete(format!("{value:?}")).await.map_err(RunError::Idempotency)?;
        self.audit().reached(Item::ClaimCompleted);
        match completion {
            Settled::Recorded => Ok(value),
            Settled::Superseded(replay) => self.replayed(&replay),
        }
    }

    fn replayed(&self, replay: &Replay) -> Answer {
        self.audit().reached(Item::ClaimReplayed);
        if replay.is_failure() {
            return Err(RunError::Handler(Refusal));
        }
        let text = String::from_utf8_lossy(replay.response());
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(value) => Ok(value.to_owned()),
            None => {
                self.audit().violate("a replay was recorded", format!("{text:?} isn't an answer"));
                Err(RunError::Handler(Refusal))
            }
        }
    }

    /// Sometimes lets an operator settle a claim, even while its handler runs.
    pub(super) async fn operate(&self) {
        let world = self.world();
        if !world.config.choices.operates || !world.random(|random| random.chance(200)) {
            return;
        }
        let key = world.random(|random| random.below(u64::from(world.config.keys)));
        let stored = stored_key(key);
        let (world, audit) = (world.clone(), self.audit().clone());
        let store = SimulatedStore { world: world.clone(), table: audit.table(), audit };
        let Ok(Some(record)) = store.read(&stored).await else { return };
        if record.status() != Status::Started {
            return;
        }
        // The operator can only know which payload was delivered if all deliveries have the same payload.
        let knows = !world.config.has(Circumstance::OtherPayload);
        let resolution = match world.random(|random| random.below(4)) {
            0 if knows => {
                Resolution::Complete(format!("\"an operator's answer of key {key} with payload 0\"").into())
            }
            1 => Resolution::CompleteWithoutResponse,
            2 => Resolution::Fail(FAILURE.into()),
            _ if key.is_multiple_of(2) => Resolution::Release,
            _ => Resolution::RunAgain,
        };
        let item = match &resolution {
            Resolution::Complete(_) => Item::OperatorCompletes,
            Resolution::CompleteWithoutResponse => Item::OperatorOmits,
            Resolution::Fail(_) => Item::OperatorFails,
            Resolution::Release | Resolution::RunAgain => Item::OperatorReleases,
        };
        let is_at_work = self.audit().is_at_work(&stored, record.generation);
        match self.engine().resolve(&stored, &record, resolution).await {
            Ok(Some(_)) => {
                self.audit().reached(item);
                if is_at_work {
                    self.audit().reached(Item::OperatorMeetsHandler);
                }
            }
            Ok(None) => self.audit().reached(Item::OperatorLost),
            // The write may have been applied. The audit checks each write when it reaches the table.
            Err(_) => {}
        }
        self.audit().ended(self.id(), world.now(), Ended::Refused);
    }
}
