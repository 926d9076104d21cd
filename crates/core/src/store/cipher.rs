//! [`Cipher`]: encrypts responses before they're stored.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{future::BoxFuture, key::StoredKey, store::StoreError};

/// Encrypts responses and recorded failures before they're stored, and decrypts them for a replay. Set it with
/// [`Builder::cipher`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Builder.html#method.cipher).
///
/// The record keeps the encryption key's id beside the ciphertext, in `encoding`. So an operator sees which
/// records still need an old key, and [`decrypt`](Self::decrypt) gets the id that it needs. The rest of the record
/// needs no encryption: idempotency keys, callers and payloads are hashed.
///
/// Bind the ciphertext to the record: pass [`StoredKey::as_str`] as associated data (with KMS, as the encryption
/// context), so that a ciphertext copied to another record can't be decrypted there.
///
/// Records that were written without a cipher are still replayed. A function without the cipher refuses an
/// encrypted record with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), and runs nothing. The
/// [local cache](crate::settings::Settings::local_cache) holds plaintext in the process's memory.
///
/// `examples/encrypted_responses.rs` shows envelope encryption: each response gets its own data key, which a key
/// encryption key wraps.
pub trait Cipher: fmt::Debug + Send + Sync + 'static {
    /// Encrypts a response of the record `key`. Returns the id of the encryption key that
    /// [`decrypt`](Self::decrypt) needs, and the ciphertext. The id has 1 to 512 visible ASCII characters.
    ///
    /// # Errors
    ///
    /// The library retries after an error, for as long as it would retry a store's error. When the time is over, or
    /// after an error of kind [`Unstorable`](super::StoreErrorKind::Unstorable) or
    /// [`Corrupt`](super::StoreErrorKind::Corrupt), it records the outcome without the response. It never stores the
    /// response in plaintext instead.
    ///
    /// # Cancel safety
    ///
    /// The library may drop the future when the time for this call is over.
    fn encrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        plaintext: &'a Bytes,
    ) -> BoxFuture<'a, Result<(Arc<str>, Bytes), StoreError>>;

    /// Decrypts a ciphertext of the record `key` with the encryption key `key_id`.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](super::StoreErrorKind::Corrupt) if the ciphertext isn't authentic,
    /// [`Unavailable`](super::StoreErrorKind::Unavailable) if the caller should try again, and
    /// [`Rejected`](super::StoreErrorKind::Rejected) if the key is unknown or access is denied. After any of these
    /// errors, the handler doesn't run.
    ///
    /// # Cancel safety
    ///
    /// The library may drop the future when the time for this call is over.
    fn decrypt<'a>(
        &'a self,
        key: &'a StoredKey,
        key_id: &'a str,
        ciphertext: &'a Bytes,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>>;
}
