//! The outages of each server, and how long they last.

use std::{fmt, net::SocketAddr, time::Duration};

use lambda_idempotency_rehearsal::{
    clock,
    problem::{Problem, Result},
};
use testkit::random::Random;

use super::gate::{Gate, Mode};
use crate::site::{Host, Kind, Site};

/// A server and the kind of its outages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// PostgreSQL stops or crashes, and starts again, up to three times in a round.
    PostgresRestarted,
    /// Redis stops or crashes, and starts again, up to three times in a round.
    RedisRestarted,
    /// DynamoDB throttles every UpdateItem for 3 s.
    DynamoDbThrottled,
    /// DynamoDB can't be reached for 10 s.
    DynamoDbRefusing,
}

impl Trouble {
    /// Every kind.
    pub const ALL: [Self; 4] =
        [Self::PostgresRestarted, Self::RedisRestarted, Self::DynamoDbThrottled, Self::DynamoDbRefusing];

    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::PostgresRestarted => Kind::Postgres,
            Self::RedisRestarted => Kind::Redis,
            Self::DynamoDbThrottled | Self::DynamoDbRefusing => Kind::DynamoDb,
        }
    }

    /// Draws the outages of one round.
    pub(super) fn round(self, random: &mut Random) -> Vec<Outage> {
        let fixed = |secs| vec![Outage { lasts: Duration::from_secs(secs), ..Outage::default() }];
        match self {
            Self::DynamoDbThrottled => fixed(3),
            Self::DynamoDbRefusing => fixed(10),
            Self::PostgresRestarted | Self::RedisRestarted => (0..random.between(1, 3))
                .map(|_| Outage {
                    crashes: random.percent(50),
                    lasts: Duration::from_millis(random.between(300, 3_000)),
                    then: Duration::from_millis(random.between(100, 800)),
                })
                .collect(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PostgresRestarted => "PostgreSQL, restarted",
            Self::RedisRestarted => "Redis, restarted",
            Self::DynamoDbThrottled => "DynamoDB, throttled for 3 s",
            Self::DynamoDbRefusing => "DynamoDB, refusing for 10 s",
        })
    }
}

/// One outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outage {
    /// Whether the server crashes. Otherwise it's stopped normally.
    crashes: bool,
    /// How long the server is down, without the time that it takes to start.
    lasts: Duration,
    /// How long the server is up before the next outage.
    then: Duration,
}

/// Returns the time from the beginning of the first outage to the end of the last one.
pub(super) fn length(outages: &[Outage]) -> Duration {
    let gaps: Duration = outages.iter().rev().skip(1).map(|outage| outage.then).sum();
    gaps + outages.iter().map(|outage| outage.lasts).sum::<Duration>()
}

/// A server that can be taken down.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) site: Site,
    trouble: Trouble,
    gate: Option<Gate>,
}

impl Victim {
    pub(super) async fn start(trouble: Trouble) -> Result<Self> {
        let site = Site::start(trouble.kind()).await?;
        let gate = match trouble {
            Trouble::DynamoDbThrottled | Trouble::DynamoDbRefusing => {
                Some(Gate::before(site.address()?).await?)
            }
            Trouble::PostgresRestarted | Trouble::RedisRestarted => None,
        };
        Ok(Self { site, trouble, gate })
    }

    /// The address to which the stores under test connect.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.gate.as_ref().map_or_else(|| self.site.address(), |gate| Ok(gate.address()))
    }

    /// Takes the server down for each of these outages in turn, and brings it back after each.
    pub(super) async fn suffer(&mut self, outages: &[Outage]) -> Result<()> {
        for (nth, outage) in outages.iter().enumerate() {
            self.begin(*outage)?;
            clock::pause(outage.lasts).await;
            self.end()?;
            if nth + 1 < outages.len() {
                clock::pause(outage.then).await;
            }
        }
        Ok(())
    }

    fn begin(&mut self, outage: Outage) -> Result<()> {
        match (self.trouble, &mut self.site.host, &self.gate) {
            (Trouble::DynamoDbThrottled, _, Some(gate)) => gate.set(Mode::Throttling),
            (Trouble::DynamoDbRefusing, _, Some(gate)) => gate.set(Mode::Refusing),
            (_, Host::Postgres(server), _) if outage.crashes => server.crash(),
            (_, Host::Postgres(server), _) => server.stop(),
            (_, Host::Redis(server), _) if outage.crashes => server.crash(),
            (_, Host::Redis(server), _) => server.stop(),
            _ => return Err(Problem::new("this outage doesn't apply to this server")),
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match (&mut self.site.host, &self.gate) {
            (_, Some(gate)) => gate.set(Mode::Open),
            (Host::Postgres(server), None) => server.start_again(),
            (Host::Redis(server), None) => server.start_again(),
            (Host::DynamoDb(_), None) => return Err(Problem::new("there's no gate in front of DynamoDB")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_round() {
        for trouble in Trouble::ALL {
            let rounds = |seed| {
                let mut random = Random::new(seed);
                (0..10).map(|_| trouble.round(&mut random)).collect::<Vec<_>>()
            };
            assert_eq!(rounds(17), rounds(17));
            assert!(rounds(17).iter().all(|round| length(round) <= Duration::from_secs(11)));
        }
    }

    #[test]
    fn a_round_ends_with_its_last_outage() {
        let outage = |lasts, then| Outage {
            crashes: false,
            lasts: Duration::from_secs(lasts),
            then: Duration::from_secs(then),
        };
        assert_eq!(length(&[outage(3, 100)]), Duration::from_secs(3));
        assert_eq!(length(&[outage(3, 1), outage(2, 100)]), Duration::from_secs(6));
    }
}
