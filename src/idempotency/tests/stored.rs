//! How a response is stored: encrypted, in another format, or without its bytes.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::*;
use crate::{
    StoredKey,
    store::{BoxFuture, Cipher, Format, StoreError, StoreErrorKind},
};

/// A toy cipher with scripted errors. It binds each ciphertext to its record's [`StoredKey`].
#[derive(Debug, Default)]
struct Vault {
    encrypting: Mutex<VecDeque<StoreErrorKind>>,
    decrypting: Mutex<VecDeque<StoreErrorKind>>,
}

fn next(script: &Mutex<VecDeque<StoreErrorKind>>) -> Result<(), StoreError> {
    match script.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
        Some(kind) => Err(StoreError::new(kind, "the vault is closed")),
        None => Ok(()),
    }
}

fn xored(key: &StoredKey, bytes: &[u8]) -> Bytes {
    let pad = key.as_str().bytes().cycle();
    bytes.iter().zip(pad).map(|(byte, pad)| byte ^ pad ^ 0x5a).collect()
}

impl Cipher for Vault {
    fn encrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        plaintext: &'a Bytes,
    ) -> BoxFuture<'a, Result<(Arc<str>, Bytes), StoreError>> {
        Box::pin(async move {
            next(&self.encrypting)?;
            let marked = [b"sealed:", plaintext.as_ref()].concat();
            Ok(("key-1".into(), xored(key, &marked)))
        })
    }

    fn decrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        key_id: &'a str,
        ciphertext: &'a Bytes,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move {
            next(&self.decrypting)?;
            let opened = xored(key, ciphertext);
            match opened.strip_prefix(b"sealed:") {
                Some(plain) if key_id == "key-1" => Ok(Bytes::copy_from_slice(plain)),
                _ => Err(StoreError::new(StoreErrorKind::Corrupt, "the ciphertext isn't authentic")),
            }
        })
    }
}

/// Returns a vault that fails with errors of these kinds, in this order.
fn vault(encrypting: &[StoreErrorKind], decrypting: &[StoreErrorKind]) -> Vault {
    Vault {
        encrypting: Mutex::new(encrypting.iter().copied().collect()),
        decrypting: Mutex::new(decrypting.iter().copied().collect()),
    }
}

const SECRET: &str = "4111 1111 1111 1111";

fn secret_of(length: usize) -> String {
    SECRET.repeat(length.div_ceil(SECRET.len()))
}

async fn ask(bench: &Bench, answer: &str) -> Result<String, RunError<TestError>> {
    let answer = answer.to_owned();
    let handler = || async {
        bench.count_run();
        Ok(answer)
    };
    bench.operation().run(Key::new("k").unwrap(), &1, handler).await
}

fn kept(bench: &Bench) -> (StoredResponse, Bytes) {
    let State::Completed(Outcome::Retained(stored)) = bench.record("k").state else { panic!("not kept") };
    let Place::Inline(kept) = &stored.place else { panic!("in chunks") };
    let kept = kept.clone();
    (stored, kept)
}

#[tokio::test(start_paused = true)]
async fn encrypted_responses_are_replayed() {
    for length in [1, 5000, 200_000] {
        let bench = Bench::with(|builder| builder.cipher(Vault::default()));
        let secret = secret_of(length);
        assert_eq!(ask(&bench, &secret).await.unwrap(), secret);
        let (stored, bytes) = kept(&bench);
        assert_eq!(stored.labels.as_ref().map(|text| text.as_str()), Some("key=key-1"));
        assert!(!bytes.windows(4).any(|window| window == b"4111"), "{length}");
        // The stored digest isn't the plaintext's digest, because that digest would let a reader confirm a guess.
        let plain = serde_json::to_vec(&secret).unwrap();
        assert_ne!(stored.sha256, StoredResponse::new(plain.into()).sha256);
        assert_eq!(ask(&bench, "another run's").await.unwrap(), secret);
        assert!(stored.decode(&bytes).is_err(), "the bytes must be unreadable without the cipher");
    }
}

#[tokio::test(start_paused = true)]
async fn encrypted_failures_are_replayed() {
    let bench = Bench::with(|builder| {
        builder.cipher(Vault::default()).settings(|s| s.on_handler_error = Recording::Record)
    });
    for _ in 0..2 {
        let operation = bench.operation();
        let failing = operation.run(Key::new("k").unwrap(), &1, || async { Err::<(), _>(TestError) });
        assert!(matches!(failing.await, Err(RunError::Recorded(_))));
    }
    let State::Failed(Outcome::Retained(stored)) = bench.record("k").state else { panic!() };
    assert!(stored.labels.is_some());
}

/// Without the right cipher nothing runs and nothing is replayed.
#[tokio::test(start_paused = true)]
async fn unreadable_ciphertexts_are_refused() {
    let bench = Bench::with(|builder| builder.cipher(Vault::default()));
    ask(&bench, SECRET).await.unwrap();
    let without = bench.beside(|builder| builder);
    let kind = |answer: Result<String, RunError<TestError>>| match answer.unwrap_err() {
        RunError::Idempotency(error) => {
            assert!(!error.to_string().contains("4111"), "{error}");
            error.kind()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(ask(&without, "x").await), ErrorKind::Invalid);

    for (error, expected) in [
        (StoreErrorKind::Unavailable, ErrorKind::Unavailable),
        (StoreErrorKind::Rejected, ErrorKind::Invalid),
        (StoreErrorKind::Corrupt, ErrorKind::Corrupt),
    ] {
        let failing = bench.beside(|builder| builder.cipher(vault(&[], &[error])));
        assert_eq!(kind(ask(&failing, "x").await), expected, "{error:?}");
        assert_eq!(ask(&failing, "x").await.unwrap(), SECRET, "the next delivery reads the response");
    }
    assert_eq!(bench.runs(), 1, "only the first delivery runs the handler");

    // A ciphertext can't be decrypted after someone copied it to another record.
    let record = bench.record("k");
    bench.store.set("l", record);
    let operation = bench.operation();
    let other = operation.run(Key::new("l").unwrap(), &1, || async { Ok::<_, TestError>(String::new()) });
    assert_eq!(kind(other.await), ErrorKind::Corrupt);
}

#[tokio::test(start_paused = true)]
async fn plaintext_records_stay_readable_with_cipher() {
    let bench = Bench::new();
    ask(&bench, "in plaintext").await.unwrap();
    let encrypting = bench.beside(|builder| builder.cipher(Vault::default()));
    assert_eq!(ask(&encrypting, "x").await.unwrap(), "in plaintext");
}

/// A response that can't be encrypted is never stored in plaintext.
#[tokio::test(start_paused = true)]
async fn failing_ciphers_store_no_plaintext() {
    use StoreErrorKind::{Corrupt, Rejected, Unavailable, Unstorable};
    for (script, is_kept) in [
        (vec![Unavailable; 3], true),
        (vec![Rejected, Unavailable], true),
        (vec![Unavailable; 10_000], false),
        (vec![Unstorable], false),
        (vec![Corrupt], false),
    ] {
        let bench = Bench::with(|builder| builder.cipher(vault(&script, &[])));
        assert_eq!(ask(&bench, SECRET).await.unwrap(), SECRET, "the first caller gets its answer");
        if is_kept {
            assert!(kept(&bench).0.labels.is_some());
            assert_eq!(ask(&bench, "x").await.unwrap(), SECRET);
        } else {
            assert!(matches!(bench.record("k").state, State::Completed(Outcome::Omitted)));
            let again = ask(&bench, "x").await.unwrap_err();
            assert!(matches!(again, RunError::Idempotency(error) if error.kind() == ErrorKind::NotRetained));
        }
    }
}

/// A format that stores JSON with its bytes reversed.
struct Reversed;

impl Format for Reversed {
    const NAME: &'static str = "reversed-json";

    fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Cow<'static, str>> {
        let mut bytes = serde_json::to_vec(value).map_err(|_| "can't be written as JSON")?;
        bytes.reverse();
        Ok(bytes)
    }

    fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Cow<'static, str>> {
        let forward: Vec<u8> = bytes.iter().rev().copied().collect();
        serde_json::from_slice(&forward).map_err(|_| "isn't valid JSON".into())
    }
}

#[tokio::test(start_paused = true)]
async fn formats_are_recorded_and_replayed() {
    for cached in [0, 1 << 20] {
        let bench = Bench::with(|builder| builder.settings(|s| s.local_cache = cached));
        let operation = bench.operation().format::<Reversed>();
        for answer in [17, 99] {
            let work = || async { Ok::<_, TestError>(answer) };
            assert_eq!(operation.run(Key::new("k").unwrap(), &1, work).await.unwrap(), 17);
        }
        let (stored, bytes) = kept(&bench);
        assert_eq!(
            (stored.labels.as_ref().map(|text| text.as_str()), bytes.as_ref()),
            (Some("format=reversed-json"), &b"71"[..])
        );
        // The bytes `71` are valid JSON too. Only the recorded format's name shows that they don't mean 71.
        let plain = bench.operation();
        let json = plain.run(Key::new("k").unwrap(), &1, || async { Ok::<_, TestError>(0) });
        let RunError::Idempotency(error) = json.await.unwrap_err() else { panic!() };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("recorded as reversed-json, not as json"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn formats_read_earlier_json_records() {
    let bench = Bench::new();
    ask(&bench, "json").await.unwrap();
    let operation = bench.operation().format::<Reversed>();
    let again = operation.run(Key::new("k").unwrap(), &1, || async { Ok::<_, TestError>(String::new()) });
    assert_eq!(again.await.unwrap(), "json");
}

/// After a gateway's timeout, the client retries. The retry needs the response, so the library still encrypts and
/// stores the response.
#[tokio::test(start_paused = true)]
async fn late_responses_are_still_encrypted() {
    let bench = Bench::with(|builder| builder.cipher(Vault::default()));
    let now = bench.now();
    let after = |seconds| now.saturating_add(Duration::from_secs(seconds));
    let invocation = Invocation::entered(now, after(60), "id").with_caller_waiting_until(after(29));
    let handler = async {
        tokio::time::sleep(Duration::from_secs(35)).await;
        Ok(SECRET.to_owned())
    };
    assert_eq!(bench.within(invocation).with_handler("k", 1, handler).await.unwrap(), SECRET);
    assert_eq!(ask(&bench, "another run's").await.unwrap(), SECRET);
}

/// If `max_response` is 0, no response is kept, and no event reports a response as lost.
#[tokio::test(start_paused = true)]
async fn zero_max_response_keeps_no_response() {
    let bench = Bench::with(|builder| builder.settings(|s| s.max_response = 0));
    let events = bench.recorded(ask(&bench, SECRET)).await;
    assert!(!events.iter().any(|event| event.contains("not_retained")), "{events:?}");
    assert!(matches!(bench.record("k").state, State::Completed(Outcome::Omitted)));
    let again = ask(&bench, "x").await.unwrap_err();
    assert!(matches!(again, RunError::Idempotency(error) if error.kind() == ErrorKind::NotRetained));
}

/// A cache that exceeds its limit of records evicts the least recently used record.
#[tokio::test(start_paused = true)]
async fn cache_evicts_beyond_its_record_limit() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.local_cache = 1 << 20;
            s.local_cache_records = Some(2);
        })
    });
    for key in ["a", "b", "c"] {
        bench.run(key, 1).await.unwrap();
    }
    bench.store.take_calls();
    for (key, requests) in [("c", 0), ("b", 0), ("a", 1)] {
        bench.run(key, 1).await.unwrap();
        assert_eq!(bench.store.take_calls().len(), requests, "{key}");
    }
}
