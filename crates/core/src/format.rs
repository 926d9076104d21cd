//! [`Format`]: how an operation's result becomes bytes and back. JSON is the default.

pub mod shape;

use std::borrow::Cow;

use serde::{Serialize, de::DeserializeOwned};

use crate::{error::place, finite};

/// The longest name of a format, in bytes.
const MAX_FORMAT: usize = 32;

/// How [`Operation::run`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run) encodes a result for the record, and decodes it for a duplicate.
///
/// The record names the format, unless it's JSON. If the record names another format than the operation's, the library
/// refuses the result. If the record names no format, the result is JSON, which the library still reads after you
/// switch to another format.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use std::borrow::Cow;
/// use lambda_idempotency::store::Format;
/// use serde::{Serialize, de::DeserializeOwned};
///
/// struct Cbor;
///
/// impl Format for Cbor {
///     const NAME: &'static str = "cbor";
///
///     fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Cow<'static, str>> {
///         let mut bytes = Vec::new();
///         ciborium::into_writer(value, &mut bytes).map_err(|_| "its type can't be written as CBOR")?;
///         Ok(bytes)
///     }
///
///     fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Cow<'static, str>> {
///         ciborium::from_reader(bytes).map_err(|_| "it isn't CBOR of this type".into())
///     }
/// }
/// ```
pub trait Format: 'static {
    /// The format's name in the record: 1 to 32 lower-case letters, digits, `-` and `.`. Any other name doesn't
    /// compile. Give a new version of a format a new name.
    const NAME: &'static str;

    /// Writes `value`.
    ///
    /// # Errors
    ///
    /// The reason why the value can't be written. The library logs this text, so it mustn't contain any part of the
    /// value.
    fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Cow<'static, str>>;

    /// Reads a value that [`write`](Self::write) wrote.
    ///
    /// # Errors
    ///
    /// The reason why the value can't be read. The library logs this text, so it mustn't contain any part of the value.
    fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Cow<'static, str>>;
}

/// JSON, the default [`Format`]. Integers and finite floats read back to the last bit. It refuses NaN and the
/// infinities, which JSON can't express.
#[derive(Clone, Copy, Debug)]
pub struct Json;

impl Format for Json {
    const NAME: &'static str = "json";

    fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Cow<'static, str>> {
        finite::to_json(value).map(String::into_bytes).map_err(|why| why.to_string().into())
    }

    fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Cow<'static, str>> {
        serde_json::from_slice(bytes).map_err(|error| place(&error).to_string().into())
    }
}

/// Returns the name of `F` in a record, or `None` for JSON, the default.
pub fn recorded_name<F: Format>() -> Option<&'static str> {
    const { assert!(is_format_name(F::NAME), "a Format's NAME is 1 to 32 of a-z, 0-9, - and .") }
    (F::NAME != Json::NAME).then_some(F::NAME)
}

/// Whether `read`, which a duplicate gets, differs from the result itself. Always `false` in a release build without the
/// testing kit: a result's effect has happened, so the library records the result in any case.
pub fn reads_differently<T: Serialize>(value: &T, read: &T) -> bool {
    if !cfg!(any(debug_assertions, feature = "testing")) || !shape::differs(value, read) {
        return false;
    }
    if cfg!(feature = "testing") {
        shape::changed::note(std::any::type_name::<T>());
    }
    true
}

/// Reads a result. `recorded` is the format's name in the record.
///
/// # Errors
///
/// The reason why the result can't be read.
pub fn read<T: DeserializeOwned, F: Format>(
    recorded: Option<&str>,
    bytes: &[u8],
) -> Result<T, Cow<'static, str>> {
    match recorded {
        None => Json::read(bytes),
        Some(name) if name == F::NAME => F::read(bytes),
        Some(name) => Err(format!("it's recorded as {name}, not as {}", F::NAME).into()),
    }
}

/// Whether a format's name can be stored: 1 to 32 lower-case letters, digits, `-` and `.`.
pub const fn is_format_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut at = 0;
    // A `const fn` can't use an iterator.
    while at < bytes.len() {
        if !matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.') {
            return false;
        }
        at += 1;
    }
    0 < at && at <= MAX_FORMAT
}
