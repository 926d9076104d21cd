//! Encryption of the recorded responses, with a simulated AWS KMS.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lambda_idempotency::{Idempotency, KeyFields, store::memory::MemoryStore};
use lambda_idempotency_rehearsal::database::Database;
use lambda_runtime::Context;
use serde_json::{Value, json};
use testkit::{
    front_ends::{POST, event},
    http_server::{Received, Reply, Server},
    unpaused::unpaused,
};

use super::{
    bench::{Function, Lambda},
    http_events::created,
    process::{WORKING, code, on_table, table},
    settings::delivered,
};

const KEY_ARN: &str = "arn:aws:kms:eu-west-1:111122223333:key/one";

/// The data keys that KMS has given out, by their ciphertexts, and whether it denies every request.
#[derive(Default)]
struct Kms {
    keys: BTreeMap<String, String>,
    denies: bool,
    /// The requests, without those that the SDK sent again.
    requests: Vec<&'static str>,
}

async fn kms() -> (Server, Arc<Mutex<Kms>>) {
    let kms = Arc::new(Mutex::new(Kms::default()));
    let serves = Arc::clone(&kms);
    let server =
        Server::start(move |request| std::future::ready(serves.lock().unwrap().answer(&request))).await;
    (server, kms)
}

impl Kms {
    fn answer(&mut self, request: &Received) -> Reply {
        let sent: Value = serde_json::from_slice(&request.body).unwrap();
        let answer = |status, json: Value| Reply::Whole(status, Vec::new(), json.to_string().into());
        let refusal = |code| answer(400, json!({ "__type": code, "message": "no" }));
        if self.denies {
            return refusal("AccessDeniedException");
        }
        if sent["EncryptionContext"] != json!({ "purpose": "lambda-idempotency" }) {
            return refusal("InvalidCiphertextException");
        }
        let is_first = request.headers["amz-sdk-request"].contains("attempt=1;");
        match request.headers["x-amz-target"].as_str() {
            "TrentService.GenerateDataKey" if sent["KeyId"] == "alias/payments" => {
                self.requests.extend(is_first.then_some("draw"));
                let number = self.keys.len();
                let plain = STANDARD.encode([u8::try_from(number).unwrap(); 32]);
                let encrypted = STANDARD.encode(format!("encrypted data key {number}"));
                self.keys.insert(encrypted.clone(), plain.clone());
                answer(200, json!({ "CiphertextBlob": encrypted, "Plaintext": plain, "KeyId": KEY_ARN }))
            }
            "TrentService.Decrypt" if sent["KeyId"] == KEY_ARN => {
                self.requests.extend(is_first.then_some("decrypt"));
                let plain = &self.keys[sent["CiphertextBlob"].as_str().unwrap()];
                answer(200, json!({ "Plaintext": plain, "KeyId": KEY_ARN }))
            }
            _ => refusal("NotFoundException"),
        }
    }
}

/// The record of this event's operation, as text.
async fn record(database: &Database, key: &str, event: &str) -> String {
    let idempotency = Idempotency::builder(MemoryStore::new()).function("f").build().unwrap();
    let described = match key {
        "header" => idempotency.http().describe(),
        pointer => idempotency.events_by::<Value>(KeyFields::new([pointer]).unwrap()).describe(),
    };
    let located = described.locate(event.as_bytes(), &Context::default(), None).unwrap();
    database.record("records", located[0].key.as_str()).await.unwrap().to_string()
}

#[tokio::test]
async fn recorded_responses_are_encrypted() {
    let ((server, kms), (database, wire)) = (kms().await, table().await);
    let (endpoint, of_kms) = (wire.endpoint(), server.url(""));
    let settings = |cipher, key| {
        let kms = [
            ("IDEMPOTENCY_CIPHER", cipher),
            ("AWS_ENDPOINT_URL_KMS", of_kms.as_str()),
            ("IDEMPOTENCY_KEY", key),
            ("AWS_LAMBDA_INITIALIZATION_TYPE", if key == "/id" { "snap-start" } else { "on-demand" }),
        ];
        [&on_table(&endpoint)[..], &kms].concat()
    };
    let http = event("http-api", POST).to_string();
    for (key, event, own) in
        [("/id", r#"{"id": 1}"#, "\"paid 1\"".to_owned()), ("header", http.as_str(), created().to_string())]
    {
        for expected in [true, false] {
            let lambda = Lambda::start().await;
            let function = Function::start(&lambda, &settings("kms:alias/payments", key)).await;
            for runs in [expected, false] {
                let (ran, answer) = delivered(&lambda, &function, event, &own).await;
                assert_eq!(ran, runs, "{key}: {}", function.log());
                assert!(answer.text().contains("paid"), "{answer:?}");
            }
        }
        let record = record(&database, key, event).await;
        let plain =
            ["paid".to_owned(), STANDARD.encode("\"paid 1\""), STANDARD.encode("paid")[..4].to_owned()];
        assert!(record.contains(KEY_ARN) && !plain.iter().any(|plain| record.contains(plain)), "{record}");
    }
    // Two of the four processes check the key, and not those whose snapshot would have the connection. Two record, and
    // draw a data key. The other two decrypt it once.
    let requests = kms.lock().unwrap().requests.clone();
    let [drawn, decrypted] =
        ["draw", "decrypt"].map(|name| requests.iter().filter(|is| **is == name).count());
    assert_eq!((drawn, decrypted), (4, 2), "{requests:?}");

    // Without the key, the duplicate is refused, and the function doesn't run.
    kms.lock().unwrap().denies = true;
    let lambda = Lambda::start().await;
    let plain: Vec<_> = settings("kms:alias/payments", "/id");
    let plain: Vec<_> = plain.into_iter().filter(|(name, _)| *name != "IDEMPOTENCY_CIPHER").collect();
    let function = Function::start(&lambda, &plain).await;
    let (ran, refused) = delivered(&lambda, &function, r#"{"id": 1}"#, "never").await;
    assert_eq!((ran, refused.is_error), (false, true), "{refused:?}");
}

#[tokio::test]
async fn wrong_cipher_key_fails_the_init() {
    let (server, kms) = kms().await;
    let of_kms = server.url("");
    for (denies, key, says) in [
        (true, "kms:alias/payments", "AccessDeniedException"),
        (false, "kms:alias/other", "NotFoundException"),
    ] {
        kms.lock().unwrap().denies = denies;
        let settings = [
            ("IDEMPOTENCY_CIPHER", key),
            ("AWS_ENDPOINT_URL_KMS", of_kms.as_str()),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
        ];
        // The layer waits only 2 s for KMS.
        let settings = [WORKING, &settings].concat();
        let failed = async || code(&Lambda::start().await, &settings, &["/bin/true"]).await.1;
        let log = unpaused(failed, |log| log.contains(says)).await;
        assert!(log.contains("IDEMPOTENCY_CIPHER") && log.contains(says), "{log}");
    }
}
