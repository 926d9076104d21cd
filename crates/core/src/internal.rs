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

/// Declares a trait with methods of a public type that aren't public. Each calls the type's own method of that name.
macro_rules! methods {
    (@call $name:ident &$receiver:ident $(, $argument:ident: $type:ty)* $(,)?) => {
        Self::$name($receiver $(, $argument)*)
    };
    (@call $name:ident $receiver:ident $(, $argument:ident: $type:ty)* $(,)?) => {
        Self::$name($receiver $(, $argument)*)
    };
    (@call $name:ident $($argument:ident: $type:ty),* $(,)?) => {
        Self::$name($($argument),*)
    };
    ($(#[$doc:meta])* $trait:ident of $owner:ty {
        $($(#[$attribute:meta])* fn $name:ident $(<$lifetime:lifetime>)? ($($arguments:tt)*) -> $output:ty;)+
    }) => {
        $(#[$doc])*
        pub trait $trait: Sized {
            $($(#[$attribute])* fn $name $(<$lifetime>)? ($($arguments)*) -> $output;)+
        }

        impl $trait for $owner {
            $(fn $name $(<$lifetime>)? ($($arguments)*) -> $output {
                methods!(@call $name $($arguments)*)
            })+
        }
    };
}
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

pub mod snapshot {
    pub use crate::store::random::{INITIALIZATION, is_snapshotted};
}

pub mod time {
    pub use crate::time::clock::*;
}

/// The testing kit's view of a test's process.
#[cfg(feature = "testing")]
pub mod testing;

methods! {
    /// Methods of [`Error`].
    ErrorExt of Error {
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
}

methods! {
    /// Methods of [`Failure`].
    FailureExt of Failure {
        fn recorded(&self) -> Option<&RecordedFailure>;
        fn error_type(&self) -> &str;
        fn own_text(&self) -> Option<String>;
        fn is_not_begun(&self) -> bool;
    }
}

methods! {
    /// Methods of [`Fingerprint`].
    FingerprintExt of Fingerprint {
        fn digest(&self) -> [u8; 32];
        fn to_bytes(self) -> [u8; 33];
        fn from_bytes(bytes: &[u8]) -> Option<Self>;
        fn builder(purpose: &str) -> FingerprintBuilder;
        fn of_written(text: &str) -> Result<Self, Error>;
    }
}

methods! {
    /// Methods of [`Key`].
    KeyExt of Key {
        fn comparing(self, digest: [u8; 32]) -> Self;
        fn compared(&self) -> Option<[u8; 32]>;
    }
}

methods! {
    /// Methods of [`Scope`].
    ScopeExt of Scope {
        fn of_tenant(&self, tenant: &str) -> Self;
    }
}

methods! {
    /// Methods of [`StoredKey`].
    StoredKeyExt of StoredKey {
        fn is_in_shadow(&self) -> bool;
        fn names(&self) -> Option<(&str, &str)>;
        fn derive(&self, step: &str) -> String;
    }
}

methods! {
    /// Methods of [`KeyFields`].
    KeyFieldsExt of KeyFields {
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
}

methods! {
    /// Methods of [`StoredResponse`].
    StoredResponseExt of StoredResponse {
        fn compressed_from(response: Bytes, from: usize) -> Self;
        fn in_format(self, name: &str) -> Self;
        fn encrypted(self, key_id: &str, ciphertext: Bytes) -> Self;
        fn labels(&self) -> Result<Labels<'_>, Error>;
        fn is_of(&self, response: &[u8]) -> Option<bool>;
        fn kept_limit(&self) -> u64;
        fn check_digest(&self, bytes: &[u8]) -> Result<(), Error>;
        fn decoded(&self, kept: &Bytes) -> Result<Bytes, Error>;
    }
}

methods! {
    /// Methods of [`Generation`].
    GenerationExt of Generation {
        fn first(now: Timestamp) -> Self;
        fn next(self, now: Timestamp) -> Self;
    }
}

methods! {
    /// Methods of [`Settings`].
    SettingsExt of Settings {
        fn effective_on_handler_error(&self) -> Recording;
        fn is_enforced(&self) -> bool;
        fn refuse_at_most_once(&self, what: &str) -> Result<(), Error>;
        fn validate(&self) -> Result<(), Error>;
    }
}

methods! {
    /// Methods of [`StoreError`].
    StoreErrorExt of StoreError {
        fn into_source(self) -> Option<Box<dyn StdError + Send + Sync + 'static>>;
    }
}
