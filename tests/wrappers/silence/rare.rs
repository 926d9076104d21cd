//! Rare log events, which no other test of this test program causes.

use std::{convert::Infallible, future::pending, time::Duration};

use lambda_idempotency::{
    Begun, Builder, Claim, Fingerprint, Idempotency, Key,
    settings::Execution,
    store::{Outcome, Put, Record, State, StoreError, StoreErrorKind, StoredResponse, memory::MemoryStore},
};
use testkit::{
    clock::SetClock,
    hooked::{Asked, Hooked, Then},
};

use super::secret;
use crate::recording;

/// A number of seconds after which a claim is stale: longer than its lease and the skew margin together.
const STALE: u64 = 70;

/// An `Idempotency` on a memory store, with a clock that the test can move forward.
struct Bench {
    store: MemoryStore,
    clock: SetClock,
    engine: Idempotency,
    key: Key,
    payload: String,
}

impl Bench {
    fn new(configure: impl FnOnce(Builder) -> Builder) -> Self {
        let (store, clock) = (MemoryStore::new(), SetClock::system());
        let builder = Idempotency::builder(store.clone()).function("rare").clock(clock.clone());
        let engine = configure(builder).build().unwrap();
        Self {
            store,
            clock,
            engine,
            key: Key::new(secret("rare-key")).unwrap(),
            payload: secret("rare-payload"),
        }
    }

    async fn begin(&self) -> Result<Begun, lambda_idempotency::Error> {
        self.engine
            .operation("charge")
            .unwrap()
            .begin(&self.key, Fingerprint::of(&self.payload).unwrap())
            .await
    }

    async fn claim(&self) -> Claim {
        let Begun::Claimed(claim) = self.begin().await.unwrap() else { panic!("nothing should be replayed") };
        claim
    }

    async fn run(&self) {
        let handler = || async { Ok::<_, Infallible>(secret("rare-response")) };
        if let Err(error) =
            self.engine.operation("charge").unwrap().run(&self.key, &self.payload, handler).await
        {
            recording::error(&error);
        }
    }
}

#[tokio::test]
async fn takeover_and_fencing_leak_no_secret() {
    let bench = Bench::new(|builder| builder);
    let late = bench.claim().await;
    bench.clock.set_ahead(STALE);
    let successor = bench.claim().await;
    recording::shown(&successor.complete(secret("rare-response")).await.unwrap());
    recording::shown(&late.complete(secret("rare-late")).await.unwrap());
}

#[tokio::test]
async fn unknown_outcomes_leak_no_secret() {
    let bench = Bench::new(|builder| builder.execution(Execution::AtMostOnce));
    drop(bench.claim().await);
    bench.clock.set_ahead(STALE);
    recording::error(&bench.begin().await.unwrap_err());
}

#[tokio::test]
async fn oversized_responses_leak_no_secret() {
    let bench = Bench::new(|builder| builder.settings(|s| s.max_response = 1));
    bench.run().await;
    bench.run().await;
}

#[tokio::test]
async fn damaged_responses_leak_no_secret() {
    let bench = Bench::new(|builder| builder);
    bench.run().await;
    let (key, record) = bench.store.all().remove(0);
    let response = StoredResponse { sha256: [0; 32], ..StoredResponse::new(secret("rare-damaged").into()) };
    let damaged = Record { state: State::Completed(Outcome::Retained(response)), ..record };
    recording::shown(&damaged);
    bench.store.set(&key, Some(damaged));
    bench.run().await;
}

#[tokio::test]
async fn interrupted_handlers_leak_no_secret() {
    let short = Duration::from_millis(20);
    let bench = Bench::new(|builder| {
        builder.settings(|s| {
            s.lease_grace = short / 2;
            s.lease_fallback = short;
        })
    });
    let charge = bench.engine.operation("charge").unwrap();
    let run = charge.run(&bench.key, &bench.payload, pending::<Result<String, Infallible>>);
    recording::error(&run.await.unwrap_err());
}

/// A store that accepts claims, and fails every settlement and read.
fn forgetful(kind: StoreErrorKind) -> Hooked {
    Hooked::new(MemoryStore::new(), move |_, asked| match asked {
        Asked::Put(Put::Mine { .. }) => {
            Then::Fail(StoreError::new(kind, "the settlement failed").maybe_applied(true))
        }
        Asked::Put(_) => Then::Pass,
        Asked::Read => Then::Fail(StoreError::new(kind, "the read failed")),
    })
}

#[tokio::test]
async fn unstored_outcomes_leak_no_secret() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Rejected] {
        let builder = Idempotency::builder(forgetful(kind));
        let engine = builder.function("rare").settings(|s| {
            s.settle_within = Duration::ZERO;
            s.fail_open = true;
        });
        let engine = engine.build().unwrap();
        let (key, payload) = (Key::new(secret("rare-key")).unwrap(), secret("rare-payload"));
        let handler = || async { Ok::<_, Infallible>(secret("rare-response")) };
        let engine = engine.operation("charge").unwrap();
        engine.run(&key, &payload, handler).await.unwrap();
        let Begun::Claimed(claim) = engine
            .begin(Key::new(secret("rare-other")).unwrap(), Fingerprint::of(&payload).unwrap())
            .await
            .unwrap()
        else {
            panic!("not claimed")
        };
        recording::error(&claim.complete(secret("rare-response")).await.unwrap_err());
    }
}
