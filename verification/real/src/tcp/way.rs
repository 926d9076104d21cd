//! The ways in which a TCP connection breaks, and the fault that each causes.

use std::{fmt, time::Duration};

use lambda_idempotency_testing::Fault;

/// How the wire breaks. [`amounts_to`](Self::amounts_to) returns the fault that each way causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TcpWay {
    /// Connections are cut, and new ones are refused.
    Refuse,
    /// Connections are cut. New ones are accepted and closed.
    AcceptAndClose,
    /// The server is silent on all connections. New ones are accepted.
    AcceptAndWait,
    /// The server is silent, and new connections can't be established, because packets get lost.
    BlackHole,
    /// Connections are cut, and new ones can't be established, because packets get lost.
    CutAndBlackHole,
    /// The connection is closed; the server never sees the request.
    CloseBefore,
    /// The server applies the request. The connection is closed before the answer.
    CloseAfter,
    /// As `CloseBefore`, but the connection is reset.
    ResetBefore,
    /// As `CloseAfter`, but the connection is reset.
    ResetAfter,
    /// No answer. The server never sees the request.
    SilenceBefore,
    /// No answer, though the server applies the request.
    SilenceAfter,
    /// The answer takes 1 s.
    Slow,
    /// The answer takes 2 s.
    Slower,
    /// The server applies the request. Half of the answer arrives, then nothing.
    HalfAndSilence,
    /// The server applies the request. Half of the answer arrives, then the connection closes.
    HalfAndClose,
    /// The server applies the request. The answer isn't valid in its protocol.
    Garbage,
    /// Half of the request reaches the server, then the connection closes.
    HalfRequest,
    /// Every request and every answer is delayed by 100 ms.
    Latency,
    /// The proxy holds the request, and forwards it when the sender has given up, or after 1.2 s.
    LateSoon,
    /// The proxy holds the request, and forwards it when the invocation is over.
    LateAnswered,
}

impl TcpWay {
    /// Returns the fault that this way causes.
    pub(crate) const fn amounts_to(self) -> Fault {
        match self {
            Self::Refuse
            | Self::AcceptAndClose
            | Self::AcceptAndWait
            | Self::BlackHole
            | Self::CutAndBlackHole => Fault::Outage,
            Self::CloseBefore | Self::ResetBefore | Self::HalfRequest => Fault::LoseRequest,
            Self::CloseAfter
            | Self::ResetAfter
            | Self::HalfAndSilence
            | Self::HalfAndClose
            | Self::Garbage => Fault::LoseAnswer,
            Self::SilenceBefore => Fault::Silence,
            Self::SilenceAfter => Fault::SilenceAfter,
            Self::Slow | Self::Slower | Self::Latency => Fault::Slow,
            Self::LateSoon | Self::LateAnswered => Fault::Late,
        }
    }

    /// Every way.
    pub(crate) const ALL: [Self; 20] = [
        Self::Refuse,
        Self::AcceptAndClose,
        Self::AcceptAndWait,
        Self::BlackHole,
        Self::CutAndBlackHole,
        Self::CloseBefore,
        Self::CloseAfter,
        Self::ResetBefore,
        Self::ResetAfter,
        Self::SilenceBefore,
        Self::SilenceAfter,
        Self::Slow,
        Self::Slower,
        Self::HalfAndSilence,
        Self::HalfAndClose,
        Self::Garbage,
        Self::HalfRequest,
        Self::Latency,
        Self::LateSoon,
        Self::LateAnswered,
    ];

    pub(super) const fn scope(self) -> Scope {
        match self {
            Self::Refuse => Scope::Refuse,
            Self::AcceptAndClose => Scope::AcceptAndClose,
            Self::AcceptAndWait => Scope::AcceptAndWait,
            Self::BlackHole => Scope::HangUnconnected { cuts: false },
            Self::CutAndBlackHole => Scope::HangUnconnected { cuts: true },
            _ => Scope::Requests,
        }
    }

    /// Returns how long `Slow` or `Slower` delays the answer. Returns `None` for the other ways.
    pub(super) const fn slowness(self) -> Option<Duration> {
        match self {
            Self::Slow => Some(Duration::from_secs(1)),
            Self::Slower => Some(Duration::from_secs(2)),
            _ => None,
        }
    }
}

impl fmt::Display for TcpWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Refuse => "refused",
            Self::AcceptAndClose => "accepted, then closed",
            Self::AcceptAndWait => "accepted, then silence",
            Self::BlackHole => "black hole",
            Self::CutAndBlackHole => "cut, then black hole",
            Self::CloseBefore => "closed before",
            Self::CloseAfter => "closed after",
            Self::ResetBefore => "reset before",
            Self::ResetAfter => "reset after",
            Self::SilenceBefore => "silence before",
            Self::SilenceAfter => "silence after",
            Self::Slow => "answer after 1 s",
            Self::Slower => "answer after 2 s",
            Self::HalfAndSilence => "half, then silence",
            Self::HalfAndClose => "half, then closed",
            Self::Garbage => "garbage",
            Self::HalfRequest => "half a request",
            Self::Latency => "latency",
            Self::LateSoon => "late, soon",
            Self::LateAnswered => "late, answered",
        })
    }
}

/// The part of the traffic that a way breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Requests. Connections are established as usual.
    Requests,
    /// Connections are cut and refused.
    Refuse,
    /// Connections are cut. New ones are accepted and closed.
    AcceptAndClose,
    /// Connections stay, and new ones are accepted, but no bytes pass.
    AcceptAndWait,
    /// New connections aren't established. Existing ones are cut, or no bytes pass on them.
    HangUnconnected { cuts: bool },
}

impl Scope {
    pub(super) const fn cuts(self) -> bool {
        matches!(self, Self::Refuse | Self::AcceptAndClose | Self::HangUnconnected { cuts: true })
    }

    /// Whether new connections can be established.
    pub(super) const fn listens(self) -> bool {
        !matches!(self, Self::Refuse | Self::HangUnconnected { .. })
    }

    /// Whether the proxy drops all bytes, even those of a connection's handshake.
    pub(super) const fn swallows(self) -> bool {
        matches!(self, Self::AcceptAndWait | Self::HangUnconnected { .. })
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Postgres,
    Redis,
    /// The proxy breaks only whole connections.
    Http,
}

impl Protocol {
    /// Whether these bytes from a client are a request. Messages that open or close a connection aren't requests, nor
    /// is `PING`, which checks a Redis connection. The check of a PostgreSQL connection is a query, so it counts as a
    /// request.
    pub(super) fn is_request(self, bytes: &[u8]) -> bool {
        match self {
            Self::Http => false,
            // A message begins with its type. A connection's first message has no type: it begins with its length,
            // whose first byte is zero.
            Self::Postgres => bytes.first().is_some_and(|kind| b"QPBEDSCFH".contains(kind)),
            Self::Redis => {
                let command = bytes.split(|byte| *byte == b'\n').nth(2).unwrap_or_default().trim_ascii();
                let introduces = [&b"PING"[..], b"AUTH", b"HELLO", b"SELECT", b"CLIENT"];
                !introduces.iter().any(|word| command.eq_ignore_ascii_case(word))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_outages_affect_new_connections() {
        for way in TcpWay::ALL {
            assert_eq!(way.amounts_to() == Fault::Outage, way.scope() != Scope::Requests, "{way}");
        }
    }

    #[test]
    fn requests_are_distinguished_from_handshakes() {
        let startup = b"\x00\x00\x00\x08\x04\xd2\x16\x2f";
        for (protocol, bytes, is_request) in [
            (Protocol::Postgres, &startup[..], false),
            (Protocol::Postgres, b"p\x00\x00\x00\x05x", false),
            (Protocol::Postgres, b"X\x00\x00\x00\x04", false),
            (Protocol::Postgres, b"P\x00\x00\x00\x04", true),
            (Protocol::Postgres, b"Q\x00\x00\x00\x04", true),
            (Protocol::Redis, b"*1\r\n$4\r\nPING\r\n", false),
            (Protocol::Redis, b"*2\r\n$4\r\nauth\r\n$1\r\nx\r\n", false),
            (Protocol::Redis, b"*2\r\n$7\r\nHGETALL\r\n$1\r\nx\r\n", true),
            (Protocol::Redis, b"*3\r\n$7\r\nEVALSHA\r\n", true),
        ] {
            assert_eq!(protocol.is_request(bytes), is_request, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
