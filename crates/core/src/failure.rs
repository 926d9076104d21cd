//! [`Failure`]: how a handler says whether its error is final.

use std::{
    any::{Any, type_name},
    borrow::Cow,
    error::Error as StdError,
    fmt,
};

use crate::{
    error::{Error, RecordedFailure, RunError, own},
    settings::{Execution, Recording},
};

/// A handler's error that says whether it's final. A handler of any wrapper may return it.
///
/// - [`permanent`](Self::permanent): the operation failed, and its handler doesn't run again. The failure is recorded.
/// - [`transient`](Self::transient): the next delivery runs the handler again, even with [`Recording::Record`].
///   Exception: at-most-once execution records this failure too, and the handler doesn't run again.
/// - [`not_begun`](Self::not_begun): the handler did nothing, so the next delivery runs it again in any case.
/// - [`unknown`](Self::unknown): the handler doesn't know whether its effect happened, for example after a timeout.
/// - [`interrupted`](Self::interrupted): the work was done by another process, which died before it answered.
/// - any other error, by `?`: [`Settings::on_handler_error`](crate::settings::Settings::on_handler_error) decides, which
///   also says what becomes of a run in which a step was refused.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use lambda_idempotency::Failure;
///
/// async fn charge(cents: &str) -> Result<String, Failure> {
///     let cents: u64 = cents.parse()?; // the settings decide
///     if cents == 0 {
///         return Err(Failure::permanent("NothingToCharge", "the amount is zero")); // never runs again
///     }
///     if cents > 1_000_000 {
///         return Err(Failure::transient("the gateway is down")); // runs again
///     }
///     Ok(format!("charged {cents}"))
/// }
/// ```
pub struct Failure(How);

enum How {
    Permanent(RecordedFailure),
    Passing(Passing, Caused),
}

/// The kind of a failure that isn't permanent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passing {
    Transient,
    /// Nothing was done.
    NotBegun,
    /// It's unknown whether the effect happened.
    Unanswered,
    /// The settings decide.
    Other,
}

/// An error, and its type as Lambda reports it.
struct Caused {
    error_type: Cow<'static, str>,
    /// Whether a step's refusal is a cause, and the step may succeed later.
    is_refused_step: bool,
    error: Box<dyn StdError + Send + Sync>,
}

impl Failure {
    /// Creates a permanent failure. It's recorded: the handler doesn't run again for this operation, and every
    /// caller gets this failure.
    pub fn permanent(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self(How::Permanent(RecordedFailure::new(error_type, message)))
    }

    /// Creates a failure after which the next delivery runs the handler again, except under at-most-once.
    pub fn transient<E: Into<Box<dyn StdError + Send + Sync>>>(error: E) -> Self {
        Self(How::Passing(Passing::Transient, Caused::new(error)))
    }

    /// Creates the failure of a handler that did nothing, for example because the process that does its work can't be
    /// started. The next delivery runs the handler again, even under at-most-once. A batch's record that fails so doesn't
    /// count as failed: it waits for its redelivery.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::Failure;
    /// use tokio::process::Command;
    ///
    /// async fn convert(file: &str) -> Result<(), Failure> {
    ///     let mut started = Command::new("convert").arg(file).spawn().map_err(Failure::not_begun)?;
    ///     match started.wait().await.map_err(Failure::unknown)?.success() {
    ///         true => Ok(()),
    ///         false => Err(Failure::permanent("NotConverted", "the file can't be converted")),
    ///     }
    /// }
    /// ```
    pub fn not_begun<E: Into<Box<dyn StdError + Send + Sync>>>(error: E) -> Self {
        Self(How::Passing(Passing::NotBegun, Caused::new(error)))
    }

    /// Creates the failure of a handler that doesn't know whether its effect happened: its request got no answer.
    ///
    /// The key isn't released, and nothing is recorded. With a [reconciler], the next attempt asks for the effect before the
    /// handler runs again, once the effect has had the time to arrive. Without one, this is like a crash: the claim's lease
    /// ends after 10 seconds, or sooner if it ends sooner anyway. Then the next delivery takes over, and learns of this
    /// attempt by [`ClaimHandle::is_takeover`]. Under at-most-once without a reconciler, an operator must settle the record.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// # struct Gateway;
    /// # impl Gateway {
    /// #     async fn charge(&self, _: u64) -> std::io::Result<String> { Ok(String::new()) }
    /// # }
    /// use lambda_idempotency::Failure;
    ///
    /// async fn charge(gateway: &Gateway, cents: u64) -> Result<String, Failure> {
    ///     match gateway.charge(cents).await {
    ///         Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(Failure::unknown(error)),
    ///         other => Ok(other?),
    ///     }
    /// }
    /// ```
    ///
    /// [reconciler]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.reconcile
    /// [`ClaimHandle::is_takeover`]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.ClaimHandle.html#method.is_takeover
    pub fn unknown<E: Into<Box<dyn StdError + Send + Sync>>>(error: E) -> Self {
        Self(How::Passing(Passing::Unanswered, Caused::new(error)))
    }

    /// Creates the failure of a handler whose work another process did, if that process died before it answered.
    ///
    /// Use it only if nothing of that process runs any more. It may have had its effect. So this is the same as
    /// [`unknown`](Self::unknown).
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::Failure;
    /// use tokio::process::Command;
    ///
    /// async fn convert(file: &str) -> Result<(), Failure> {
    ///     let ended = Command::new("convert").arg(file).status().await?;
    ///     match ended.code() {
    ///         Some(0) => Ok(()),
    ///         Some(code) => Err(Failure::transient(format!("convert: {code}"))),
    ///         None => Err(Failure::interrupted("convert was killed")),
    ///     }
    /// }
    /// ```
    pub fn interrupted<E: Into<Box<dyn StdError + Send + Sync>>>(error: E) -> Self {
        Self::unknown(error)
    }

    /// The failure to record, if the handler's failure is permanent.
    pub(crate) fn recorded(&self) -> Option<&RecordedFailure> {
        match &self.0 {
            How::Permanent(failure) => Some(failure),
            How::Passing(..) => None,
        }
    }

    /// Whether the handler did nothing.
    pub(crate) fn is_not_begun(&self) -> bool {
        matches!(self.0, How::Passing(Passing::NotBegun, _))
    }

    /// The error, unless the failure is permanent.
    fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            How::Permanent(_) => None,
            How::Passing(_, caused) => Some(&*caused.error),
        }
    }

    /// The error's type, as Lambda reports it: this library's, if its error is a cause; otherwise the Rust type's name.
    pub(crate) fn error_type(&self) -> &str {
        match &self.0 {
            How::Permanent(failure) => &failure.error_type,
            How::Passing(_, caused) => &caused.error_type,
        }
    }

    /// The error's text, if it's this library's own error. Another error's text may quote the event.
    pub(crate) fn own_text(&self) -> Option<String> {
        self.cause()?.downcast_ref::<crate::Error>().map(ToString::to_string)
    }
}

impl Caused {
    fn new<E: Into<Box<dyn StdError + Send + Sync>>>(error: E) -> Self {
        let error = error.into();
        let own::Shown { error_type, is_refused_step } = own::shown_in(&*error);
        Self {
            error_type: error_type.map_or(Cow::Borrowed(type_name::<E>()), Cow::Owned),
            is_refused_step,
            error,
        }
    }

    /// Notes this library's error that's a cause, since the text may not show it.
    fn note(&self) {
        if let Cow::Owned(own) = &self.error_type {
            own::note(|| own.clone(), self.is_refused_step);
        }
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(How::Passing(Passing::Other, Caused::new(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            How::Permanent(failure) => {
                own::note(|| failure.error_type.clone(), false);
                f.write_str(&failure.error_message)
            }
            How::Passing(_, caused) => {
                caused.note();
                caused.error.fmt(f)
            }
        }
    }
}

impl fmt::Debug for Failure {
    /// Shows the type, never the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.0 {
            How::Permanent(_) => ", permanent",
            How::Passing(Passing::Transient, _) => ", transient",
            How::Passing(Passing::NotBegun, _) => ", not begun",
            How::Passing(Passing::Unanswered, _) => ", unanswered",
            How::Passing(Passing::Other, _) => "",
        };
        write!(f, "Failure({}{how})", self.error_type())
    }
}

/// How a claim is settled after its handler returns an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// Whether a handler's error is recorded.
    pub on_error: Recording,
    /// Whether the handler may run again.
    pub execution: Execution,
    /// Whether the last attempt of one of the run's steps was refused, and may succeed later.
    pub is_step_refused: bool,
}

/// How the claim is settled after one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The key is released.
    Release,
    /// There's no answer: the claim is left unsettled, and its lease ends soon.
    Leave,
    /// This failure is recorded. If it's `None`, the code that called [`ErrorPolicy::on`] makes the failure from the
    /// error's type and message.
    Record(Option<RecordedFailure>),
}

impl ErrorPolicy {
    /// The policy for `error`. If the error's type isn't known to the library, the library can't see a step's refusal
    /// in it: see [`on_shown`](Self::on_shown).
    pub fn on<E: Any>(self, error: &E) -> OnError {
        self.decide(error, || false)
    }

    /// The policy for an error of any type. A step's refusal counts as the error's cause if the error's text shows it.
    pub fn on_shown<E: Any + fmt::Display>(self, error: &E) -> OnError {
        self.decide(error, || own::shown_by(error).is_refused_step)
    }

    fn decide<E: Any>(self, error: &E, shows_refusal: impl FnOnce() -> bool) -> OnError {
        let said = (error as &dyn Any).downcast_ref::<Failure>().map(|failure| &failure.0);
        match (said, self.on_error, self.execution) {
            (Some(How::Permanent(failure)), ..) => OnError::Record(Some(failure.clone())),
            (Some(How::Passing(Passing::Unanswered, _)), ..) => OnError::Leave,
            (Some(How::Passing(Passing::NotBegun, _)), ..) => OnError::Release,
            (Some(How::Passing(Passing::Transient, _)), _, Execution::AtLeastOnce)
            | (_, Recording::Release, _) => OnError::Release,
            (_, Recording::Record, Execution::AtLeastOnce) if self.is_step_refused => OnError::Release,
            _ if is_refusal(error) || shows_refusal() => OnError::Release,
            _ => OnError::Record(None),
        }
    }

    /// Whether a failure without an error, such as a panic or a response with a server error, is recorded.
    pub fn records(self) -> bool {
        self.on(&()) != OnError::Release
    }
}

/// Whether an error of a known type is a step's refusal, or has one as a source.
fn is_refusal<E: Any>(error: &E) -> bool {
    of_known_type(error).is_some_and(|error| own::shown_in(error).is_refused_step)
}

/// Returns this library's errors in a handler's error. An error of an unknown type, such as `anyhow::Error`, has no
/// sources that the library can ask for, but its `Debug` may show them.
pub fn shown_in_any<E: Any + fmt::Debug>(error: &E) -> own::Shown {
    of_known_type(error).map_or_else(|| own::shown_by_debug(error), own::shown_in)
}

/// Returns the error with its sources, if the library knows its type. The HTTP layer knows nothing of its handler's
/// error but the type.
fn of_known_type(error: &dyn Any) -> Option<&(dyn StdError + 'static)> {
    fn of<E: StdError + 'static>(error: &dyn Any) -> Option<&(dyn StdError + 'static)> {
        error.downcast_ref::<E>().map(|error| error as _)
    }
    let boxed = || error.downcast_ref::<Box<dyn StdError + Send + Sync>>().map(|error| &**error as _);
    let failure = || error.downcast_ref::<Failure>().and_then(Failure::cause);
    let local = || error.downcast_ref::<Box<dyn StdError>>().map(|error| &**error as _);
    let own = || of::<Error>(error).or_else(|| of::<RunError<Box<dyn StdError + Send + Sync>>>(error));
    boxed().or_else(failure).or_else(local).or_else(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_failures_override_the_settings() {
        let outcomes = |failure: &Failure| {
            let all = [
                (Execution::AtLeastOnce, Recording::Release),
                (Execution::AtLeastOnce, Recording::Record),
                (Execution::AtMostOnce, Recording::Record),
            ];
            all.map(|(execution, on_error)| {
                ErrorPolicy { on_error, execution, is_step_refused: false }.on(failure)
            })
        };
        let (release, record) = (|| OnError::Release, || OnError::Record(None));
        let is_final = || OnError::Record(Some(RecordedFailure::new("Final", "no")));
        assert_eq!(outcomes(&Failure::permanent("Final", "no")), [is_final(), is_final(), is_final()]);
        assert_eq!(outcomes(&Failure::transient("down")), [release(), release(), record()]);
        assert_eq!(outcomes(&Failure::not_begun("full")), [release(), release(), release()]);
        assert_eq!(outcomes(&"by `?`".into()), [release(), record(), record()]);
        assert_eq!(outcomes(&Failure::interrupted("killed")), [const { OnError::Leave }; 3]);
    }

    #[test]
    fn debug_shows_no_text() {
        let failures = [
            Failure::permanent("Final", "secret"),
            Failure::transient("secret"),
            Failure::not_begun("secret"),
            Failure::interrupted("secret"),
            "secret".into(),
        ];
        for failure in failures {
            assert!(!format!("{failure:?}").contains("secret"));
            assert_eq!(failure.to_string(), "secret");
        }
    }

    /// A batch's worker logs the text of this library's errors. Another error's text may quote the record, so the
    /// worker doesn't log it.
    #[test]
    fn only_library_errors_keep_their_text() {
        let own = crate::Key::new("").unwrap_err();
        let text = own.to_string();
        assert_eq!(Failure::from(own).own_text(), Some(text));
        let step: RunError<std::io::Error> = crate::Key::new("").unwrap_err().into();
        assert_eq!(Failure::from(step).error_type(), "Idempotency.InvalidKey");
        let other = Failure::from(std::io::Error::other("card 4111111111111111"));
        assert_eq!((other.error_type(), other.own_text()), ("std::io::error::Error", None));
    }

    #[test]
    fn only_permanent_failures_are_recorded() {
        let failure = RecordedFailure::new("Final", "no");
        assert_eq!(Failure::permanent("Final", "no").recorded(), Some(&failure));
        assert_eq!(Failure::transient("down").recorded(), None);
    }
}
