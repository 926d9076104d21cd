//! Envelope encryption of the stored responses: each response gets its own data key, which a key encryption key
//! wraps. Run it with `cargo run --example encrypted_responses`.
//!
//! Here the key encryption key is in the process. With AWS KMS, `wrap` becomes `GenerateDataKey` and `unwrap` becomes
//! `Decrypt`, with the stored key as the encryption context. Cache the data keys, since each of these calls is a
//! request to KMS.

use std::{collections::HashMap, fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey},
    key_wrap::{AES_256, AesKek, KeyWrap},
    rand,
};
use bytes::Bytes;
use lambda_idempotency::{
    Idempotency, Key, StoredKey,
    store::{BoxFuture, Cipher, Store, StoreError, StoreErrorKind, memory::MemoryStore},
};

/// The length of a wrapped data key. AES key wrap makes the key 8 bytes longer (RFC 3394).
const WRAPPED: usize = 32 + 8;
const NONCE: usize = 12;

/// Encrypts with the newest key encryption key, and decrypts with the key that a record names.
struct Envelope {
    newest: Arc<str>,
    keys: HashMap<Arc<str>, [u8; 32]>,
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope").field("newest", &self.newest).finish_non_exhaustive()
    }
}

impl Envelope {
    fn kek(&self, id: &str) -> Result<AesKek, StoreError> {
        let unknown =
            || StoreError::new(StoreErrorKind::Rejected, format!("there's no key encryption key `{id}`"));
        AesKek::new(&AES_256, self.keys.get(id).ok_or_else(unknown)?).map_err(|_| unknown())
    }

    fn seal(&self, key: &StoredKey, plaintext: &[u8]) -> Result<Bytes, StoreError> {
        let failed = |_| StoreError::new(StoreErrorKind::Unavailable, "the response couldn't be encrypted");
        let mut data_key = [0; 32];
        rand::fill(&mut data_key).map_err(failed)?;
        let mut sealed = vec![0; WRAPPED];
        self.kek(&self.newest)?.wrap(&data_key, &mut sealed).map_err(failed)?;
        let mut text = plaintext.to_vec();
        let sealing = RandomizedNonceKey::new(&AES_256_GCM, &data_key).map_err(failed)?;
        // The stored key is authenticated too, so the ciphertext can't be decrypted in another record.
        let nonce = sealing.seal_in_place_append_tag(Aad::from(key.as_str()), &mut text).map_err(failed)?;
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&text);
        Ok(sealed.into())
    }

    fn open(&self, key: &StoredKey, key_id: &str, sealed: &[u8]) -> Result<Bytes, StoreError> {
        let corrupt = || StoreError::new(StoreErrorKind::Corrupt, "the ciphertext isn't authentic");
        let (wrapped, rest) = sealed.split_at_checked(WRAPPED).ok_or_else(corrupt)?;
        let (nonce, text) = rest.split_at_checked(NONCE).ok_or_else(corrupt)?;
        let mut data_key = [0; 32];
        self.kek(key_id)?.unwrap(wrapped, &mut data_key).map_err(|_| corrupt())?;
        let opening = RandomizedNonceKey::new(&AES_256_GCM, &data_key).map_err(|_| corrupt())?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| corrupt())?;
        let mut text = text.to_vec();
        let plain =
            opening.open_in_place(nonce, Aad::from(key.as_str()), &mut text).map_err(|_| corrupt())?;
        Ok(Bytes::copy_from_slice(plain))
    }
}

impl Cipher for Envelope {
    fn encrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        plaintext: &'a Bytes,
    ) -> BoxFuture<'a, Result<(Arc<str>, Bytes), StoreError>> {
        Box::pin(async move { Ok((self.newest.clone(), self.seal(key, plaintext)?)) })
    }

    fn decrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        key_id: &'a str,
        ciphertext: &'a Bytes,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move { self.open(key, key_id, ciphertext) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = MemoryStore::new();
    let in_2025 = Envelope { newest: "2025".into(), keys: HashMap::from([("2025".into(), [7; 32])]) };
    let idempotency = Idempotency::builder(store.clone()).function("cards").cipher(in_2025).build()?;
    let issue = async || Ok::<_, std::io::Error>("4111 1111 1111 1111".to_owned());
    idempotency.operation("issue")?.run(Key::new("customer-17")?, &"gold", issue).await?;

    // After the rotation, the old record is still decrypted with the key that the record names.
    let keys = HashMap::from([("2025".into(), [7; 32]), ("2026".into(), [8; 32])]);
    let rotated = Envelope { newest: "2026".into(), keys };
    let idempotency = Idempotency::builder(store.clone()).function("cards").cipher(rotated).build()?;
    let issue_again = async || Err::<String, _>(std::io::Error::other("the handler must not run again"));
    let operation = idempotency.operation("issue")?;
    let number = operation.run(Key::new("customer-17")?, &"gold", issue_again).await?;
    assert_eq!(number, "4111 1111 1111 1111");

    let stored = operation.stored_key(&Key::new("customer-17")?);
    let record = store.read(&stored).await?.ok_or("no record")?;
    assert!(!format!("{record:?}").contains("4111"));
    eprintln!("replayed from a record that's encrypted with the key of 2025: {record:#?}");
    Ok(())
}
