//! The faults that can happen on the wire.

use std::fmt::{self, Display};

use crate::tcp::TcpFault;

/// The fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The connection is cut; the server never sees the request.
    CutBefore,
    /// The server applies the request, and the connection is cut instead of an answer.
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
    /// The true answer, byte by byte, over more than the attempt's timeout.
    SlowDrip,
    /// The server applies the request. The answer isn't HTTP.
    NotHttp,
    /// The server applies the request. The answer is `200` with a page of HTML.
    NotJson,
    /// The server applies the request. The answer's JSON and its message end in the middle.
    HalfJson,
    /// The server applies the request. Half of the announced body arrives, then nothing.
    Stalled,
    /// The server applies the request. Half of the announced body arrives, then the connection closes.
    Truncated,
    /// The server applies the request. The answer is `200` with JSON of another shape.
    WrongShape,
    /// A failed condition's answer lacks the item that it met.
    NoOldItem,
    /// The proxy holds the request until its sender gives up, and only then forwards it.
    Late(When),
}

/// When a held request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    /// Shortly after its sender gave up, while the library handles that.
    Soon,
    /// After the delivery was answered.
    AfterAnswer,
    /// After the next delivery was answered.
    AfterRedelivery,
}

impl Fault {
    /// Every fault.
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

/// The protocol between a store and its server, as far as faults go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// HTTP, whose requests the proxy parses: DynamoDB.
    Http,
    /// Bytes over TCP, in which the proxy knows only where a request begins: PostgreSQL and Redis.
    Tcp,
}

impl Fault {
    /// The same fault over TCP. `None` if it needs an answer that only HTTP or DynamoDB gives, or a proxy
    /// that outlives the next delivery.
    pub(super) const fn over_tcp(self) -> Option<TcpFault> {
        match self {
            Self::CutBefore => Some(TcpFault::CloseBefore),
            Self::CutAfter => Some(TcpFault::CloseAfter),
            Self::ErrorBefore => Some(TcpFault::ResetBefore),
            Self::ErrorAfter => Some(TcpFault::ResetAfter),
            Self::HangBefore => Some(TcpFault::SilenceBefore),
            Self::HangAfter => Some(TcpFault::SilenceAfter),
            Self::SlowDrip => Some(TcpFault::Slower),
            Self::NotHttp => Some(TcpFault::Garbage),
            Self::Stalled => Some(TcpFault::HalfAndSilence),
            Self::Truncated => Some(TcpFault::HalfAndClose),
            Self::Late(When::Soon) => Some(TcpFault::LateSoon),
            Self::Late(When::AfterAnswer) => Some(TcpFault::LateAnswered),
            Self::Throttle
            | Self::Conflict
            | Self::FastDrip
            | Self::NotJson
            | Self::HalfJson
            | Self::WrongShape
            | Self::NoOldItem
            | Self::Late(When::AfterRedelivery) => None,
        }
    }

    /// Whether it can happen over this medium.
    pub(super) const fn happens_over(self, medium: Medium) -> bool {
        matches!(medium, Medium::Http) || self.over_tcp().is_some()
    }

    /// Its name in reports.
    pub(super) fn name_over(self, medium: Medium) -> String {
        match (medium, self.over_tcp()) {
            (Medium::Tcp, Some(fault)) => fault.to_string(),
            _ => self.to_string(),
        }
    }
}

impl Display for Fault {
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
