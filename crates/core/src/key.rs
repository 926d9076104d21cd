//! [`Key`], the [`Scope`] that it belongs to, and the [`StoredKey`] made of both.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};

/// The longest idempotency key, in bytes.
pub const MAX_KEY_BYTES: usize = 255;
/// The longest function or operation name in a scope, in bytes. Lambda's own limit for a function's
/// name is 64 (CreateFunction in the Lambda API reference).
const MAX_NAME_BYTES: usize = 128;
/// The longest caller in a scope, in bytes. A caller made of an issuer's URL and a subject is much shorter.
const MAX_CALLER_BYTES: usize = 2048;

/// Marks the operation's name in a key of shadow mode.
const SHADOW: &str = "~shadow";

/// The caller's name for one logical operation: 1 to 255 bytes, no control characters, not only blanks.
///
/// Two keys are the same operation only if they're equal byte for byte: the library doesn't trim keys or change their
/// case. `Debug` doesn't show the key, since callers put order and customer numbers into it.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use lambda_idempotency::Key;
///
/// let key = Key::new("order-17")?;
/// assert_eq!(key.as_str(), "order-17");
/// assert!(!format!("{key:?}").contains("17"));
/// assert!(Key::new("x".repeat(256)).is_err());
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
#[derive(Clone)]
pub struct Key {
    text: String,
    /// The digest of the fields that must match when the key is used again, if the key's source defines them. It isn't
    /// a part of the key.
    compared: Option<Box<[u8; 32]>>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Key {
    /// Checks `key` and wraps it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if it's empty, blank, over 255 bytes, or has a control character.
    pub fn new(key: impl AsRef<str>) -> Result<Self, Error> {
        let key = key.as_ref();
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidKey, what));
        if key.is_empty() {
            return invalid("the idempotency key is empty; send 1 to 255 bytes".into());
        }
        if key.len() > MAX_KEY_BYTES {
            return invalid(format!(
                "the idempotency key has {} bytes; send at most {MAX_KEY_BYTES}",
                key.len()
            ));
        }
        if let Some(at) = key.char_indices().find_map(|(at, c)| c.is_control().then_some(at)) {
            return invalid(format!(
                "the idempotency key has a control character at byte {at}; send text only"
            ));
        }
        if key.chars().all(char::is_whitespace) {
            return invalid("the idempotency key is blank; send 1 to 255 bytes of text".into());
        }
        Ok(Self { text: key.to_owned(), compared: None })
    }

    /// Adds the digest of the fields that must match when the key is used again.
    pub(crate) fn comparing(self, digest: [u8; 32]) -> Self {
        Self { compared: Some(Box::new(digest)), ..self }
    }

    /// The digest of the fields that must match when the key is used again, if the key's source defines them.
    pub(crate) fn compared(&self) -> Option<[u8; 32]> {
        self.compared.as_deref().copied()
    }

    /// The key's text. Treat it as the caller's private data: don't log it.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(<{} bytes>)", self.text.len())
    }
}

/// The namespace joined to a key: the function, the operation in it, and the verified caller.
///
/// The same key in two scopes is two operations. Function and operation are stored in plaintext, so that
/// operators can read the table. The caller is never stored in plaintext.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    function: Arc<str>,
    operation: Arc<str>,
    caller: Option<Arc<str>>,
}

impl Scope {
    /// The scope of one operation of one function. `function` is the Lambda function's name without its
    /// version or alias, so that a deployment doesn't change it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a name is empty, over 128 bytes, or has anything but ASCII letters,
    /// digits, `-`, `_`, `.` and `:`.
    pub fn new(function: impl AsRef<str>, operation: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self {
            function: checked_name("function", function.as_ref())?,
            operation: checked_name("operation", operation.as_ref())?,
            caller: None,
        })
    }

    /// The same operation, called by `caller`. Pass a verified identity, never a token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the caller is empty or over 2,048 bytes.
    pub fn with_caller(&self, caller: impl AsRef<str>) -> Result<Self, Error> {
        let caller = caller.as_ref();
        if caller.is_empty() || caller.len() > MAX_CALLER_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("the scope's caller has {} bytes; use 1 to {MAX_CALLER_BYTES}", caller.len()),
            ));
        }
        Ok(Self { caller: Some(caller.into()), ..self.clone() })
    }

    /// The same operation and caller, in an invocation of this tenant. If the scope has no caller, the tenant takes the
    /// caller's place, as in the scope of an event. This function doesn't check the tenant's length, since Lambda
    /// limits a tenant's id to 256 characters.
    pub(crate) fn of_tenant(&self, tenant: &str) -> Self {
        let caller: Arc<str> = match &self.caller {
            Some(caller) => joined(&["tenant", tenant, caller]).into(),
            None => tenant.into(),
        };
        Self { caller: Some(caller), ..self.clone() }
    }

    /// The function's name.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// The operation's name.
    pub fn operation(&self) -> &str {
        &self.operation
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({}/{}", self.function, self.operation)?;
        f.write_str(if self.caller.is_some() { ", <caller>)" } else { ")" })
    }
}

fn checked_name(what: &str, name: &str) -> Result<Arc<str>, Error> {
    let wrong = |why: String| Err(Error::new(ErrorKind::Invalid, format!("the scope's {what} name {why}")));
    if name.is_empty() {
        return wrong("is empty; give it a name".into());
    }
    if name.len() > MAX_NAME_BYTES {
        return wrong(format!("has {} bytes; use at most {MAX_NAME_BYTES}", name.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    match name.chars().find(|c| !allowed(*c)) {
        Some(c) => wrong(format!("has the character {c:?}; use ASCII letters, digits and - _ . :")),
        None => Ok(name.into()),
    }
}

/// A scoped key as a store sees it: `<function>/<operation>#<64 hex digits>`.
///
/// The digits are a SHA-256 over the length-prefixed function, operation, caller and key, so a delimiter in
/// one of these can't make two operations collide. A stored key is safe to show and to log.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredKey(Arc<str>);

impl StoredKey {
    /// The stored form of `key` in `scope`.
    pub fn new(scope: &Scope, key: &Key) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"lambda-idempotency key v1");
        let caller = scope.caller.as_deref();
        update_prefixed(&mut hash, scope.function.as_bytes());
        update_prefixed(&mut hash, scope.operation.as_bytes());
        hash.update([u8::from(caller.is_some())]);
        update_prefixed(&mut hash, caller.unwrap_or_default().as_bytes());
        update_prefixed(&mut hash, key.text.as_bytes());
        let hash = hash.finalize();
        Self(format!("{}/{}#{}", scope.function, scope.operation, Hex(&hash)).into())
    }

    /// Wraps, without checks, a stored key that was read from a table or given by an operator.
    pub fn from_stored(id: impl AsRef<str>) -> Self {
        Self(id.as_ref().into())
    }

    /// The stored key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key of the same operation in shadow mode. An enforced operation never has this key, since a scope's
    /// names have no `~`. The shadow key still begins with the function's name, so that permissions and lists can
    /// select keys by that name.
    #[must_use]
    pub fn in_shadow(&self) -> Self {
        match self.0.rsplit_once('#') {
            Some((operation, digest)) => Self(format!("{operation}{SHADOW}#{digest}").into()),
            None => Self(format!("{}{SHADOW}", self.0).into()),
        }
    }

    /// Whether this is a key of shadow mode.
    pub(crate) fn is_in_shadow(&self) -> bool {
        self.names().is_some_and(|(_, operation)| operation.ends_with(SHADOW))
    }

    /// The names of the function and the operation, if the key contains them.
    pub(crate) fn names(&self) -> Option<(&str, &str)> {
        self.0.rsplit_once('#').and_then(|(names, _)| names.split_once('/'))
    }

    /// Derives a key for one step of this operation. The key is the same in every attempt. It's a UUID (version 8, RFC
    /// 9562 section 5.8), since payment gateways accept UUIDs as idempotency keys.
    pub(crate) fn derive(&self, step: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(b"lambda-idempotency derived key v1");
        update_prefixed(&mut hash, self.0.as_bytes());
        update_prefixed(&mut hash, step.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        uuid(bytes, 8)
    }
}

impl fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredKey({})", self.0)
    }
}

impl fmt::Display for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes a UUID of this version (RFC 9562, section 4); `bytes` fill the bits that the version and the variant leave
/// free.
pub fn uuid(mut bytes: [u8; 16], version: u8) -> String {
    bytes[6] = bytes[6] & 0x0f | version << 4;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let [a, b, c, d, e] = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(Hex);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// Parses the rest of a Structured Field String (RFC 9651, section 3.3.3) after its opening quote. Parameters
/// are refused: they'd look like part of the key, but wouldn't be.
pub fn quoted(rest: &str) -> Result<String, &'static str> {
    let mut key = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next() {
            Some('"') => break,
            Some('\\') => match chars.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err("has a backslash that escapes neither a quote nor a backslash"),
            },
            Some(c @ ' '..='~') => key.push(c),
            Some(_) => return Err("has a character that quoted strings don't allow"),
            None => return Err("has no closing quote"),
        }
    }
    match chars.next() {
        None => Ok(key),
        Some(_) => Err("has text after the closing quote"),
    }
}

/// Joins parts into one text. Each is preceded by its length, so that no two lists give the same text.
pub fn joined(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("{}:{part}", part.len())).collect()
}

/// Hashes the length of `bytes`, and then `bytes`. So the hash changes if a byte moves from one value to the next.
pub fn update_prefixed(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

/// Bytes as lower-case hexadecimal digits.
#[derive(Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `{:02x}` would call the formatter once per byte. That would be a twentieth of a duplicate's total cost.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for bytes in self.0.chunks(text.len() / 2) {
            for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
                pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0x0f)]]);
            }
            f.write_str(std::str::from_utf8(&text[..bytes.len() * 2]).map_err(|_| fmt::Error)?)?;
        }
        Ok(())
    }
}

/// Parses exactly `N * 2` hexadecimal digits.
pub fn parse_hex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digits = digits.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let nibble = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(function: &str, operation: &str, caller: Option<&str>, key: &str) -> StoredKey {
        let mut scope = Scope::new(function, operation).unwrap();
        if let Some(caller) = caller {
            scope = scope.with_caller(caller).unwrap();
        }
        StoredKey::new(&scope, &Key::new(key).unwrap())
    }

    #[test]
    fn scopes_return_their_names() {
        let scope = Scope::new("orders", "http").unwrap();
        assert_eq!((scope.function(), scope.operation()), ("orders", "http"));
    }

    #[test]
    fn function_names_have_a_length_limit() {
        assert!(Scope::new("f".repeat(MAX_NAME_BYTES), "http").is_ok());
        let error = Scope::new("f".repeat(MAX_NAME_BYTES + 1), "http").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn keys_are_readable_as_text() {
        let key = Key::new("order-17").unwrap();
        assert_eq!((key.as_ref(), key.as_str()), ("order-17", "order-17"));
    }

    #[test]
    fn hex_of_long_bytes_is_complete() {
        let bytes: Vec<u8> = (0..=255).collect();
        let expected: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(Hex(&bytes).to_string(), expected);
        assert_eq!(parse_hex::<256>(&expected).unwrap().as_slice(), bytes);
    }

    #[test]
    fn caller_names_have_a_length_limit() {
        let scope = Scope::new("f", "http").unwrap();
        assert!(scope.with_caller("c".repeat(MAX_CALLER_BYTES)).is_ok());
        let error = scope.with_caller("c".repeat(MAX_CALLER_BYTES + 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn invalid_keys_are_refused_with_a_reason() {
        for (key, reason) in [
            (String::new(), "empty"),
            ("   ".into(), "blank"),
            ("a\nb".into(), "control character at byte 1"),
            ("\u{7f}".into(), "control character"),
            ("x".repeat(256), "256 bytes"),
        ] {
            let error = Key::new(&key).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidKey);
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(Key::new("x".repeat(255)).is_ok());
        assert!(Key::new("bestellung-\u{e9}").is_ok());
    }

    #[test]
    fn scopes_need_valid_names() {
        for (function, operation) in
            [("", "http"), ("f", ""), ("f/g", "http"), ("f", "a#b"), ("f", &"x".repeat(129))]
        {
            assert_eq!(Scope::new(function, operation).unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert!(Scope::new("f", "http").unwrap().with_caller("").is_err());
    }

    #[test]
    fn stored_keys_are_pinned() {
        // Changing this digest breaks every record that users have: add a new version of the format, don't edit this
        // one.
        assert_eq!(
            stored("payments", "http", Some("user-1"), "order-17").as_str(),
            "payments/http#3a4609cda346ba94474b7e0b6f99f20edcb2c87287c4596f213e78a81093acd4"
        );
    }

    #[test]
    fn no_two_scopes_share_a_stored_key() {
        let all = [
            stored("f", "http", None, "k"),
            stored("f", "run", None, "k"),
            stored("g", "http", None, "k"),
            stored("f", "http", Some("k"), "k"),
            stored("f", "http", Some("a"), "bk"),
            stored("f", "http", Some("ab"), "k"),
            stored("f", "http", None, "K"),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn joined_parts_keep_their_boundaries() {
        assert_ne!(joined(&["ab", "c"]), joined(&["a", "bc"]));
    }

    #[test]
    fn debug_hides_key_and_caller() {
        let scope = Scope::new("f", "http").unwrap().with_caller("secret-caller").unwrap();
        let key = Key::new("secret-key").unwrap();
        let shown = format!("{scope:?} {key:?} {:?}", StoredKey::new(&scope, &key));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn derived_keys_are_stable_uuids_per_step() {
        let key = stored("f", "http", None, "k");
        let charge = key.derive("charge");
        assert_eq!(charge, key.derive("charge"));
        assert_ne!(charge, key.derive("refund"));
        assert_ne!(charge, stored("f", "http", None, "l").derive("charge"));
        assert_eq!(charge.len(), 36);
        assert_eq!(&charge[14..15], "8");
        assert!(matches!(&charge[19..20], "8" | "9" | "a" | "b"));
    }

    #[test]
    fn hex_round_trips_and_refuses_other_text() {
        assert_eq!(parse_hex::<2>("0aff"), Some([0x0a, 0xff]));
        assert_eq!(Hex(&[0x0a, 0xff]).to_string(), "0aff");
        assert_eq!(parse_hex::<2>("0af"), None);
        assert_eq!(parse_hex::<2>("0ag0"), None);
        assert_eq!(parse_hex::<1>("+1"), None);
    }
}
