//! Draws the key of a new operation.

use crate::{
    error::Error,
    key::{Key, uuid},
    record::random_bits,
};

impl Key {
    /// Draws a random UUID (version 4) as the key of a new operation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the operating system returns no random bits.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::Key;
    ///
    /// let key = Key::draw()?;
    /// let stored = key.as_str().to_owned();
    /// // After a crash:
    /// assert_eq!(Key::new(stored)?, key);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn draw() -> Result<Self, Error> {
        random_bits("an operation's key").and_then(|bits| Self::new(uuid(bits, 4)))
    }
}
