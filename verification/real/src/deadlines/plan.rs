//! The plan of one invocation: which fault, where, and for how long.

use std::{fmt, time::Duration};

use lambda_idempotency_testing::Fault;
use testkit::random::Random;

use lambda_idempotency_rehearsal::wire::HttpWay;

use crate::{site::Kind, tcp::TcpWay};

/// How the wire breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    DynamoDb(HttpWay),
    Postgres(TcpWay),
    Redis(TcpWay),
}

impl Way {
    /// Returns the fault that this way causes.
    pub(super) const fn amounts_to(self) -> Fault {
        match self {
            Self::DynamoDb(way) => way.amounts_to(),
            Self::Postgres(way) | Self::Redis(way) => way.amounts_to(),
        }
    }

    /// Returns the 20 ways for this kind of store.
    pub(super) fn all(kind: Kind) -> Vec<Self> {
        match kind {
            Kind::DynamoDb => HttpWay::ALL.map(Self::DynamoDb).into(),
            Kind::Postgres => TcpWay::ALL.map(Self::Postgres).into(),
            Kind::Redis => TcpWay::ALL.map(Self::Redis).into(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DynamoDb(fault) => fault.fmt(f),
            Self::Postgres(fault) | Self::Redis(fault) => fault.fmt(f),
        }
    }
}

/// When the wire breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// Before anything is claimed.
    Claim,
    /// When the handler returns.
    Settlement,
}

/// How long the wire stays broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    /// For the rest of the invocation.
    All,
    /// For this many requests to DynamoDB, or for this time on another store.
    Some { requests: usize, time: Duration },
}

/// One invocation's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) way: Way,
    pub(super) position: Position,
    pub(super) lasting: Lasting,
    /// Whether the sandbox has connections that were used before.
    pub(super) is_warm: bool,
}

impl Plan {
    /// Draws the nth invocation's plan. For an even `nth` the wire breaks before the claim, otherwise usually at the
    /// settlement.
    pub(super) fn random(way: Way, nth: u32, random: &mut Random) -> Self {
        let (requests, time) = (random.between(1, 3), random.between(200, 1_500));
        let lasting = match random.percent(50) {
            true => Lasting::All,
            false => Lasting::Some {
                requests: usize::try_from(requests).unwrap_or(1),
                time: Duration::from_millis(time),
            },
        };
        // `HideRecord` removes the old item from the answer to a rejected write. Without a rival, the store never
        // rejects a settlement, so this fault always goes to the claim.
        let is_claim = nth.is_multiple_of(2) || way.amounts_to() == Fault::HideRecord;
        let position = if is_claim { Position::Claim } else { Position::Settlement };
        // If the sandbox had to connect first, a slow claim could leave no time for a settlement.
        let is_warm = random.percent(50) || position == Position::Settlement;
        Self { way, position, lasting, is_warm }
    }

    /// Whether the wire recovers while the invocation has time for another try.
    pub(super) fn heals_in_time(&self) -> bool {
        self.lasting != Lasting::All
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { way, position, lasting, is_warm } = self;
        let warmth = if *is_warm { "warm" } else { "cold" };
        write!(f, "{way}, {warmth}, from the {position:?} on, for {lasting:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_breaks_in_twenty_ways() {
        for kind in Kind::ALL {
            assert_eq!(Way::all(kind).len(), 20, "{}", kind.name());
        }
    }

    #[test]
    fn seed_determines_the_plan() {
        let plans = |seed| {
            let mut random = Random::new(seed);
            let way = Way::Redis(TcpWay::Refuse);
            (0..20).map(|nth| Plan::random(way, nth, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(plans(17), plans(17));
        assert_ne!(plans(17), plans(18));
        let claims = plans(17).iter().filter(|plan| plan.position == Position::Claim).count();
        assert_eq!(claims, 10);
    }
}
