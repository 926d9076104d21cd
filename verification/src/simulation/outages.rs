//! Campaigns: outages of one kind, each shorter than its delivery's remaining time, and no other faults.
//!
//! Some outages begin when a handler returns, or a little later. Its executor then can't reach the store for a
//! share of the time that the delivery has left to record its outcome. At least 30 % of these outages take 50 to
//! 95 % of that time. Other outages begin with the delivery and affect the claim. Each result of a handler must
//! reach the caller in time. By then, the operation must be completed in the store. No effect may be repeated.

use std::fmt::Write as _;

use super::{
    Figures, Report, campaign,
    config::Config,
    trouble::{Outage, leaves},
};

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
