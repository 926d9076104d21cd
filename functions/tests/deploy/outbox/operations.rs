//! Runs operations of every kind through the library, and notes the outcomes that the table's records show.

use std::{collections::BTreeSet, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
        StreamSpecification, StreamViewType,
    },
};
use lambda_idempotency::{
    Fingerprint, Idempotency, Key, Operation, Resolution,
    store::{Status, Store as _, dynamodb::DynamoDbStore},
};
use lambda_idempotency_testing::Random;
use testkit::clock::SetClock;

/// A text in keys and responses. No log may contain it. An event may contain it only if `RESPONSES=include` is set.
pub(super) const SECRET: &str = "canary";

/// The failure that an operator records.
const FAILURE: &[u8] = br#"{"error_type":"Corrected","error_message":"canary"}"#;

/// The size of a response that's too large for one record, in bytes.
const LARGE: usize = 3_000;
const INLINE_LIMIT: usize = 1_000;

/// An operation that ended: its stored key, its generation and its outcome.
pub(super) type End = (String, u64, &'static str);

/// A table with a stream, and the operations in it.
pub(super) struct Operations {
    client: Client,
    table: String,
    store: DynamoDbStore,
    operation: Operation,
    idempotency: Idempotency,
    /// The test moves it, so that leases and records expire.
    clock: SetClock,
    random: Random,
    started: usize,
    ends: BTreeSet<End>,
}

impl Operations {
    pub(super) async fn new(client: Client, table: String, seed: u64) -> Self {
        create_table(&client, &table).await;
        let store = DynamoDbStore::builder(&table)
            .client(client.clone())
            .inline_limit(INLINE_LIMIT)
            // Long timeouts, since the machine may be busy.
            .attempt_timeout(Duration::from_secs(20))
            .operation_timeout(Duration::from_secs(60))
            .build()
            .await
            .unwrap();
        let clock = SetClock::tokio();
        let idempotency = Idempotency::builder(store.clone()).function("shop").clock(clock.clone());
        let idempotency = idempotency.build().unwrap();
        let operation = idempotency.operation("pay").unwrap();
        let (random, ends) = (Random::new(seed), BTreeSet::new());
        Self { client, table, store, operation, idempotency, clock, random, started: 0, ends }
    }

    /// The outcomes so far, as the records showed them.
    pub(super) fn ends(&self) -> &BTreeSet<End> {
        &self.ends
    }

    /// Completes the operation with this name.
    pub(super) async fn pay(&mut self, name: &str) {
        self.pay_with(name, serde_json::to_vec(SECRET).unwrap()).await;
    }

    /// Completes the operation with this name, and with this response.
    pub(super) async fn pay_with(&mut self, name: &str, response: Vec<u8>) {
        let claim = self.claim(&Key::new(name).unwrap()).await.unwrap();
        let _ = claim.complete(response).await.unwrap();
        self.note(&Key::new(name).unwrap()).await;
    }

    /// Records, in the role of an operator, that the operation failed.
    pub(super) async fn correct_to_failure(&mut self, name: &str) {
        let key = Key::new(name).unwrap();
        self.resolve(&key, Resolution::Fail(FAILURE.into())).await;
        self.note(&key).await;
    }

    /// Performs one random step, on a new key or on an earlier one.
    pub(super) async fn go_on(&mut self) {
        let is_new = self.started == 0 || self.random.percent(60);
        let nth = if is_new { self.started } else { self.random.index(self.started) };
        self.started += usize::from(is_new);
        let key = Key::new(format!("{SECRET}-{nth}")).unwrap();
        match self.random.below(12) {
            0..=2 => self.complete(&key, response(20)).await,
            3 => self.complete(&key, response(LARGE)).await,
            4 => self.fail(&key).await,
            5 => self.release(&key).await,
            6 => self.die(&key).await,
            7 => self.die_and_resolve(&key).await,
            8 => self.correct(&key).await,
            9 => self.conclude(&key).await,
            10 => self.clock.forward(Duration::from_secs(25 * 60 * 60)),
            _ => self.delete(&key).await,
        }
        self.note(&key).await;
    }

    async fn claim(&self, key: &Key) -> Option<lambda_idempotency::Claim> {
        match self.operation.begin(key, Fingerprint::of_bytes(b"the request")).await {
            Ok(lambda_idempotency::Begun::Claimed(claim)) => Some(claim),
            // The operation has ended, or another delivery holds its claim.
            _ => None,
        }
    }

    async fn complete(&mut self, key: &Key, response: Vec<u8>) {
        let Some(mut claim) = self.claim(key).await else { return };
        if self.random.percent(30) {
            // The claim stays valid whether or not the extension succeeds.
            let _ = claim.extend(Duration::from_secs(600)).await;
        }
        let _ = claim.complete(response).await.unwrap();
    }

    async fn fail(&self, key: &Key) {
        let Some(claim) = self.claim(key).await else { return };
        let _ = claim.fail(response(20)).await.unwrap();
    }

    async fn release(&mut self, key: &Key) {
        let Some(claim) = self.claim(key).await else { return };
        claim.release().await.unwrap();
        if self.random.percent(50) {
            self.complete(key, response(20)).await;
        }
    }

    /// The operation's process dies. In most cases, the next delivery then takes over.
    async fn die(&mut self, key: &Key) {
        let Some(claim) = self.claim(key).await else { return };
        std::mem::forget(claim);
        self.clock.forward(Duration::from_secs(120));
        if self.random.percent(70) {
            self.complete(key, response(20)).await;
        }
    }

    async fn die_and_resolve(&self, key: &Key) {
        let Some(claim) = self.claim(key).await else { return };
        std::mem::forget(claim);
        self.resolve(key, Resolution::CompleteWithoutResponse).await;
    }

    /// An operator resolves the operation, which may have ended with another outcome.
    async fn correct(&mut self, key: &Key) {
        let resolution = match self.random.below(3) {
            0 => Resolution::Release,
            1 => Resolution::Fail(FAILURE.into()),
            _ => Resolution::Complete(response(20).into()),
        };
        self.resolve(key, resolution).await;
    }

    async fn resolve(&self, key: &Key, resolution: Resolution) {
        let key = self.operation.stored_key(key);
        let Some(seen) = self.store.read(&key).await.unwrap() else { return };
        let resolved = self.idempotency.resolve(&key, &seen, resolution).await.unwrap();
        assert!(resolved.is_some());
    }

    /// Runs without a claim: one write stores the record with its outcome.
    async fn conclude(&self, key: &Key) {
        let operation = self.idempotency.optimistic().unwrap().operation("pay").unwrap();
        // The run is refused if another delivery holds the operation's claim.
        let _ = operation.run(key, "the request", async || Ok::<_, std::fmt::Error>(SECRET.to_owned())).await;
    }

    /// Deletes the record, as TTL does.
    async fn delete(&self, key: &Key) {
        let id = AttributeValue::S(self.operation.stored_key(key).to_string());
        self.client.delete_item().table_name(&self.table).key("id", id).send().await.unwrap();
    }

    async fn note(&mut self, key: &Key) {
        let key = self.operation.stored_key(key);
        let Some(record) = self.store.read(&key).await.unwrap() else { return };
        let outcome = match record.status() {
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Started | Status::Released => return,
        };
        self.ends.insert((key.to_string(), record.generation.get(), outcome));
    }
}

/// A response that's compressed to a few bytes in the record, and is too large for an event.
pub(super) fn long_response() -> Vec<u8> {
    serde_json::to_vec(&"a".repeat(300 * 1024)).unwrap()
}

/// A response that the store keeps in chunks beside the record.
pub(super) fn response_in_chunks() -> Vec<u8> {
    response(LARGE)
}

fn response(bytes: usize) -> Vec<u8> {
    // Digits that hardly compress.
    let mut random = Random::new(bytes as u64);
    let digits: String = std::iter::repeat_with(|| format!("{:x}", random.bits())).take(bytes / 8).collect();
    format!(r#""{SECRET} {digits}""#).into_bytes()
}

async fn create_table(client: &Client, table: &str) {
    let attribute =
        AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let stream =
        StreamSpecification::builder().stream_enabled(true).stream_view_type(StreamViewType::NewAndOldImages);
    let request = client.create_table().table_name(table).billing_mode(BillingMode::PayPerRequest);
    let request = request.attribute_definitions(attribute.build().unwrap()).key_schema(key.build().unwrap());
    request.stream_specification(stream.build().unwrap()).send().await.unwrap();
}
