//! Converts this library's errors for `lambda_runtime`. The conversions are in this crate because a trait of another
//! crate is implemented here for types of this crate.

use std::{any::type_name, error::Error as StdError, fmt};

use lambda_runtime::Diagnostic;

use crate::{
    error::{
        Error, RunError,
        own::{self, Shown},
    },
    failure::{Failure, shown_in_any},
};

impl From<Error> for Diagnostic {
    /// The error type is `Idempotency.`, followed by the [`ErrorKind`](crate::ErrorKind)'s name. It's stable, so that
    /// Step Functions and callers can match on it.
    fn from(error: Error) -> Self {
        Self { error_type: error.error_type(), error_message: error.to_string() }
    }
}

impl From<Failure> for Diagnostic {
    /// The error type is the permanent failure's own. For another error it's the type that `lambda::run` reports, or the Rust
    /// type's name.
    fn from(failure: Failure) -> Self {
        Self { error_type: failure.error_type().to_owned(), error_message: failure.to_string() }
    }
}

impl<E: Into<Diagnostic> + fmt::Debug + 'static> From<RunError<E>> for Diagnostic {
    /// Keeps the type of an error that a step in the handler returned, as `lambda::run` does.
    fn from(error: RunError<E>) -> Self {
        match error {
            RunError::Handler(error) => diagnosed(error).0,
            RunError::Recorded(failure) => {
                Self { error_type: failure.error_type, error_message: failure.error_message }
            }
            RunError::Idempotency(error) => error.into(),
        }
    }
}

/// Converts a handler's error as `lambda::run` does. Also returns this library's errors in it.
pub fn diagnosed<E: Into<Diagnostic> + fmt::Debug + 'static>(error: E) -> (Diagnostic, Shown) {
    let found = shown_in_any(&error);
    // The conversion writes the error's text, which may show an error that isn't a source.
    let (mut diagnostic, written) = own::shown_while(|| error.into());
    let is_refused_step = found.is_refused_step || written.is_refused_step;
    let error_type = found.error_type.or(written.error_type);
    if let Some(own) = &error_type
        && !is_chosen::<E>(&diagnostic.error_type)
    {
        diagnostic.error_type.clone_from(own);
    }
    (diagnostic, Shown { error_type, is_refused_step })
}

/// Whether the handler chose the error's type. Otherwise it's the name of a Rust type that says nothing of the cause.
/// `lambda_runtime` reports the name of a reference to that type.
fn is_chosen<E>(error_type: &str) -> bool {
    let names =
        [type_name::<E>(), type_name::<Box<dyn StdError + Send + Sync>>(), type_name::<Box<dyn StdError>>()];
    !names.contains(&error_type.trim_start_matches('&'))
}
