//! Errors: what went wrong, and what the caller should do about it.

use std::{any::Any, borrow::Cow, error::Error as StdError, fmt, time::Duration};

/// The cause of an error.
pub type Source = Box<dyn StdError + Send + Sync + 'static>;

/// The category of an error. Two kinds differ only if the caller should do something different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request needs an idempotency key and has none: send one.
    MissingKey,
    /// The idempotency key is empty, too long or malformed: correct it.
    InvalidKey,
    /// The key was used before with another payload: use a new key for a new operation.
    Mismatch,
    /// Another delivery of this operation is still running: repeat after [`Error::retry_after`].
    InProgress,
    /// An earlier run ended without an answer, and at-most-once, now or in the earlier run, forbids another run. Find
    /// out what happened, then settle the record by hand, with the command `idempotency complete` or `release`, or
    /// with [`Idempotency::resolve`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html#method.resolve).
    OutcomeUnknown,
    /// The operation is done, or failed permanently, but its response wasn't retained. Don't repeat the operation; get
    /// the result some other way.
    NotRetained,
    /// This run lost its claim: another delivery took over after the lease had expired, or an operator settled the
    /// record. Their outcome counts, not this run's. An extension also fails with this kind if the record is gone or
    /// unreadable.
    Fenced,
    /// The store failed, or there was no time left: retry. **Nothing ran**, with one exception: a handler whose writes
    /// are committed with its outcome, or that runs without a claim, may have run. Even then, nothing was **written**.
    Unavailable,
    /// The operation **ran**, but its outcome couldn't be stored: a retry may run it again.
    /// [`Claim::release`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Claim.html#method.release) returns this kind if it's unknown whether the key is released.
    Unrecorded,
    /// A condition on the handler's own writes failed. Nothing was written, neither these writes nor the
    /// outcome: re-read and retry, or report it to the caller.
    Declined,
    /// The handler failed for every record of a batch, and the worker is set to fail the invocation in that
    /// case.
    AllFailed,
    /// A record of a batch must be redelivered, and the source doesn't read which one: so the invocation fails, and the
    /// whole batch is redelivered. The records that are done don't run again.
    BatchFailed,
    /// The stored record or its outcome can't be read, or a newer version of the library wrote it: look at the record.
    /// Nothing ran, with two exceptions. First, the handler may have run if another delivery or an operator recorded an
    /// unreadable outcome before this run recorded its own. Second, a handler whose writes are committed with its
    /// outcome, or that runs without a claim, may have run, but nothing was **written**.
    Corrupt,
    /// The configuration or the request to the library is wrong: correct it.
    Invalid,
}

impl ErrorKind {
    /// The kind's name, stable across versions. Lambda reports the error's type as `Idempotency.<Kind>`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingKey => "MissingKey",
            Self::InvalidKey => "InvalidKey",
            Self::Mismatch => "Mismatch",
            Self::InProgress => "InProgress",
            Self::OutcomeUnknown => "OutcomeUnknown",
            Self::NotRetained => "NotRetained",
            Self::Fenced => "Fenced",
            Self::Unavailable => "Unavailable",
            Self::Unrecorded => "Unrecorded",
            Self::Declined => "Declined",
            Self::AllFailed => "AllFailed",
            Self::BatchFailed => "BatchFailed",
            Self::Corrupt => "Corrupt",
            Self::Invalid => "Invalid",
        }
    }
}

/// An error of this library: a [`kind`](Self::kind) to act on, and a sentence for people.
///
/// The sentence never repeats [`source`](StdError::source). Neither the sentence nor the source contains a raw key, a
/// payload or a response.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use lambda_idempotency::{ErrorKind, Key};
///
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidKey);
/// assert!(!error.is_retryable());
/// ```
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    retry_after: Option<Duration>,
    /// Whether the outcome that wasn't retained is a permanent failure.
    is_of_failure: bool,
    source: Option<Source>,
    /// Whether the calling code is wrong, rather than the store or the caller's request.
    is_misuse: bool,
    /// Whether the store rejected the request, for example because a permission is missing. It may accept it later.
    is_rejection: bool,
    /// Whether this is a step's refusal, and the step may succeed later.
    is_refused_step: bool,
    /// Whether the invocation's time ran out, rather than the store failed.
    is_out_of_time: bool,
}

impl Error {
    /// Your own error, for a closure that returns this type, such as [`HttpLayer::caller`]'s. Callers and logs get
    /// the message, so it mustn't contain a credential.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Unavailable, "the identity provider doesn't answer");
    /// assert!(error.is_retryable());
    /// ```
    ///
    /// [`HttpLayer::caller`]: https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/http/struct.HttpLayer.html#method.caller
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        made::note(kind, &message);
        Self {
            kind,
            message,
            retry_after: None,
            is_of_failure: false,
            source: None,
            is_misuse: false,
            is_rejection: false,
            is_refused_step: false,
            is_out_of_time: false,
        }
    }

    /// Returns the error for code that uses the library in a way that can't work, whatever the caller sends.
    pub(crate) fn misuse(message: impl Into<Cow<'static, str>>) -> Self {
        Self { is_misuse: true, ..Self::new(ErrorKind::Invalid, message) }
    }

    pub(crate) fn is_misuse(&self) -> bool {
        self.is_misuse
    }

    /// Returns the error for an operation that can't run, because the invocation's time has run out.
    pub(crate) fn out_of_time(message: impl Into<Cow<'static, str>>) -> Self {
        Self { is_out_of_time: true, ..Self::new(ErrorKind::Unavailable, message) }
    }

    pub(crate) fn is_out_of_time(&self) -> bool {
        self.is_out_of_time
    }

    /// Returns the error for an operation that failed permanently, and whose error details weren't retained.
    pub(crate) fn failure_not_retained(key: &impl fmt::Display) -> Self {
        let message =
            format!("{key}: the operation failed permanently, and its error details weren't retained");
        Self { is_of_failure: true, ..Self::new(ErrorKind::NotRetained, message) }
    }

    /// Whether the outcome that wasn't retained ([`ErrorKind::NotRetained`]) is a permanent failure rather
    /// than a success.
    pub fn is_of_failure(&self) -> bool {
        self.is_of_failure
    }

    #[must_use]
    pub(crate) fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks the error as the store's rejection of a request.
    #[must_use]
    pub(crate) fn rejection(self) -> Self {
        Self { is_rejection: true, ..self }
    }

    /// Whether the operation may succeed later, although this call failed.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_retryable() || self.is_rejection
    }

    /// Marks a step's error as a refusal, if the step may succeed later.
    #[must_use]
    pub(crate) fn of_step(self) -> Self {
        Self { is_refused_step: self.may_pass(), ..self }
    }

    /// The error's category, which says what the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The error's type, as Lambda reports it. It's stable across versions.
    pub(crate) fn error_type(&self) -> String {
        format!("Idempotency.{}", self.kind.as_str())
    }

    /// Whether the same call may succeed later, unchanged, without the risk of a second run.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::InProgress | ErrorKind::Fenced | ErrorKind::Unavailable)
    }

    /// How long to wait before repeating the call, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        own::note_error(self);
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    /// Shows the sentence with its causes, because `main` prints an error by `Debug`. `{:#?}` shows the fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            write!(f, "{} ({})", self.message, self.kind.as_str())?;
            return causes(self).map_or(Ok(()), |causes| write!(f, ": {causes}"));
        }
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.kind).field("message", &self.message);
        if let Some(retry_after) = self.retry_after {
            debug.field("retry_after", &retry_after);
        }
        if let Some(source) = &self.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Finds this library's errors in a handler's error, whatever its type is.
///
/// A handler's error often wraps a step's error in a type that the library can't name, such as `RunError<E>` or
/// `anyhow::Error`. But when such an error writes its text, it calls the `Display` of [`Error`] or [`RunError`]. A text
/// that a handler made of an error earlier doesn't.
pub mod own {
    use std::{
        cell::RefCell,
        error::Error as StdError,
        fmt::{self, Write as _},
    };

    /// The errors of this library that a handler's error has shown.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Shown {
        /// The type of the first one, as Lambda reports it: the library's own, or that of a recorded failure.
        pub error_type: Option<String>,
        /// Whether one of them is a step's refusal, and the step may succeed later.
        pub is_refused_step: bool,
    }

    thread_local! {
        /// `None` if nothing looks for errors.
        static SHOWN: RefCell<Option<Shown>> = const { RefCell::new(None) };
    }

    /// Discards the text.
    struct Nowhere;

    impl fmt::Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }

    /// Ends the search, even if an error's `Display` panics.
    struct Search(Option<Shown>);

    impl Drop for Search {
        fn drop(&mut self) {
            SHOWN.set(self.0.take());
        }
    }

    /// Notes an error of this library that's being shown, or an error that contains one.
    pub fn note(error_type: impl FnOnce() -> String, is_refused_step: bool) {
        SHOWN.with_borrow_mut(|shown| {
            if let Some(shown) = shown {
                shown.error_type.get_or_insert_with(error_type);
                shown.is_refused_step |= is_refused_step;
            }
        });
    }

    pub(super) fn note_error(error: &super::Error) {
        note(|| error.error_type(), error.is_refused_step);
    }

    pub(super) fn note_recorded(failure: &super::RecordedFailure) {
        note(|| failure.error_type.clone(), false);
    }

    /// Returns the result of `show`, and the errors that it showed.
    pub fn shown_while<T>(show: impl FnOnce() -> T) -> (T, Shown) {
        let search = Search(SHOWN.replace(Some(Shown::default())));
        let result = show();
        let shown = SHOWN.take().unwrap_or_default();
        drop(search);
        (result, shown)
    }

    /// Returns the errors that an error's text shows. The alternate form is the one in which `anyhow` shows all causes.
    pub fn shown_by(error: &impl fmt::Display) -> Shown {
        shown_while(|| write!(Nowhere, "{error:#}")).1
    }

    /// Returns the errors that an error's `Debug` shows. Where it lists causes, as `anyhow`'s does, it writes them by their
    /// `Display`. A derived `Debug` doesn't.
    pub fn shown_by_debug(error: &impl fmt::Debug) -> Shown {
        shown_while(|| write!(Nowhere, "{error:?}")).1
    }

    /// Returns the errors that `error` and its [`source`](StdError::source)s show, the outermost first.
    pub fn shown_in(error: &(dyn StdError + 'static)) -> Shown {
        shown_while(|| {
            for error in std::iter::successors(Some(error), |&error| error.source()) {
                let _ = write!(Nowhere, "{error:#}");
            }
        })
        .1
    }
}

/// Collects the errors that this library creates in a test, even if the tested function drops them. Without the feature
/// `testing`, it collects nothing.
pub mod made {
    use std::cell::RefCell;

    use super::ErrorKind;

    thread_local! {
        /// `None` in threads that don't collect errors.
        static MADE: RefCell<Option<Vec<(ErrorKind, String)>>> = const { RefCell::new(None) };
    }

    pub(super) fn note(kind: ErrorKind, message: &str) {
        if !cfg!(feature = "testing") {
            return;
        }
        MADE.with_borrow_mut(|made| {
            if let Some(made) = made {
                made.push((kind, message.to_owned()));
            }
        });
    }

    thread_local! {
        static REASONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes why a batch's record is returned for redelivery. Each text counts once.
    pub fn note_reason(reason: impl FnOnce() -> String) {
        if cfg!(feature = "testing") && MADE.with_borrow(Option::is_some) {
            let reason = reason();
            REASONS.with_borrow_mut(|reasons| {
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            });
        }
    }

    /// Returns the reasons that were noted in this thread since the last call.
    pub fn reasons() -> Vec<String> {
        REASONS.take()
    }

    /// Returns the errors created in this thread since the last call, each with its text. The first call returns none,
    /// and starts the collection.
    pub fn taken() -> Vec<(ErrorKind, String)> {
        MADE.replace(Some(Vec::new())).unwrap_or_default()
    }
}

/// Returns the error's causes in one line, or `None` if it has none.
pub fn causes(error: &dyn StdError) -> Option<String> {
    let mut causes = error.source()?.to_string();
    let mut next = error.source().and_then(StdError::source);
    while let Some(cause) = next {
        causes = format!("{causes}: {cause}");
        next = cause.source();
    }
    Some(causes)
}

/// Returns the position where a text stops being the expected JSON. The result leaves out the error's own text, which
/// may quote the input.
pub fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// A failure that was recorded as the operation's outcome. Replays return it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct RecordedFailure {
    /// The failure's type, as Lambda would have reported it.
    pub error_type: String,
    /// The failure's message, as Lambda would have reported it.
    pub error_message: String,
}

impl RecordedFailure {
    /// Creates a failure to record.
    pub fn new(error_type: impl Into<String>, error_message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), error_message: error_message.into() }
    }
}

/// The error of [`Operation::run`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run) and of the event layers.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The handler ran in this call, and this is its own error, which isn't recorded.
    Handler(E),
    /// The operation failed permanently, in this run or in an earlier one, and every call gets this failure. A run's
    /// failure is recorded in three cases: under at-most-once; with
    /// [`Recording::Record`](crate::settings::Recording::Record); and if the handler returns
    /// [`Failure::permanent`](crate::Failure::permanent).
    ///
    /// If this run's failure couldn't be stored, [`Operation::run`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run) returns
    /// [`Handler`](Self::Handler). The event layers return `Recorded` in that case too, because they've already
    /// converted the handler's error. Under at-most-once, they also do so if the conversion shows a step's refusal,
    /// which releases the key.
    Recorded(RecordedFailure),
    /// The library's own error: see its [`kind`](Error::kind).
    Idempotency(Error),
}

impl<E> From<Error> for RunError<E> {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler(error) => error.fmt(f),
            Self::Recorded(failure) => {
                own::note_recorded(failure);
                f.write_str(&failure.error_message)
            }
            Self::Idempotency(error) => error.fmt(f),
        }
    }
}

/// Handlers that return `lambda_runtime::Error` can use `?` on a `RunError<lambda_runtime::Error>`. Start the function with
/// `lambda::run`, which finds the error's type in the box. The bound on `E` is `Display`, because `lambda_runtime::Error` is a boxed error, which doesn't implement `std::error::Error`.
impl<E: fmt::Debug + fmt::Display + 'static> StdError for RunError<E> {
    /// The cause of this library's error, or of a handler's boxed error. `None` for a handler's error of another type:
    /// match [`RunError::Handler`] to get its cause.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Handler(error) => {
                (error as &dyn Any).downcast_ref::<Source>().and_then(|error| error.source())
            }
            Self::Recorded(_) => None,
            Self::Idempotency(error) => error.source(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_does_not_repeat_the_source() {
        let error = Error::new(ErrorKind::Unavailable, "the store didn't answer")
            .with_source(std::io::Error::other("connection refused"));
        assert_eq!(error.to_string(), "the store didn't answer");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("connection refused"));
        assert!(error.is_retryable());
    }

    /// Handlers that return `lambda_runtime::Error` use `?` on the result of `run`.
    #[test]
    fn question_mark_boxes_run_errors() {
        fn handler(error: RunError<Source>) -> Result<(), Source> {
            Err(error)?
        }
        let io = std::io::Error::other(std::fmt::Error);
        let boxed = handler(RunError::Handler(Box::new(io))).unwrap_err();
        assert_eq!(boxed.to_string(), std::fmt::Error.to_string());
        let own = Error::new(ErrorKind::Unavailable, "the store didn't answer").with_source(std::fmt::Error);
        let boxed = handler(RunError::Idempotency(own)).unwrap_err();
        assert_eq!(boxed.source().map(ToString::to_string), Some(std::fmt::Error.to_string()));
    }

    #[test]
    fn errors_returned_from_main_are_sentences() {
        let error = Error::new(ErrorKind::Unavailable, "the store didn't answer")
            .with_source(std::io::Error::other("connection refused"));
        assert_eq!(format!("{error:?}"), "the store didn't answer (Unavailable): connection refused");
        assert!(format!("{error:#?}").starts_with("Error {"));
    }

    #[test]
    fn operations_that_may_have_run_are_not_retryable() {
        for kind in
            [ErrorKind::Unrecorded, ErrorKind::OutcomeUnknown, ErrorKind::Mismatch, ErrorKind::NotRetained]
        {
            assert!(!Error::new(kind, "x").is_retryable(), "{kind:?}");
        }
    }
}
