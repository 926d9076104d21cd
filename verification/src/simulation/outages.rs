//! Campaigns: outages of one kind, each shorter than its delivery's remaining time, and no other faults.
//!
//! When its handler returns, or a little later, an executor can't reach its store for a share of the time
//! that the delivery has left to record its outcome. At least 30 % of these outages take 50 to 95 % of that
//! time. Other outages begin with the delivery and affect the claim. Every operation must be answered with
//! its handler's result, in time. By then, the operation must be completed in the store. No effect may be
//! repeated.

use std::fmt::Write as _;

use super::{Figures, Report, campaign, config::Config};
use crate::random::Random;

/// How a store fails during an outage.
pub use lambda_idempotency::testing::Fault as Outage;

/// All outages. After a lost request or answer, the client gives up after a second. In a silent outage, the
/// client never gives up. In a silent outage and after internal errors, half of the writes were applied.
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

/// The least time that an outage leaves for the library, in ms. After a definite error, the library needs time for a
/// pause, which takes half of the remaining time, and for a request. After an internal error, it needs time for a
/// pause, a read, a pause and a request. The library gives up on a request without a response after half of the
/// remaining time, but not before 250 ms. After that, it needs the same calls as after an internal error.
pub const fn leaves(outage: Outage) -> u64 {
    match outage {
        Outage::Throttle | Outage::Conflict | Outage::Refuse => 60,
        Outage::InternalError => 150,
        _ => 400,
    }
}

/// When an outage begins and how long it lasts, in ms, for a delivery that has `left` to record its outcome.
/// Returns `None` for no outage, for example because too little time is left.
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
         {effects} direct effects and {committed} in transactions, {repeated} repeated ({expired} more after their \
         retention); {all} outages, {} % of them at least half of the time left (each leaves at least {} ms):",
        outage.name(),
        (100 * long).checked_div(all).unwrap_or_default(),
        leaves(outage)
    );
    for (tenth, count) in figures.outages.iter().enumerate() {
        let _ = write!(text, " {}-{} %: {count}", tenth * 10, tenth * 10 + 10);
    }
    text
}
