//! Encrypts recorded responses with data keys of AWS KMS: envelope encryption.
//!
//! A ciphertext begins with the data key, which KMS has encrypted: two bytes with its length, and the key. The nonce and
//! the response follow, encrypted by AES-256-GCM. The record's id is authenticated, so that the ciphertext can't be
//! decrypted in another record.

use std::{
    collections::VecDeque,
    env,
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_config::{BehaviorVersion, Region, timeout::TimeoutConfig};
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_sdk_kms::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    primitives::Blob,
    types::DataKeySpec,
};
use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{BoxFuture, Cipher, StoreError, StoreErrorKind},
    time::{Clock as _, Timestamp, system_clock},
};

use crate::config::is_snapshotted;

/// The encryption context of each data key. KMS decrypts a data key only with the same context.
const CONTEXT: (&str, &str) = ("purpose", "lambda-idempotency");
/// How long a process encrypts with one data key. Each data key costs a request to KMS.
const USED_FOR: Duration = Duration::from_secs(5 * 60);
/// How many responses a process encrypts with one data key. AES-GCM with random nonces allows 2^32 (NIST SP 800-38D,
/// section 8.3).
const MOST_USES: u32 = 1_000_000;
/// How many decrypted data keys a process keeps.
const MOST_KEPT: usize = 16;
/// How long the check of the key may delay the init, in which the function's runtime waits: two attempts. A small
/// function needs most of one to start its random generator.
const CHECKED_WITHIN: Duration = Duration::from_secs(2);
/// How long one attempt of a request to KMS may take: as long as an attempt of a store's request.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The variables that name the endpoint, in the order in which the SDK tries them.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_KMS", "AWS_ENDPOINT_URL"];

/// A data key.
#[derive(Clone)]
struct DataKey {
    /// The KMS key that encrypted the data key: its ARN.
    id: Arc<str>,
    encrypted: Bytes,
    plain: [u8; 32],
}

/// The data key that the process encrypts with.
struct Current {
    key: DataKey,
    until: Timestamp,
    uses: u32,
}

/// The cipher with a KMS key.
pub(crate) struct Kms {
    client: Client,
    key: String,
    current: tokio::sync::Mutex<Option<Current>>,
    kept: Mutex<VecDeque<DataKey>>,
}

impl fmt::Debug for Kms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kms").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Kms {
    /// A cipher with this KMS key: its id, its ARN, or the name or ARN of an alias. Draws a data key, to find a wrong
    /// key or a missing permission during the init. The data key isn't used. If Lambda takes a snapshot of this process,
    /// none is drawn: the snapshot would have an open connection, and the state of the random generator.
    ///
    /// # Errors
    ///
    /// A sentence, if KMS rejects the request. If KMS doesn't answer within two seconds, logs a warning.
    pub(crate) async fn open(key: &str) -> Result<Self, String> {
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT).build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).timeout_config(timeouts);
        if let Some(region) = variable(["AWS_REGION", "AWS_DEFAULT_REGION"]) {
            loader = loader.region(Region::new(region));
        }
        let mut config = aws_sdk_kms::config::Builder::from(&loader.load().await);
        // The SDK would take an empty variable as an endpoint, and panic at each request.
        if ENDPOINTS.iter().any(|name| env::var(name).is_ok_and(|value| value.is_empty())) {
            config.set_endpoint_url(variable(ENDPOINTS));
        }
        let kms = Self {
            client: Client::from_conf(config.build()),
            key: key.to_owned(),
            current: tokio::sync::Mutex::default(),
            kept: Mutex::default(),
        };
        if is_snapshotted() {
            return Ok(kms);
        }
        let checked = tokio::select! {
            checked = kms.draw() => checked,
            () = system_clock().sleep(CHECKED_WITHIN) => {
                Err(StoreError::new(StoreErrorKind::Unavailable, "KMS didn't answer in time"))
            }
        };
        match checked {
            Err(error) if error.kind() != StoreErrorKind::Unavailable => {
                Err(format!("IDEMPOTENCY_CIPHER: {}", with_causes(&error)))
            }
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "couldn't check the key of IDEMPOTENCY_CIPHER");
                Ok(kms)
            }
            Ok(_) => Ok(kms),
        }
    }

    /// Draws a new data key.
    async fn draw(&self) -> Result<DataKey, StoreError> {
        let request = self.client.generate_data_key().key_id(&self.key).key_spec(DataKeySpec::Aes256);
        let drawn = request.encryption_context(CONTEXT.0, CONTEXT.1).send().await;
        let drawn = drawn.map_err(|error| match kind_of(&error) {
            // A retry fails too, and the outcome must be recorded. The library then records it without the response.
            StoreErrorKind::Rejected => failed(StoreErrorKind::Unstorable, "give a data key", error),
            kind => failed(kind, "give a data key", error),
        })?;
        let plain = drawn.plaintext.as_ref().and_then(|plain| plain.as_ref().try_into().ok());
        match (drawn.key_id, drawn.ciphertext_blob, plain) {
            (Some(id), Some(encrypted), Some(plain)) => {
                Ok(DataKey { id: id.into(), encrypted: encrypted.into_inner().into(), plain })
            }
            _ => Err(StoreError::new(StoreErrorKind::Unavailable, "KMS's answer has no data key")),
        }
    }

    /// The data key to encrypt with. Concurrent calls wait for one request.
    async fn current(&self) -> Result<DataKey, StoreError> {
        let mut current = self.current.lock().await;
        let now = system_clock().now();
        if let Some(current) =
            current.as_mut().filter(|current| now < current.until && current.uses < MOST_USES)
        {
            current.uses += 1;
            return Ok(current.key.clone());
        }
        let key = self.draw().await?;
        self.keep(key.clone());
        *current = Some(Current { key: key.clone(), until: now.saturating_add(USED_FOR), uses: 1 });
        Ok(key)
    }

    /// Decrypts a data key, or takes it from the process's memory.
    async fn opened(&self, id: &str, encrypted: Bytes) -> Result<DataKey, StoreError> {
        let is_it = |key: &&DataKey| *key.id == *id && key.encrypted == encrypted;
        if let Some(key) = self.kept().iter().find(is_it) {
            return Ok(key.clone());
        }
        let request = self.client.decrypt().key_id(id).ciphertext_blob(Blob::new(encrypted.clone()));
        let decrypted = request.encryption_context(CONTEXT.0, CONTEXT.1).send().await;
        let decrypted = decrypted.map_err(|error| failed(kind_of(&error), "decrypt a data key", error))?;
        let plain = decrypted.plaintext.as_ref().and_then(|plain| plain.as_ref().try_into().ok());
        let plain = plain.ok_or_else(corrupt)?;
        let key = DataKey { id: id.into(), encrypted, plain };
        self.keep(key.clone());
        Ok(key)
    }

    /// The decrypted data keys, the latest first.
    fn kept(&self) -> MutexGuard<'_, VecDeque<DataKey>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, key: DataKey) {
        let mut kept = self.kept();
        kept.truncate(MOST_KEPT - 1);
        kept.push_front(key);
    }
}

impl Cipher for Kms {
    fn encrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        plaintext: &'a Bytes,
    ) -> BoxFuture<'a, Result<(Arc<str>, Bytes), StoreError>> {
        Box::pin(async move {
            let data_key = self.current().await?;
            Ok((Arc::clone(&data_key.id), sealed(&data_key, key.as_str(), plaintext)?))
        })
    }

    fn decrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        key_id: &'a str,
        ciphertext: &'a Bytes,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move {
            let (encrypted, rest) = parts(ciphertext).ok_or_else(corrupt)?;
            let data_key = self.opened(key_id, encrypted).await?;
            unsealed(&data_key, key.as_str(), &rest)
        })
    }
}

fn sealed(key: &DataKey, record: &str, plaintext: &[u8]) -> Result<Bytes, StoreError> {
    let failed = || StoreError::new(StoreErrorKind::Unavailable, "the response couldn't be encrypted");
    let length = u16::try_from(key.encrypted.len()).map_err(|_| failed())?;
    let mut text = plaintext.to_vec();
    let sealing = RandomizedNonceKey::new(&AES_256_GCM, &key.plain).map_err(|_| failed())?;
    let nonce = sealing.seal_in_place_append_tag(Aad::from(record), &mut text).map_err(|_| failed())?;
    Ok([&length.to_be_bytes(), &*key.encrypted, nonce.as_ref(), &text].concat().into())
}

/// The encrypted data key, and the rest of the ciphertext.
fn parts(ciphertext: &Bytes) -> Option<(Bytes, Bytes)> {
    let (length, _) = ciphertext.split_first_chunk()?;
    let end = 2 + usize::from(u16::from_be_bytes(*length));
    (end <= ciphertext.len()).then(|| (ciphertext.slice(2..end), ciphertext.slice(end..)))
}

fn unsealed(key: &DataKey, record: &str, sealed: &[u8]) -> Result<Bytes, StoreError> {
    let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or_else(corrupt)?;
    let opening = RandomizedNonceKey::new(&AES_256_GCM, &key.plain).map_err(|_| corrupt())?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| corrupt())?;
    let mut text = text.to_vec();
    let length = opening.open_in_place(nonce, Aad::from(record), &mut text).map_err(|_| corrupt())?.len();
    text.truncate(length);
    Ok(text.into())
}

fn corrupt() -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "the recorded response isn't what the layer encrypted")
}

fn failed<E: StdError + Send + Sync + 'static>(
    kind: StoreErrorKind,
    what: &str,
    error: SdkError<E>,
) -> StoreError
where
    SdkError<E>: ProvideErrorMetadata,
{
    let code = error.code().unwrap_or("no answer").to_owned();
    let message = format!("KMS didn't {what} ({code}); check the key, and the role's permissions for it");
    StoreError::new(kind, message).with_source(error)
}

fn kind_of<E>(error: &SdkError<E>) -> StoreErrorKind
where
    SdkError<E>: ProvideErrorMetadata,
{
    match error.code() {
        Some("InvalidCiphertextException" | "IncorrectKeyException") => StoreErrorKind::Corrupt,
        Some(
            "AccessDeniedException"
            | "NotFoundException"
            | "DisabledException"
            | "KMSInvalidStateException"
            | "InvalidKeyUsageException"
            | "InvalidArnException"
            | "ValidationException"
            | "UnrecognizedClientException"
            | "InvalidSignatureException",
        ) => StoreErrorKind::Rejected,
        _ => StoreErrorKind::Unavailable,
    }
}

/// The first of these variables that has a value.
fn variable(names: [&str; 2]) -> Option<String> {
    names.into_iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

/// The error, and the errors that caused it.
fn with_causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(plain: u8) -> DataKey {
        DataKey { id: "arn".into(), encrypted: Bytes::from_static(b"encrypted"), plain: [plain; 32] }
    }

    #[test]
    fn ciphertexts_open_only_in_their_record() {
        let text = sealed(&key(1), "f/event#a", b"secret").unwrap();
        assert!(!text.windows(6).any(|window| window == b"secret"));
        let (encrypted, rest) = parts(&text).unwrap();
        assert_eq!(encrypted, "encrypted");
        assert_eq!(unsealed(&key(1), "f/event#a", &rest).unwrap(), "secret");
        for (key, record, sealed) in [
            (key(1), "f/event#b", &rest[..]),
            (key(2), "f/event#a", &rest[..]),
            (key(1), "f/event#a", &rest[..rest.len() - 1]),
            (key(1), "f/event#a", &rest[..3]),
        ] {
            assert_eq!(unsealed(&key, record, sealed).unwrap_err().kind(), StoreErrorKind::Corrupt);
        }
        for short in [&b""[..], b"\0", b"\0\x09encrypte"] {
            assert!(parts(&Bytes::copy_from_slice(short)).is_none());
        }
    }
}
