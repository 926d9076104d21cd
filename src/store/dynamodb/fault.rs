//! Maps the SDK's errors to the store's. A store's error says what happened, whether the write may have been applied
//! anyway, and how to fix the cause.
//!
//! A store's error never contains the SDK's error, because the SDK's error has DynamoDB's whole answer, including the
//! old item. This module keeps DynamoDB's error code, the first line of its message, and the request's id. DynamoDB's
//! messages about invalid values quote these values. So if a request has writes that the handler staged, this module
//! keeps only a known part of such a message, which contains no value.

use std::{error::Error as StdError, fmt};

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId,
};

use super::attempts::Findings;
use crate::store::{
    StoreError, StoreErrorKind,
    toolkit::{innermost, sentence},
};

/// An SDK error, reduced to its safe parts.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) class: Class,
    pub(super) cause: Cause,
    pub(super) maybe_applied: bool,
    endpoint: Option<String>,
}

/// The category of an error. It determines the message and the store error's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The request couldn't be built: no Region, a wrong endpoint.
    NotBuilt,
    /// The request wasn't sent, because there are no credentials.
    NoCredentials,
    /// The request wasn't sent for another reason, usually because the endpoint isn't a valid URL.
    NotSent,
    /// The request timed out.
    TimedOut,
    /// The connection failed.
    NotReached,
    /// The answer couldn't be read, or isn't DynamoDB's.
    Unreadable,
    /// The service failed.
    ServerError,
    /// The service throttles requests.
    Throttled,
    /// Another transaction is using the item.
    Conflict,
    /// The table doesn't exist.
    MissingTable,
    /// The request is invalid, usually because the table's keys don't match the configuration.
    Invalid,
    /// The item, or all items with its partition key together, are too large.
    TooLarge,
    /// A transaction is invalid, because of one of the handler's writes or a combination of them.
    WrongWrites,
    /// The credentials have expired. The environment renews them.
    ExpiredCredentials,
    /// The service rejects the request for another reason: permission, account, credentials.
    Refused,
}

/// Parts of DynamoDB's messages about invalid writes. DynamoDB quotes names and values only outside these parts.
const WITHOUT_VALUES: [&str; 25] = [
    "Transaction request cannot include multiple operations on one item",
    "The provided key element does not match the schema",
    "Item size has exceeded the maximum allowed size",
    "Item size to update has exceeded the maximum allowed size",
    "Missing the key",
    "Type mismatch for key",
    "Type mismatch for Index Key",
    "The AttributeValue for a key attribute cannot contain an empty",
    "This attribute is part of the key",
    "Supplied AttributeValue is empty",
    "cannot be converted to a numeric value",
    "Number overflow",
    "Number underflow",
    "more than 38 significant digits in a Number",
    "contains duplicates",
    "Incorrect operand type",
    "Syntax error",
    "Two document paths overlap",
    "Two document paths conflict",
    "An operand in the update expression has an incorrect data type",
    "The document path provided in the update expression is invalid for update",
    "The provided expression refers to an attribute that does not exist in the item",
    "used in expression is not defined",
    "unused in expressions",
    "Attribute name is a reserved keyword",
];

/// The error codes of throttled requests. Some are DynamoDB's own. The others are in the SDK's list of codes to retry:
/// DynamoDB's front ends share them with other services.
const THROTTLES: [&str; 15] = [
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "LimitExceededException",
    "Throttling",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "BandwidthLimitExceeded",
    "PriorRequestNotComplete",
    "EC2ThrottledException",
    "SlowDown",
    "RequestTimeout",
    "RequestTimeoutException",
];

/// Whether an error, or a transaction's cancellation reason, says that an item is too large. In a table with local
/// secondary indexes, all items of one partition key together can be too large as well. In either case, the record may
/// fit without its response. Messages about the size of a key or an expression don't count.
pub(super) fn is_about_size(code: &str, message: &str) -> bool {
    match code {
        "ItemCollectionSizeLimitExceededException"
        | "ItemCollectionSizeLimitExceeded"
        | "RequestEntityTooLarge" => true,
        // "Item size has exceeded …" from a put, "Item size to update has exceeded …" from an update.
        "ValidationException" | "ValidationError" => {
            let message = message.to_ascii_lowercase();
            message.contains("item size") && message.contains("exceeded the maximum allowed size")
        }
        _ => false,
    }
}

impl Class {
    pub(super) const fn kind(self) -> StoreErrorKind {
        match self {
            // Missing credentials may be temporary, because a service provides them.
            Self::NoCredentials
            | Self::ExpiredCredentials
            | Self::NotSent
            | Self::TimedOut
            | Self::NotReached
            | Self::Unreadable
            | Self::ServerError
            | Self::Throttled => StoreErrorKind::Unavailable,
            Self::Conflict => StoreErrorKind::Conflict,
            // These errors may be temporary: someone may create or restore the table, fix a role or a key's policy,
            // replace credentials, or set a clock.
            Self::NotBuilt | Self::MissingTable | Self::Invalid | Self::Refused => StoreErrorKind::Rejected,
            Self::TooLarge | Self::WrongWrites => StoreErrorKind::Unstorable,
        }
    }

    /// The class of an error with this code and message ("Error handling with DynamoDB", developer guide).
    fn of_code(code: &str, message: &str, server_error: bool) -> Self {
        match code {
            code if THROTTLES.contains(&code) => Self::Throttled,
            code if is_about_size(code, message) => Self::TooLarge,
            // `ReplicatedWriteConflictException` is from a global table with strong consistency.
            "TransactionConflictException" | "ReplicatedWriteConflictException" => Self::Conflict,
            "ResourceNotFoundException" => Self::MissingTable,
            "ValidationException" => Self::Invalid,
            "ExpiredTokenException" | "ExpiredToken" => Self::ExpiredCredentials,
            _ if server_error => Self::ServerError,
            _ => Self::Refused,
        }
    }
}

/// The safe part of an SDK error: the `source()` of the store's error.
#[derive(Debug)]
pub(super) struct Cause {
    text: String,
    code: Option<String>,
    request_id: Option<String>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(code) = &self.code {
            write!(f, "{code}: ")?;
        }
        f.write_str(&self.text)?;
        match &self.request_id {
            Some(id) => write!(f, " (request {id})"),
            None => Ok(()),
        }
    }
}

impl StdError for Cause {}

impl Fault {
    /// Reduces `error` to its safe parts. `findings` describe the call's attempts.
    pub(super) fn new<E>(error: &SdkError<E>, findings: Findings) -> Self
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let (mut class, cause) = reduced(error);
        if class == Class::NotReached && findings.last_unsent {
            class = if is_about_credentials(error) { Class::NoCredentials } else { Class::NotSent };
        }
        // If the interceptor saw no failed attempt, the error is ambiguous, unless the request couldn't even be built.
        // A timeout is always ambiguous, because the SDK may drop an attempt midway.
        let unseen = !findings.seen && class != Class::NotBuilt;
        Self {
            class,
            cause,
            maybe_applied: findings.maybe_applied || unseen || class == Class::TimedOut,
            endpoint: findings.endpoint,
        }
    }

    /// Returns the same error in another class.
    pub(super) fn of_class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Removes the parts that may quote a value of the handler's writes.
    pub(super) fn without_values(mut self) -> Self {
        if let Some(code) = &self.cause.code {
            self.cause.text = without_values(code, &self.cause.text).to_owned();
        }
        self
    }

    /// Converts to the store's error, about `table` in `region`.
    pub(super) fn into_error(self, table: &str, region: Option<&str>) -> StoreError {
        let message = self.message(table, region);
        StoreError::new(self.class.kind(), message).maybe_applied(self.maybe_applied).with_source(self.cause)
    }

    /// DynamoDB's error code, if it looks like one.
    fn code(&self) -> Option<&str> {
        let is_code = |code: &&str| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        self.cause.code.as_deref().filter(is_code)
    }

    /// DynamoDB's reason for a rejection, and what to do next. The reason is only the error code, since the message may
    /// contain ARNs, which callers mustn't see. The message is in the error's source, and so in the log.
    pub(super) fn reason(&self) -> String {
        let code = self.code().unwrap_or("no error code");
        let advice = match (self.class, code) {
            // Such a message is one of the known parts.
            (Class::WrongWrites, "ValidationException" | "ValidationError") => {
                return format!("{code}: {}", self.cause.text);
            }
            (_, code) if code.starts_with("KMS") || code == "InaccessibleEncryptionCredentialsException" => {
                "check the table's KMS key, and the role's permissions for the key"
            }
            (_, code) if code.starts_with("AccessDenied") => {
                "give the function's role the action that the log names"
            }
            (_, "RequestExpired" | "RequestTimeTooSkewed") => "set the clock of this machine",
            (
                _,
                "UnrecognizedClientException"
                | "InvalidClientTokenId"
                | "InvalidSignatureException"
                | "SignatureDoesNotMatch"
                | "IncompleteSignature"
                | "IncompleteSignatureException"
                | "MissingAuthenticationToken"
                | "MissingAuthenticationTokenException",
            ) => "check the AWS credentials, the Region and the clock",
            (_, "ValidationException") => "run `idempotency table check`",
            _ => "the log has DynamoDB's message",
        };
        format!("{code}; {advice}")
    }

    fn message(&self, table: &str, region: Option<&str>) -> String {
        let place = self.place(region);
        match self.class {
            Class::NotBuilt => format!("the request to table `{table}` couldn't be built"),
            Class::NoCredentials => format!(
                "the request to table `{table}` wasn't sent, because no AWS credentials were found; set AWS_PROFILE, \
                 or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the function a role"
            ),
            Class::NotSent => format!(
                "the request to table `{table}` wasn't sent; check the AWS credentials and the endpoint"
            ),
            Class::TimedOut => format!("table `{table}`{place} didn't answer in time"),
            Class::NotReached => format!(
                "table `{table}`{place} couldn't be reached; check the Region, the endpoint and the network"
            ),
            Class::Unreadable => {
                format!("the response about table `{table}`{place} couldn't be read; check the endpoint")
            }
            Class::ServerError => format!("DynamoDB failed to serve table `{table}`{place}"),
            Class::Throttled => format!("DynamoDB throttled the request to table `{table}`{place}"),
            Class::Conflict => {
                format!("another transaction currently holds the record in table `{table}`{place}")
            }
            Class::MissingTable => format!(
                "there is no table `{table}`{place}; create it with `idempotency table create --table {table}`, or \
                 set IDEMPOTENCY_TABLE to an existing table"
            ),
            Class::TooLarge => format!(
                "DynamoDB rejected the record in table `{table}`{place}: it is too large; lower the store's inline \
                 limit"
            ),
            Class::WrongWrites => {
                format!(
                    "DynamoDB rejected the transaction{place}: one of the handler's writes is invalid: {}",
                    self.reason()
                )
            }
            Class::ExpiredCredentials => format!(
                "DynamoDB rejected the request to table `{table}`{place}, because the AWS credentials have expired; \
                 retry once they're renewed"
            ),
            Class::Invalid | Class::Refused => {
                format!("DynamoDB rejected the request to table `{table}`{place}: {}", self.reason())
            }
        }
    }

    /// The Region and the endpoint of the request, as far as they're known.
    fn place(&self, region: Option<&str>) -> String {
        match (region, &self.endpoint) {
            (Some(region), Some(endpoint)) => format!(" in {region} at {endpoint}"),
            (Some(region), None) => format!(" in {region}"),
            (None, Some(endpoint)) => format!(" at {endpoint}"),
            (None, None) => String::new(),
        }
    }
}

fn reduced<E>(error: &SdkError<E>) -> (Class, Cause)
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let plain = |text: &str| Cause { text: text.to_owned(), code: None, request_id: None };
    match error {
        SdkError::ConstructionFailure(_) => (Class::NotBuilt, plain(&cause(error))),
        SdkError::TimeoutError(_) => (Class::TimedOut, plain("the attempt or the operation timed out")),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => (Class::TimedOut, plain(&cause(error))),
        SdkError::DispatchFailure(_) => (Class::NotReached, plain(&cause(error))),
        SdkError::ServiceError(service) => {
            let (status, meta) = (service.raw().status(), service.err().meta());
            let request_id = service.raw().request_id().map(str::to_owned);
            let Some(code) = meta.code() else {
                let text = format!("HTTP status {} without a known DynamoDB error", status.as_u16());
                let class = if status.is_server_error() { Class::ServerError } else { Class::Unreadable };
                return (class, Cause { text, code: None, request_id });
            };
            let message = meta.message().unwrap_or_default();
            let class = Class::of_code(code, message, status.is_server_error());
            let text = without_credentials(code, sentence(meta.message().unwrap_or("no message"))).to_owned();
            (class, Cause { text, code: Some(code.to_owned()), request_id })
        }
        // The text is fixed, because a parser's error may quote its input.
        _ => (Class::Unreadable, plain("the response isn't from DynamoDB")),
    }
}

/// Returns `message` with `…` in place of each ARN.
pub(super) fn without_arns(message: &str) -> String {
    let mut words = message.split(' ');
    let first = words.next().unwrap_or_default().to_owned();
    let shown = |word: &'_ str| match word.find("arn:") {
        Some(at) => format!("{}…", &word[..at]),
        None => word.to_owned(),
    };
    words.fold(shown(&first), |text, word| text + " " + &shown(word))
}

/// Returns `message` without the parts of a request's signature. DynamoDB's messages about a signature that it can't
/// read quote the request's header.
fn without_credentials<'a>(code: &str, message: &'a str) -> &'a str {
    let quotes = code.contains("Signature") || code.contains("AuthenticationToken");
    match message.find("Authorization").filter(|_| quotes) {
        Some(at) => message[..at].trim_end(),
        None => message,
    }
}

/// Returns the first line of the last error in the chain, without ` Attempted:` at the line's end. This word begins the
/// list of attempted credential sources, which is in the next lines.
fn cause(error: &(dyn StdError + 'static)) -> String {
    sentence(&innermost(error)).trim_end_matches(" Attempted:").to_owned()
}

/// Whether the error, or one that it wraps, mentions credentials. Only the text can show this, because the type of a
/// credentials error isn't public.
fn is_about_credentials(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .any(|error| error.to_string().to_ascii_lowercase().contains("credential"))
}

/// Returns the part of `message` that contains no value of the handler's writes. DynamoDB's validation errors quote
/// invalid values, so this function keeps only a text in [`WITHOUT_VALUES`] of such a message.
pub(super) fn without_values<'a>(code: &str, message: &'a str) -> &'a str {
    match code {
        "ValidationException" | "ValidationError" => WITHOUT_VALUES
            .into_iter()
            .find(|known| message.contains(*known))
            .unwrap_or("DynamoDB's message isn't shown, because it may quote a value; check the write"),
        _ => sentence(message),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::{error::ConnectorError, operation::put_item::PutItemError};

    use super::*;

    fn class_of(error: SdkError<PutItemError>) -> Class {
        reduced(&error).0
    }

    #[test]
    fn failures_without_an_answer_are_classified() {
        assert!(matches!(class_of(SdkError::construction_failure("no token")), Class::NotBuilt));
        assert!(matches!(class_of(SdkError::timeout_error("slow")), Class::TimedOut));
        let timeout = ConnectorError::timeout("connect".into());
        assert!(matches!(class_of(SdkError::dispatch_failure(timeout)), Class::TimedOut));
        let io = ConnectorError::io("cut".into());
        assert!(matches!(class_of(SdkError::dispatch_failure(io)), Class::NotReached));
    }

    #[test]
    fn credential_errors_are_found_in_causes() {
        let about = |text: &str| is_about_credentials(&std::io::Error::other(text.to_owned()));
        assert!(about("no Credentials in the environment"));
        assert!(!about("connection refused"));
        assert!(is_about_credentials(&std::io::Error::other(std::io::Error::other(
            "the credentials expired"
        ))));
    }

    #[test]
    fn callers_see_neither_arns_nor_signatures() {
        let denied =
            "User: arn:aws:sts::1:assumed-role/pay is not authorized on 'arn:aws:dynamodb:eu:1:table/t'";
        assert_eq!(without_arns(denied), "User: … is not authorized on '…");
        assert_eq!(without_arns("arn:a b"), "… b");
        assert_eq!(without_arns(""), "");
        let header =
            "Authorization header requires 'Signature'. Authorization=AWS4-HMAC-SHA256 Credential=AKIA";
        assert_eq!(without_credentials("IncompleteSignatureException", header), "");
        assert_eq!(without_credentials("AccessDeniedException", header), header);
    }

    #[test]
    fn every_code_maps_to_its_kind() {
        use StoreErrorKind::{Conflict, Rejected, Unavailable, Unstorable};
        for code in THROTTLES {
            assert_eq!(Class::of_code(code, "", false).kind(), Unavailable, "{code}");
        }
        for (code, server_error, kind) in [
            ("InternalServerError", true, Unavailable),
            ("InternalFailure", true, Unavailable),
            ("ServiceUnavailable", true, Unavailable),
            ("TransactionConflictException", false, Conflict),
            ("ReplicatedWriteConflictException", false, Conflict),
            ("ItemCollectionSizeLimitExceededException", false, Unstorable),
            ("ResourceNotFoundException", false, Rejected),
            ("ResourceInUseException", false, Rejected),
            ("TableNotFoundException", false, Rejected),
            ("AccessDeniedException", false, Rejected),
            ("AccessDenied", false, Rejected),
            ("UnrecognizedClientException", false, Rejected),
            ("InvalidClientTokenId", false, Rejected),
            ("ExpiredTokenException", false, Unavailable),
            ("ExpiredToken", false, Unavailable),
            ("RequestExpired", false, Rejected),
            ("RequestTimeTooSkewed", false, Rejected),
            ("InvalidSignatureException", false, Rejected),
            ("SignatureDoesNotMatch", false, Rejected),
            ("IncompleteSignatureException", false, Rejected),
            ("MissingAuthenticationTokenException", false, Rejected),
            ("OptInRequired", false, Rejected),
            ("SubscriptionRequiredException", false, Rejected),
            ("InaccessibleEncryptionCredentialsException", false, Rejected),
            ("KMSAccessDeniedException", false, Rejected),
            ("KMSDisabledException", false, Rejected),
            ("KMSInvalidStateException", false, Rejected),
            ("KMSNotFoundException", false, Rejected),
            ("KMSOptInRequired", false, Rejected),
            ("SerializationException", false, Rejected),
            ("UnknownOperationException", false, Rejected),
            ("NewInSomeYearsException", false, Rejected),
        ] {
            assert_eq!(Class::of_code(code, "no", server_error).kind(), kind, "{code}");
        }
    }

    #[test]
    fn only_item_size_errors_are_unstorable() {
        use StoreErrorKind::{Rejected, Unstorable};
        for (message, kind) in [
            ("Item size has exceeded the maximum allowed size", Unstorable),
            ("Item size to update has exceeded the maximum allowed size", Unstorable),
            ("1 validation error detected: Item size has exceeded the maximum allowed size", Unstorable),
            ("The provided key element does not match the schema", Rejected),
            ("Invalid UpdateExpression: Expression size has exceeded the maximum allowed size;", Rejected),
            (
                "One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit \
                 of2048 bytes",
                Rejected,
            ),
            ("", Rejected),
        ] {
            assert_eq!(Class::of_code("ValidationException", message, false).kind(), kind, "{message}");
        }
        // Under another error code, the message doesn't count.
        let message = "Item size has exceeded the maximum allowed size";
        assert_eq!(Class::of_code("AccessDeniedException", message, false).kind(), Rejected);
    }
}
