//! Campaigns: outages of one kind, each shorter than its delivery's remaining time, and no other faults.
//!
//! Some outages begin when a handler returns, or a little later. Its executor then can't reach the store for a
//! share of the time that the delivery has left to record its outcome. At least 30 % of these outages take 50 to
//! 95 % of that time. Other outages begin with the delivery and affect the claim. Each result of a handler must
//! reach the caller in time. By then, the operation must be completed in the store. No effect may be repeated.

use std::fmt::Write as _;

use super::{Figures, Report, campaign, config::Config};
use crate::random::Random;

/// How a store fails during an outage.
pub use lambda_idempotency_testing::Fault as Outage;

/// All kinds of outages. If a request or an answer is lost, the client gives up after a second. In a silent outage,
/// the client never gives up. In outages with silence or internal errors, half of the writes are applied.
pub const ALL: [Outage; 7] = [
    Outage::LoseRequest,
    Outage::LoseAnswer,
    Outage::Throttle,
    Outage::Conflict,
    Outage::InternalError,
    Outage::Refuse,
    Outage::Silence,
];

/// The outage with this name.
pub fn named(name: &str) -> Option<Outage> {
    Outage::named(name).filter(|outage| ALL.contains(outage))
}

/// The least time that an outage leaves for the library, in ms:
///
/// - After a definite error, the library needs a pause, which takes up to half of the remaining time, and a request.
/// - After an internal error, it needs a pause, a read, a second pause and a request.
/// - If a request gets no response, the library gives up on it after half of the remaining time, but not before
///   250 ms. Then it needs the same as after an internal error.
pub const fn leaves(outage: Outage) -> u64 {
    match outage {
        Outage::Throttle | Outage::Conflict | Outage::Refuse => 60,
        Outage::InternalError => 150,
        _ => 400,
    }
}

/// Draws an outage for a delivery that has `left` ms to record its outcome. Returns the delay before the outage and
/// its length, in ms, or `None` for no outage, for example because too little time is left.
pub(super) fn draw(outage: Outage, left: u64, random: &mut Random) -> Option<(u64, u64)> {
    let share = if random.percent(60) { random.between(500, 950) } else { random.between(10, 500) };
    let delay = if random.percent(70) { 0 } else { random.below(20) };
    let longest = left.checked_sub(leaves(outage) + delay)?;
    let length = (left * share / 1000).min(longest);
    (length > 0 && random.percent(85)).then_some((delay, length))
}

/// Plays `count` schedules with outages of this kind, in two concurrent halves, one per core.
///
/// # Errors
///
/// The report of a schedule with a violation, shrunk; `None` if the second half panicked. A panic of the first
/// half is propagated.
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

/// The results of a campaign, as a paragraph.
pub fn told(outage: Outage, figures: &Figures) -> String {
    let Figures { schedules, operations, completed, calls, effects, committed, repeated, expired, .. } =
        figures;
    let all: u64 = figures.outages.iter().sum();
    let long: u64 = figures.outages[5..].iter().sum();
    let mut text = format!(
        "{}: {schedules} schedules, {operations} operations, {completed} answered and completed, {calls} store calls, \
         {effects} direct effects and {committed} in transactions, {repeated} repeated (and {expired} after the \
         record's expiry); {all} outages, {} % of them for at least half of the time left, each leaving at \
         least {} ms. Lengths as a share of the time left:",
        outage.name(),
        (100 * long).checked_div(all).unwrap_or_default(),
        leaves(outage)
    );
    for (tenth, count) in figures.outages.iter().enumerate() {
        let _ = write!(text, " {}-{} %: {count}", tenth * 10, tenth * 10 + 10);
    }
    text
}
