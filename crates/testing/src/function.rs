//! [`Function`]: the user's service, however it's wired, and its [`Answer`].

#[cfg(feature = "http")]
mod lambda;

use std::{any::Any, error::Error as StdError, fmt, future::Future, pin::Pin, sync::Arc};

use lambda_idempotency::{
    Invocation,
    kit::{HandlerOf, handler, in_invocation},
};
use lambda_idempotency_core::{ErrorKind, internal::error::own, time::Timestamp};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A delivery that runs: the future of its answer.
pub(super) type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

type Call = dyn FnMut(Arc<str>, Entry) -> Running + Send;

tokio::task_local! {
    /// Whether the code around the operations' handlers has an operation context too, as the handlers have. Tasks that
    /// the function spawns don't inherit this value.
    static HAS_CONTEXT: bool;
}

/// The kind of code that calls the ledger.
pub(super) enum Caller {
    /// A handler: the library gave it a context.
    Handler,
    /// The function's code around its operations.
    Around,
    /// A task that the function spawned.
    Task,
}

/// Returns the kind of code that makes the current call.
pub(super) fn caller() -> Caller {
    let is_handler = |&has_context: &bool| match handler() {
        Some(HandlerOf::Invocation) => !has_context,
        Some(HandlerOf::Step) => true,
        None => false,
    };
    match HAS_CONTEXT.try_with(is_handler) {
        Ok(true) => Caller::Handler,
        Ok(false) => Caller::Around,
        Err(_) => Caller::Task,
    }
}

/// The part of an invocation that Lambda adds to the event.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) request_id: String,
    pub(super) now: Timestamp,
    pub(super) deadline: Timestamp,
}

/// The function under test: a plain handler, or your own service with its layers, as you give it to the runtime.
pub struct Function {
    call: Box<Call>,
}

impl Function {
    /// Wraps a plain handler, which calls [`run`](lambda_idempotency::Operation::run) or
    /// [`begin`](lambda_idempotency::Operation::begin) itself.
    /// These calls get the invocation's deadline.
    pub fn new<T, R, E, H, F>(handler: H) -> Self
    where
        T: DeserializeOwned + Send,
        R: Serialize + Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
        H: Fn(T) -> F + Clone + Send + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
    {
        Self::of(move |event: Arc<str>, entry| {
            let handler = handler.clone();
            let invocation = Invocation::entered(entry.now, entry.deadline, &entry.request_id);
            let run = async move {
                let event = serde_json::from_str(&event).map_err(|error| unreadable(&error))?;
                match handler(event).await {
                    Ok(value) => encoded(&value),
                    Err(error) => {
                        let error = error.into();
                        let error_type = own::shown_in(&*error).error_type;
                        Err(Refusal::new(error_type.as_deref().unwrap_or(UNTYPED), error.to_string()))
                    }
                }
            };
            let run = in_invocation(invocation, run);
            Box::pin(HAS_CONTEXT.scope(true, async move { Answer::of(run.await) }))
        })
    }

    fn of(call: impl FnMut(Arc<str>, Entry) -> Running + Send + 'static) -> Self {
        Self { call: Box::new(call) }
    }

    pub(super) fn call(&mut self, event: Arc<str>, entry: Entry) -> Running {
        (self.call)(event, entry)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}

/// An error, as the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    error_type: String,
    message: String,
}

impl Refusal {
    /// The handler panicked with this message.
    pub(super) fn of_panic(panic: &dyn Any) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = text.map(|text| format!(": {text}")).unwrap_or_default();
        Self::new("Panic", format!("the handler panicked{said}"))
    }

    pub(super) fn new(error_type: &str, message: impl Into<String>) -> Self {
        Self { error_type: error_type.to_owned(), message: message.into() }
    }
}

fn unreadable(error: &serde_json::Error) -> Refusal {
    Refusal::new("Event", format!("the event doesn't parse: {error}"))
}

fn encoded(value: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(value).map_err(|error| Refusal::new("Answer", error.to_string()))
}

/// The type of a plain handler's error, unless it's this library's.
const UNTYPED: &str = "HandlerError";

/// A function's answer to one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    outcome: Result<String, Refusal>,
    is_http: bool,
    /// The kinds of this library's errors that the answer passes on.
    kinds: Vec<ErrorKind>,
    /// Why a batch's records are returned for redelivery.
    reasons: Vec<String>,
}

impl Answer {
    fn of(outcome: Result<String, Refusal>) -> Self {
        Self { outcome, is_http: false, kinds: Vec::new(), reasons: Vec::new() }
    }

    /// Notes which errors the answer passes on. `errors` are all errors that the function got from this library, and
    /// `reasons` says why it returned a batch's records.
    pub(super) fn refused_by(mut self, errors: &[(ErrorKind, String)], reasons: &[String]) -> Self {
        let is_batch = !self.returned().is_empty();
        self.reasons = if is_batch { reasons.to_vec() } else { Vec::new() };
        let is_in = |message: &str| self.error().is_some_and(|(_, text)| text.contains(message));
        let kinds = errors.iter().filter(|(_, message)| is_batch || is_in(message)).map(|(kind, _)| *kind);
        self.kinds = kinds.collect();
        self
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self::of(Err(refusal))
    }

    /// The HTTP response's status.
    pub fn status(&self) -> Option<u16> {
        let response = self.json().filter(|_| self.is_http)?;
        response.get("statusCode")?.as_u64()?.try_into().ok()
    }

    /// The value of an HTTP response's header. If the response has the header several times, the first value.
    pub fn header(&self, name: &str) -> Option<String> {
        match self.headers(name).into_iter().next()? {
            Value::Array(values) => values.first()?.as_str().map(str::to_owned),
            value => value.as_str().map(str::to_owned),
        }
    }

    /// The HTTP response's body, or the JSON of an answer that isn't an HTTP response. Empty if the function reported
    /// an error.
    pub fn body(&self) -> String {
        match self.json() {
            Some(response) if self.is_http => {
                response.get("body").and_then(Value::as_str).unwrap_or_default().to_owned()
            }
            _ => self.outcome.clone().unwrap_or_default(),
        }
    }

    /// The type and the text of the error that the function reported, if it did.
    pub fn error(&self) -> Option<(&str, &str)> {
        self.outcome.as_ref().err().map(|refusal| (refusal.error_type.as_str(), refusal.message.as_str()))
    }

    /// Whether the event's source considers the operation done: no error, and no HTTP status of 400 or more. The
    /// source of a batch may still [deliver some records again](Self::returned).
    pub fn is_done(&self) -> bool {
        self.outcome.is_ok() && self.status().is_none_or(|status| status < 400)
    }

    /// Whether the handler panicked, with a message that contains `what`.
    pub(super) fn has_panicked_with(&self, what: &str) -> bool {
        self.error().is_some_and(|(error_type, message)| error_type == "Panic" && message.contains(what))
    }

    /// Whether the operation is done, with all records of a batch.
    pub(super) fn is_whole(&self) -> bool {
        self.is_done() && self.returned().is_empty()
    }

    /// Returns the identifiers of the records that a batch's source delivers again.
    pub fn returned(&self) -> Vec<String> {
        let json = self.json().unwrap_or_default();
        let items = json.get("batchItemFailures").and_then(Value::as_array).cloned().unwrap_or_default();
        items.iter().filter_map(|item| item.get("itemIdentifier")?.as_str().map(str::to_owned)).collect()
    }

    /// Whether this library refused with an error of this kind, and the function passed it on: as its error, as the
    /// HTTP layer's response, or by returning a batch's record for redelivery.
    pub fn is_refused_as(&self, kind: ErrorKind) -> bool {
        let is_typed =
            || self.error().is_some_and(|(of, _)| of.strip_prefix("Idempotency.") == Some(kind.as_str()));
        self.kinds.contains(&kind) || is_typed() || self.code().is_some_and(|code| code == code_of(kind))
    }

    /// The type of the error with which the function passed on this library's refusal, if it's only the name of a Rust
    /// type, on which no caller can match: the function made a text of the refusal.
    pub(super) fn untyped(&self) -> Option<&str> {
        let (error_type, _) = self.error().filter(|_| !self.kinds.is_empty())?;
        let is_name = error_type == UNTYPED || error_type.starts_with('&') || error_type.contains("::");
        is_name.then_some(error_type)
    }

    /// Whether this library refused, with whatever error, and the function passed the error on.
    pub(super) fn is_refused(&self) -> bool {
        let is_code_of = |code: &str| KINDS.into_iter().any(|kind| code_of(kind) == code);
        !self.kinds.is_empty() || self.code().is_some_and(|code| is_code_of(&code))
    }

    /// Whether this library refused because of something that may pass: another delivery, another operation's content,
    /// or the store.
    pub(super) fn is_refused_for_now(&self) -> bool {
        let is_lasting = |kind: &ErrorKind| {
            matches!(kind, ErrorKind::MissingKey | ErrorKind::InvalidKey | ErrorKind::Invalid)
        };
        !self.kinds.iter().all(is_lasting)
    }

    /// Whether the answer has its own text. A batch's answer only lists the failed records.
    pub(super) fn is_telling(&self) -> bool {
        let body = self.body();
        !["", "null", "{}"].contains(&body.as_str()) && !body.contains("batchItemFailures")
    }

    /// Whether this is a failure of the same kind as `other`: with the same status, or with the same type of error.
    pub(super) fn is_failure_like(&self, other: &Self) -> bool {
        let of =
            |answer: &Self| (answer.status(), answer.error().map(|(error_type, _)| error_type.to_owned()));
        !self.is_done() && !self.is_refused() && of(self) == of(other)
    }

    /// Returns the code of this library's problem response.
    fn code(&self) -> Option<String> {
        self.status().filter(|status| *status >= 400)?;
        let body: Value = serde_json::from_str(&self.body()).ok()?;
        body.get("code")?.as_str().map(str::to_owned)
    }

    /// Whether a retry can't help: the only allowed run ended, and its effect may or may not have happened.
    pub(super) fn is_unknown_outcome(&self) -> bool {
        self.is_refused_as(ErrorKind::OutcomeUnknown)
    }

    fn json(&self) -> Option<Value> {
        serde_json::from_str(self.outcome.as_ref().ok()?).ok()
    }

    /// Returns the values of an HTTP response's header. Depending on the front end, they're in `headers` or in
    /// `multiValueHeaders`.
    fn headers(&self, name: &str) -> Vec<Value> {
        let response = self.json().unwrap_or_default();
        let fields =
            ["headers", "multiValueHeaders"].into_iter().filter_map(|field| response.get(field)?.as_object());
        let values =
            fields.flatten().filter(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone());
        values.collect()
    }

    /// Whether this answer can be a replay of `first`. A replay may have more fields.
    ///
    /// `Location` and `Content-Location` must be the same in two HTTP responses that both have them. Other headers may
    /// differ: code around the handler may set them for each response, and the settings may keep some of them out of
    /// the record.
    pub(super) fn is_replay_of(&self, first: &Self) -> bool {
        if self.is_http {
            let whole =
                |answer: &Self| serde_json::from_str(&answer.body()).unwrap_or(Value::String(answer.body()));
            let differs = |name: &str| {
                let (own, firsts) = (self.headers(name), first.headers(name));
                !own.is_empty() && !firsts.is_empty() && own != firsts
            };
            return self.status() == first.status()
                && contains(&whole(self), &whole(first))
                && !["location", "content-location"].into_iter().any(differs);
        }
        match (self.json(), first.json()) {
            (Some(replay), Some(first)) => contains(&replay, &first),
            _ => self.outcome == first.outcome,
        }
    }
}

/// Whether `whole` equals `part`, or has all fields of `part` and further ones.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name) == Some(value))
        }
        _ => whole == part,
    }
}

/// Returns the text with each long hexadecimal number cut after six digits.
fn without_digests(text: &str) -> String {
    let mut short = String::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        match digits.get(..6).filter(|_| digits.len() > 32) {
            Some(first) => short.push_str(&format!("{first}…{}", &part[digits.len()..])),
            None => short.push_str(part),
        }
    }
    short
}

/// The kinds of errors that have a code in the HTTP layer's responses. The other kinds share a code with one of these.
const KINDS: [ErrorKind; 11] = [
    ErrorKind::MissingKey,
    ErrorKind::InvalidKey,
    ErrorKind::Mismatch,
    ErrorKind::InProgress,
    ErrorKind::OutcomeUnknown,
    ErrorKind::NotRetained,
    ErrorKind::Unavailable,
    ErrorKind::Declined,
    ErrorKind::AllFailed,
    ErrorKind::Corrupt,
    ErrorKind::Invalid,
];

/// The HTTP layer's code for an error.
const fn code_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::MissingKey => "key-missing",
        ErrorKind::InvalidKey => "key-invalid",
        ErrorKind::Mismatch => "key-reused",
        ErrorKind::InProgress | ErrorKind::Fenced => "in-progress",
        ErrorKind::OutcomeUnknown | ErrorKind::Unrecorded => "outcome-unknown",
        ErrorKind::NotRetained => "not-retained",
        ErrorKind::Unavailable => "store-unavailable",
        ErrorKind::Declined => "declined",
        ErrorKind::AllFailed => "operation-failed",
        ErrorKind::Corrupt => "record-unreadable",
        // `Invalid`.
        _ => "misconfigured",
    }
}

impl fmt::Display for Answer {
    /// Writes one line. Cuts an answer after 120 characters, and an error or the reasons for a redelivery after 400: the
    /// end of an error's text says what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (&self.outcome, self.status()) {
            (Err(refusal), _)
                if refusal.error_type.starts_with("&alloc::boxed::Box<dyn core::error::Error") =>
            {
                format!("the error Box<dyn Error>: {}", refusal.message)
            }
            (Err(refusal), _) => format!("the error {}: {}", refusal.error_type, refusal.message),
            (Ok(json), None) if !self.reasons.is_empty() => format!("{}, so {json}", self.reasons.join("; ")),
            (Ok(_), Some(status)) => match self.headers("location").as_slice() {
                [] => format!("{status} {}", self.body()),
                [location, ..] => format!("{status} (`Location`: {location}) {}", self.body()),
            },
            (Ok(json), None) => json.clone(),
        };
        let text = without_digests(&text);
        let longest = if self.outcome.is_err() || !self.reasons.is_empty() { 400 } else { 120 };
        let mut line: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(longest).collect();
        if text.chars().count() > longest {
            line.push('…');
        }
        f.write_str(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_must_not_change_the_location() {
        let answer = |headers: &str| {
            let response = format!(r#"{{"statusCode":201,"headers":{headers},"body":""}}"#);
            Answer { is_http: true, ..Answer::of(Ok(response)) }
        };
        let first = answer(r#"{"Location":"/payments/1","date":"09:15:44"}"#);
        assert!(answer(r#"{"location":"/payments/1","date":"09:15:49"}"#).is_replay_of(&first));
        assert!(answer("{}").is_replay_of(&first), "a setting may keep the location out of the record");
        let other = answer(r#"{"location":"/payments/2"}"#);
        assert!(!other.is_replay_of(&first));
        assert_eq!(other.to_string(), r#"201 (`Location`: "/payments/2") "#);
    }
}
