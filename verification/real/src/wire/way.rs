//! The ways to break HTTP, and those that correspond to them over plain TCP.

use std::fmt::Display;

use lambda_idempotency_rehearsal::wire::{HttpWay, When};

use crate::tcp::TcpWay;

/// The kind of connection between a store and its server. It decides how the proxy can break requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// HTTP, whose requests the proxy parses: DynamoDB.
    Http,
    /// Bytes over TCP, in which the proxy knows only where a request begins: PostgreSQL and Redis.
    Tcp,
}

/// The ways of HTTP, over TCP.
pub(super) trait OverTcp: Copy {
    /// Returns the corresponding way over TCP. There's none for answers that only HTTP or DynamoDB gives, for
    /// [`FastDrip`](HttpWay::FastDrip), and for requests that are held until after the next delivery.
    fn over_tcp(self) -> Option<TcpWay>;

    /// Whether this way is possible over this medium.
    fn happens_over(self, medium: Medium) -> bool {
        matches!(medium, Medium::Http) || self.over_tcp().is_some()
    }

    /// Returns this way's name in reports on runs over `medium`.
    fn name_over(self, medium: Medium) -> String
    where
        Self: Display,
    {
        match (medium, self.over_tcp()) {
            (Medium::Tcp, Some(fault)) => fault.to_string(),
            _ => self.to_string(),
        }
    }
}

impl OverTcp for HttpWay {
    fn over_tcp(self) -> Option<TcpWay> {
        match self {
            Self::CutBefore => Some(TcpWay::CloseBefore),
            Self::CutAfter => Some(TcpWay::CloseAfter),
            Self::ErrorBefore => Some(TcpWay::ResetBefore),
            Self::ErrorAfter => Some(TcpWay::ResetAfter),
            Self::HangBefore => Some(TcpWay::SilenceBefore),
            Self::HangAfter => Some(TcpWay::SilenceAfter),
            Self::SlowDrip => Some(TcpWay::Slower),
            Self::NotHttp => Some(TcpWay::Garbage),
            Self::Stalled => Some(TcpWay::HalfAndSilence),
            Self::Truncated => Some(TcpWay::HalfAndClose),
            Self::Late(When::Soon) => Some(TcpWay::LateSoon),
            Self::Late(When::AfterAnswer) => Some(TcpWay::LateAnswered),
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
}

#[cfg(test)]
mod tests {
    use lambda_idempotency_testing::Fault;

    use super::*;

    #[test]
    fn corresponding_tcp_ways_cause_the_same_faults() {
        for way in HttpWay::ALL {
            let Some(over_tcp) = way.over_tcp() else { continue };
            match way {
                // Only HTTP has a 500. Over TCP, the connection is reset instead.
                HttpWay::ErrorBefore => assert_eq!(over_tcp.amounts_to(), Fault::LoseRequest),
                HttpWay::ErrorAfter => assert_eq!(over_tcp.amounts_to(), Fault::LoseAnswer),
                // Over TCP, every delay counts as `Slow`, even one beyond the client's timeouts.
                HttpWay::SlowDrip => assert_eq!(over_tcp.amounts_to(), Fault::Slow),
                _ => assert_eq!(over_tcp.amounts_to(), way.amounts_to(), "{way}"),
            }
        }
    }
}
