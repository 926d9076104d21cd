//! Campaigns: outages of one kind, none longer than the time that its delivery has left, and nothing else that goes wrong.
//!
//! An executor cannot reach its store from when its handler returns, or a little later, for a share of the time that its
//! delivery has left to record its outcome: at least 30 % of these outages take 50 to 95 % of it. Others begin with the
//! delivery, and meet the claim. Every operation must be answered with its handler's result, in time, the store must have it
//! completed by then, and no effect may be repeated.

use std::fmt::Write as _;

use super::{Figures, Report, campaign, config::Config};
use crate::random::Random;

/// How a store fails during an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Requests get lost; the client gives up after a second.
    LostRequests,
    /// Writes are made, and all answers get lost; the client gives up after a second.
    LostAnswers,
    /// Requests are throttled: definitely not made.
    Throttles,
    /// Writes conflict with others: definitely not made.
    Conflicts,
    /// Answers are internal errors; half of the writes were made.
    Errors500,
    /// Requests are refused, as with expired credentials.
    Refusals,
    /// Requests are not answered at all, and no client gives up; half of the writes were made.
    Silence,
}

impl Outage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::LostRequests,
        Self::LostAnswers,
        Self::Throttles,
        Self::Conflicts,
        Self::Errors500,
        Self::Refusals,
        Self::Silence,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostRequests => "lost-requests",
            Self::LostAnswers => "lost-answers",
            Self::Throttles => "throttles",
            Self::Conflicts => "conflicts",
            Self::Errors500 => "errors-500",
            Self::Refusals => "refusals",
            Self::Silence => "silence",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outage| outage.name() == name)
    }

    /// How many ms of the time left an outage leaves at least. After a definite error that is a pause, which takes half of
    /// what is left, and a request. After an internal error, a pause, a read, a pause and a request. A request
    /// that is not answered is given up after half of what is left, but not before 250 ms: then comes all of that.
    pub const fn leaves(self) -> u64 {
        match self {
            Self::Throttles | Self::Conflicts | Self::Refusals => 60,
            Self::Errors500 => 150,
            Self::LostRequests | Self::LostAnswers | Self::Silence => 400,
        }
    }

    /// When an outage begins, and how long it lasts, in ms, for a delivery that has `left` to record its outcome. `None`
    /// if it leaves too little time for one.
    pub(super) fn draw(self, left: u64, random: &mut Random) -> Option<(u64, u64)> {
        let share = if random.percent(60) { random.between(500, 950) } else { random.between(10, 500) };
        let delay = if random.percent(70) { 0 } else { random.below(20) };
        let longest = left.checked_sub(self.leaves() + delay)?;
        let length = (left * share / 1000).min(longest);
        (length > 0 && random.percent(85)).then_some((delay, length))
    }
}

/// Plays `count` schedules with outages of this kind, in two halves at once, a core each.
///
/// # Errors
///
/// The report of a schedule that violates something, shrunk; `None` if the simulation itself panicked.
pub fn play(outage: Outage, first: u64, count: u64) -> Result<Figures, Option<Box<Report>>> {
    let half = count / 2;
    let played = |first, count| campaign(first, count, |config| Config::of_campaign(config.seed, outage));
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| played(first + half, count - half));
        (played(first, half), other.join())
    });
    let mut figures = one.map_err(Some)?;
    figures.add(&other.map_err(|_| None)?.map_err(Some)?);
    Ok(figures)
}

/// What a campaign came to, in a paragraph.
pub fn told(outage: Outage, figures: &Figures) -> String {
    let Figures { schedules, operations, completed, calls, effects, committed, repeated, expired, .. } =
        figures;
    let all: u64 = figures.outages.iter().sum();
    let long: u64 = figures.outages[5..].iter().sum();
    let mut text = format!(
        "{}: {schedules} schedules, {operations} operations, {completed} answered and completed, {calls} store calls, \
         {effects} effects at once and {committed} in transactions, {repeated} repeated ({expired} more after their \
         retention); {all} outages, {} % of them half of the time left and longer (each leaves {} ms):",
        outage.name(),
        (100 * long).checked_div(all).unwrap_or_default(),
        outage.leaves()
    );
    for (tenth, count) in figures.outages.iter().enumerate() {
        let _ = write!(text, " {}-{} %: {count}", tenth * 10, tenth * 10 + 10);
    }
    text
}
