//! The ways in which the wire causes faults.

use std::fmt::{self, Display};

use lambda_idempotency_testing::Fault;

/// How the wire breaks one request. [`amounts_to`](Self::amounts_to) returns the fault that this causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HttpWay {
    /// The connection is cut; the server never sees the request.
    CutBefore,
    /// The server applies the request, and the connection is cut before the answer.
    CutAfter,
    /// `500 InternalServerError`; the server never sees the request.
    ErrorBefore,
    /// The server applies the request, and the client gets `500 InternalServerError`.
    ErrorAfter,
    /// No answer. The server never sees the request.
    HangBefore,
    /// No answer, though the server applies the request.
    HangAfter,
    /// `400 ProvisionedThroughputExceededException` or `ThrottlingException`. The server doesn't apply the request.
    Throttle,
    /// `400 TransactionConflictException`. The server doesn't apply the request.
    Conflict,
    /// The true answer, byte by byte, within the attempt's timeout.
    FastDrip,
    /// The true answer, byte by byte, over a longer time than the attempt's timeout.
    SlowDrip,
    /// The server applies the request. The answer isn't HTTP.
    NotHttp,
    /// The server applies the request. The answer is `200` with a page of HTML.
    NotJson,
    /// The server applies the request. The answer is a complete HTTP message, but its JSON ends in the middle.
    HalfJson,
    /// The server applies the request. Half of the announced body arrives, then nothing.
    Stalled,
    /// The server applies the request. Half of the announced body arrives, then the connection closes.
    Truncated,
    /// The server applies the request. The answer is `200` with JSON of another shape.
    WrongShape,
    /// The answer to a failed condition lacks the old item.
    NoOldItem,
    /// The proxy gives no answer, and forwards the request only after the client has given up.
    Late(When),
}

/// When a held request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    /// Shortly after the client has given up, while the library still handles the timeout.
    Soon,
    /// After the delivery was answered.
    AfterAnswer,
    /// After the next delivery was answered.
    AfterRedelivery,
}

impl HttpWay {
    /// Returns the fault that this way causes.
    #[must_use]
    pub const fn amounts_to(self) -> Fault {
        match self {
            Self::CutBefore => Fault::LoseRequest,
            Self::CutAfter
            | Self::SlowDrip
            | Self::NotHttp
            | Self::NotJson
            | Self::HalfJson
            | Self::Stalled
            | Self::Truncated
            | Self::WrongShape => Fault::LoseAnswer,
            Self::ErrorBefore | Self::ErrorAfter => Fault::InternalError,
            Self::HangBefore => Fault::Silence,
            Self::HangAfter => Fault::SilenceAfter,
            Self::Throttle => Fault::Throttle,
            Self::Conflict => Fault::Conflict,
            Self::FastDrip => Fault::Slow,
            Self::NoOldItem => Fault::HideRecord,
            Self::Late(_) => Fault::Late,
        }
    }

    /// Every way.
    pub const ALL: [Self; 20] = [
        Self::CutBefore,
        Self::CutAfter,
        Self::ErrorBefore,
        Self::ErrorAfter,
        Self::HangBefore,
        Self::HangAfter,
        Self::Throttle,
        Self::Conflict,
        Self::FastDrip,
        Self::SlowDrip,
        Self::NotHttp,
        Self::NotJson,
        Self::HalfJson,
        Self::Stalled,
        Self::Truncated,
        Self::WrongShape,
        Self::NoOldItem,
        Self::Late(When::Soon),
        Self::Late(When::AfterAnswer),
        Self::Late(When::AfterRedelivery),
    ];
}

impl Display for HttpWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CutBefore => "cut before",
            Self::CutAfter => "cut after",
            Self::ErrorBefore => "500 before",
            Self::ErrorAfter => "500 after",
            Self::HangBefore => "hang before",
            Self::HangAfter => "hang after",
            Self::Throttle => "throttle",
            Self::Conflict => "conflict",
            Self::FastDrip => "fast drip",
            Self::SlowDrip => "slow drip",
            Self::NotHttp => "not HTTP",
            Self::NotJson => "not JSON",
            Self::HalfJson => "half JSON",
            Self::Stalled => "stalled body",
            Self::Truncated => "cut body",
            Self::WrongShape => "wrong shape",
            Self::NoOldItem => "no old item",
            Self::Late(When::Soon) => "late, soon",
            Self::Late(When::AfterAnswer) => "late, answered",
            Self::Late(When::AfterRedelivery) => "late, redelivered",
        })
    }
}
