//! Names for this repository's packages that pin the core with `=`. They change in any release. A store's package uses
//! [`store::toolkit`](crate::store::toolkit) instead.
//!
//! The modules have the names of the core's own modules. A trait `NameExt` has the methods of the public type `Name`
//! that aren't public.

use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

use bytes::Bytes;

use crate::{
    error::{Error, RecordedFailure},
    failure::Failure,
    fingerprint::{Fingerprint, FingerprintBuilder},
    key::{Key, Scope, StoredKey},
    key_fields::KeyFields,
    outcome::{Labels, StoredResponse},
    record::Generation,
    selector::Selector,
    settings::{Recording, Settings},
    store::StoreError,
    time::Timestamp,
};

pub mod error {
    pub use crate::error::*;
}

#[cfg(feature = "lambda")]
pub mod diagnostic {
    pub use crate::diagnostic::diagnosed;
}

pub mod failure {
    pub use crate::failure::*;
}

pub mod fingerprint {
    pub use crate::fingerprint::*;
}

pub mod finite {
    pub use crate::finite::*;
}

pub mod format {
    pub use crate::format::*;
}

pub mod future {
    pub use crate::future::*;
}

pub mod key {
    pub use crate::key::*;
}

pub mod key_fields {
    pub use crate::key_fields::*;
}

pub mod outcome {
    pub use crate::outcome::*;
}

pub mod record {
    pub use crate::record::*;
}

pub mod selector {
    pub use crate::selector::*;
}

pub mod settings {
    /// The longest lease that's allowed.
    pub const LONGEST_LEASE: std::time::Duration = crate::settings::LONGEST_LEASE;
}

pub mod time {
    pub use crate::time::clock::*;
}

/// What the testing kit sees of a test's process.
#[cfg(feature = "testing")]
pub mod testing;

/// Methods of [`Error`].
pub trait ErrorExt: Sized {
    fn misuse(message: impl Into<Cow<'static, str>>) -> Self;
    fn is_misuse(&self) -> bool;
    fn out_of_time(message: impl Into<Cow<'static, str>>) -> Self;
    fn is_out_of_time(&self) -> bool;
    fn failure_not_retained(key: &impl fmt::Display) -> Self;
    #[must_use]
    fn with_retry_after(self, retry_after: Duration) -> Self;
    #[must_use]
    fn rejection(self) -> Self;
    fn may_pass(&self) -> bool;
    #[must_use]
    fn of_step(self) -> Self;
    fn error_type(&self) -> String;
}

impl ErrorExt for Error {
    fn misuse(message: impl Into<Cow<'static, str>>) -> Self {
        Self::misuse(message)
    }

    fn is_misuse(&self) -> bool {
        Self::is_misuse(self)
    }

    fn out_of_time(message: impl Into<Cow<'static, str>>) -> Self {
        Self::out_of_time(message)
    }

    fn is_out_of_time(&self) -> bool {
        Self::is_out_of_time(self)
    }

    fn failure_not_retained(key: &impl fmt::Display) -> Self {
        Self::failure_not_retained(key)
    }

    fn with_retry_after(self, retry_after: Duration) -> Self {
        Self::with_retry_after(self, retry_after)
    }

    fn rejection(self) -> Self {
        Self::rejection(self)
    }

    fn may_pass(&self) -> bool {
        Self::may_pass(self)
    }

    fn of_step(self) -> Self {
        Self::of_step(self)
    }

    fn error_type(&self) -> String {
        Self::error_type(self)
    }
}

/// Methods of [`Failure`].
pub trait FailureExt: Sized {
    fn recorded(&self) -> Option<&RecordedFailure>;
    fn error_type(&self) -> &str;
    fn own_text(&self) -> Option<String>;
}

impl FailureExt for Failure {
    fn recorded(&self) -> Option<&RecordedFailure> {
        Self::recorded(self)
    }

    fn error_type(&self) -> &str {
        Self::error_type(self)
    }

    fn own_text(&self) -> Option<String> {
        Self::own_text(self)
    }
}

/// Methods of [`Fingerprint`].
pub trait FingerprintExt: Sized {
    fn digest(&self) -> [u8; 32];
    fn to_bytes(self) -> [u8; 33];
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
    fn builder(purpose: &str) -> FingerprintBuilder;
}

impl FingerprintExt for Fingerprint {
    fn digest(&self) -> [u8; 32] {
        Self::digest(self)
    }

    fn to_bytes(self) -> [u8; 33] {
        Self::to_bytes(self)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes)
    }

    fn builder(purpose: &str) -> FingerprintBuilder {
        Self::builder(purpose)
    }
}

/// Methods of [`Key`].
pub trait KeyExt: Sized {
    fn comparing(self, digest: [u8; 32]) -> Self;
    fn compared(&self) -> Option<[u8; 32]>;
}

impl KeyExt for Key {
    fn comparing(self, digest: [u8; 32]) -> Self {
        Self::comparing(self, digest)
    }

    fn compared(&self) -> Option<[u8; 32]> {
        Self::compared(self)
    }
}

/// Methods of [`Scope`].
pub trait ScopeExt: Sized {
    fn of_tenant(&self, tenant: &str) -> Self;
}

impl ScopeExt for Scope {
    fn of_tenant(&self, tenant: &str) -> Self {
        Self::of_tenant(self, tenant)
    }
}

/// Methods of [`StoredKey`].
pub trait StoredKeyExt: Sized {
    fn is_in_shadow(&self) -> bool;
    fn names(&self) -> Option<(&str, &str)>;
    fn derive(&self, step: &str) -> String;
}

impl StoredKeyExt for StoredKey {
    fn is_in_shadow(&self) -> bool {
        Self::is_in_shadow(self)
    }

    fn names(&self) -> Option<(&str, &str)> {
        Self::names(self)
    }

    fn derive(&self, step: &str) -> String {
        Self::derive(self, step)
    }
}

/// Methods of [`KeyFields`].
pub trait KeyFieldsExt: Sized {
    fn known(name: &'static str, required: &[&'static str], optional: &[&'static str]) -> Self;
    fn of_only(self, list: &'static str, otherwise: Option<Self>) -> Self;
    fn name(&self) -> Option<&'static str>;
    fn comparing(self, fields: &[&'static str]) -> Self;
    fn of_source(self, source: String) -> Self;
    fn requiring(self, count: usize) -> Self;
    fn required(&self) -> usize;
    fn comparing_these<'a>(self, fields: impl IntoIterator<Item = &'a str>) -> Result<Self, Error>;
    fn compared(&self) -> Option<&[Selector]>;
    fn field_to_correct(&self, json: &[u8]) -> Option<&Selector>;
    fn absence(&self, json: &[u8]) -> String;
    fn found_in(&self, json: &[u8]) -> Result<Option<(Key, &Self)>, Error>;
}

impl KeyFieldsExt for KeyFields {
    fn known(name: &'static str, required: &[&'static str], optional: &[&'static str]) -> Self {
        Self::known(name, required, optional)
    }

    fn of_only(self, list: &'static str, otherwise: Option<Self>) -> Self {
        Self::of_only(self, list, otherwise)
    }

    fn name(&self) -> Option<&'static str> {
        Self::name(self)
    }

    fn comparing(self, fields: &[&'static str]) -> Self {
        Self::comparing(self, fields)
    }

    fn of_source(self, source: String) -> Self {
        Self::of_source(self, source)
    }

    fn requiring(self, count: usize) -> Self {
        Self::requiring(self, count)
    }

    fn required(&self) -> usize {
        Self::required(self)
    }

    fn comparing_these<'a>(self, fields: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        Self::comparing_these(self, fields)
    }

    fn compared(&self) -> Option<&[Selector]> {
        Self::compared(self)
    }

    fn field_to_correct(&self, json: &[u8]) -> Option<&Selector> {
        Self::field_to_correct(self, json)
    }

    fn absence(&self, json: &[u8]) -> String {
        Self::absence(self, json)
    }

    fn found_in(&self, json: &[u8]) -> Result<Option<(Key, &Self)>, Error> {
        Self::found_in(self, json)
    }
}

/// Methods of [`StoredResponse`].
pub trait StoredResponseExt: Sized {
    fn compressed_from(response: Bytes, from: usize) -> Self;
    fn in_format(self, name: &str) -> Self;
    fn encrypted(self, key_id: &str, ciphertext: Bytes) -> Self;
    fn labels(&self) -> Result<Labels<'_>, Error>;
    fn is_of(&self, response: &[u8]) -> Option<bool>;
    fn kept_limit(&self) -> u64;
    fn check_digest(&self, bytes: &[u8]) -> Result<(), Error>;
    fn decoded(&self, kept: &Bytes) -> Result<Bytes, Error>;
}

impl StoredResponseExt for StoredResponse {
    fn compressed_from(response: Bytes, from: usize) -> Self {
        Self::compressed_from(response, from)
    }

    fn in_format(self, name: &str) -> Self {
        Self::in_format(self, name)
    }

    fn encrypted(self, key_id: &str, ciphertext: Bytes) -> Self {
        Self::encrypted(self, key_id, ciphertext)
    }

    fn labels(&self) -> Result<Labels<'_>, Error> {
        Self::labels(self)
    }

    fn is_of(&self, response: &[u8]) -> Option<bool> {
        Self::is_of(self, response)
    }

    fn kept_limit(&self) -> u64 {
        Self::kept_limit(self)
    }

    fn check_digest(&self, bytes: &[u8]) -> Result<(), Error> {
        Self::check_digest(self, bytes)
    }

    fn decoded(&self, kept: &Bytes) -> Result<Bytes, Error> {
        Self::decoded(self, kept)
    }
}

/// Methods of [`Generation`].
pub trait GenerationExt: Sized {
    fn first(now: Timestamp) -> Self;
    fn next(self, now: Timestamp) -> Self;
}

impl GenerationExt for Generation {
    fn first(now: Timestamp) -> Self {
        Self::first(now)
    }

    fn next(self, now: Timestamp) -> Self {
        Self::next(self, now)
    }
}

/// Methods of [`Settings`].
pub trait SettingsExt: Sized {
    fn effective_on_handler_error(&self) -> Recording;
    fn is_enforced(&self) -> bool;
    fn refuse_at_most_once(&self, what: &str) -> Result<(), Error>;
    fn validate(&self) -> Result<(), Error>;
}

impl SettingsExt for Settings {
    fn effective_on_handler_error(&self) -> Recording {
        Self::effective_on_handler_error(self)
    }

    fn is_enforced(&self) -> bool {
        Self::is_enforced(self)
    }

    fn refuse_at_most_once(&self, what: &str) -> Result<(), Error> {
        Self::refuse_at_most_once(self, what)
    }

    fn validate(&self) -> Result<(), Error> {
        Self::validate(self)
    }
}

/// Methods of [`StoreError`].
pub trait StoreErrorExt: Sized {
    fn into_source(self) -> Option<Box<dyn StdError + Send + Sync + 'static>>;
}

impl StoreErrorExt for StoreError {
    fn into_source(self) -> Option<Box<dyn StdError + Send + Sync + 'static>> {
        Self::into_source(self)
    }
}
