//! Plays two operations concurrently, and compares the result with both orders in which they can follow each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use super::{
    Report,
    judge::{Finding, Mistake, NO_SEED, story_of},
    play::{Pause, Played, Subject, overlapping, serially, undisturbed},
};
use crate::testing::{
    effect::{Guard, Happened, Origin},
    fault::Fault,
    fields,
    function::Answer,
};

/// The time between two operations in the second pair of serial plays: times in the effects then differ.
const GAP: Duration = Duration::from_secs(60 * 60);

/// Returns whether the operation writes an item that the first one writes too. `None` if it isn't another operation, or
/// has no effect in common with the first one.
pub(super) fn sibling(first: &Played, alone: &Played) -> Option<bool> {
    let keys = |played: &Played| -> BTreeSet<_> {
        played.deliveries.iter().flat_map(|delivery| delivery.keys.clone()).collect()
    };
    let names = |played: &Played| -> BTreeSet<String> {
        played.effects.iter().map(|effect| effect.name.clone()).collect()
    };
    let items = |played: &Played| -> BTreeSet<(String, String)> {
        let staged = played.effects.iter().filter(|effect| effect.is_staged() && !effect.what().is_empty());
        staged.map(|effect| (effect.name.clone(), effect.what().to_owned())).collect()
    };
    let is_other = alone.is_done && alone.failures.is_empty() && !keys(alone).is_subset(&keys(first));
    let has_common = !names(first).is_disjoint(&names(alone));
    (is_other && has_common).then(|| !items(first).is_disjoint(&items(alone)))
}

/// Finds an update that's lost when the operation and one of its `partners` run concurrently.
pub(super) fn lost_updates(
    subject: &Subject<'_>,
    event: &Arc<str>,
    partners: &[Arc<str>],
    report: &mut Report,
) -> io::Result<()> {
    for partner in partners {
        let events = [event, partner];
        let orders = Orders::played(subject, None, events, report)?;
        if !orders.differ() {
            continue;
        }
        let mut found =
            orders.again(subject, None, events, report)?.interleaved(subject, None, events, report)?;
        // An earlier operation may have created the items. Without it, the first write may be another one.
        if let Some(earlier) = earlier(subject, event, partner, report)?.filter(|_| found.is_none()) {
            let (earlier, orders) =
                (Some(&earlier), Orders::played(subject, Some(&earlier), events, report)?);
            let orders = orders.again(subject, earlier, events, report)?;
            found = orders.interleaved(subject, earlier, events, report)?;
        }
        if let Some(finding) = found {
            report.add(vec![finding]);
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the event of a third operation that writes the same items, made from the `partner`.
fn earlier(
    subject: &Subject<'_>,
    event: &Arc<str>,
    partner: &Arc<str>,
    report: &mut Report,
) -> io::Result<Option<Arc<str>>> {
    let of_both = [undisturbed(subject, event, 0)?, undisturbed(subject, partner, 0)?];
    report.schedules += 2;
    let mut second_best = None;
    for variant in fields::other_events(partner) {
        let alone = undisturbed(subject, &variant.json, 0)?;
        report.schedules += 1;
        let shares = of_both.each_ref().map(|played| sibling(played, &alone));
        match shares {
            [Some(true), Some(true)] => return Ok(Some(variant.json)),
            [Some(_), Some(_)] if second_best.is_none() => second_best = Some(variant.json),
            _ => {}
        }
    }
    Ok(second_best)
}

/// What one operation did, as far as another operation's writes can change it.
#[derive(Debug)]
struct Seen {
    /// The details of the staged writes by their names, without those whose condition the bench can't check.
    details: BTreeMap<String, Vec<String>>,
    /// How often each item was written, without writes that have a condition which the bench can't check.
    writes: BTreeMap<(String, String), usize>,
    answer: Option<Answer>,
    is_done: bool,
}

impl Seen {
    fn of(played: &Played, turn: usize) -> Self {
        let mut details: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut writes = BTreeMap::new();
        for effect in played.effects_of(turn) {
            let Happened { name, detail, origin, .. } = effect;
            let Origin::Staged(item, guard) = origin else { continue };
            if *guard == Guard::None {
                *writes.entry((name.clone(), item.clone())).or_default() += 1;
            }
            if *guard == Guard::Strong {
                continue;
            }
            details.entry(name.clone()).or_default().push(detail.clone());
        }
        details.values_mut().for_each(|details| details.sort());
        let answer = played.last_answer(turn).cloned();
        let is_done = played.is_turn_done(turn) && answer.as_ref().is_some_and(Answer::is_whole);
        Self { details, writes, answer, is_done }
    }

    fn does_as(&self, other: &Self) -> bool {
        self.details == other.details && self.is_done == other.is_done
    }

    fn answers_as(&self, other: &Self) -> bool {
        match (&self.answer, &other.answer) {
            (Some(own), Some(other)) => own.is_replay_of(other),
            _ => false,
        }
    }
}

/// Two operations, played one after the other in both orders.
struct Orders {
    /// For each operation, the plays in which it comes first: one, and another one at another time, in which times and
    /// random values differ.
    plays: [Vec<Played>; 2],
    /// The number of earlier operations.
    earlier: usize,
}

/// An operation as it is before and after the other one, and concurrently with it.
struct Operation {
    as_first: Seen,
    as_second: Seen,
    now: Seen,
}

impl Orders {
    fn played(
        subject: &Subject<'_>,
        earlier: Option<&Arc<str>>,
        [one, two]: [&Arc<str>; 2],
        report: &mut Report,
    ) -> io::Result<Self> {
        report.schedules += 2;
        let play = |order: [&Arc<str>; 2]| {
            let events: Vec<&Arc<str>> = earlier.into_iter().chain(order).collect();
            serially(subject, &events, Duration::ZERO, 0).map(|played| vec![played])
        };
        Ok(Self { plays: [play([one, two])?, play([two, one])?], earlier: usize::from(earlier.is_some()) })
    }

    /// Plays both orders at another time.
    fn again(
        mut self,
        subject: &Subject<'_>,
        earlier: Option<&Arc<str>>,
        [one, two]: [&Arc<str>; 2],
        report: &mut Report,
    ) -> io::Result<Self> {
        report.schedules += 2;
        for (plays, order) in self.plays.iter_mut().zip([[one, two], [two, one]]) {
            let events: Vec<&Arc<str>> = earlier.into_iter().chain(order).collect();
            plays.push(serially(subject, &events, GAP, 1)?);
        }
        Ok(self)
    }

    /// Returns what the operation `which` does in the order in which `first` comes first.
    fn seen(&self, first: usize, which: usize, time: usize) -> Seen {
        Seen::of(&self.plays[first][time], self.earlier + usize::from(first != which))
    }

    /// Whether an operation does something else after the other one than before it.
    fn differ(&self) -> bool {
        (0..2).any(|which| !self.seen(which, which, 0).does_as(&self.seen(1 - which, which, 0)))
    }

    /// Whether the details of this effect are the same at another time.
    fn is_stable(&self, name: &str) -> bool {
        let details = |first, which, time| self.seen(first, which, time).details.remove(name);
        let same = |first, which| details(first, which, 0) == details(first, which, 1);
        (0..2).all(|first| (0..2).all(|which| same(first, which)))
    }

    /// Pauses each of the two operations at each point, and delivers the other one.
    fn interleaved(
        &self,
        subject: &Subject<'_>,
        earlier: Option<&Arc<str>>,
        events: [&Arc<str>; 2],
        report: &mut Report,
    ) -> io::Result<Option<Finding>> {
        for paused in 0..2 {
            let alone = &self.plays[paused][0];
            let Some(delivery) = alone.deliveries.get(alone.turn(self.earlier).start) else { continue };
            let points = delivery.reached.iter().enumerate();
            let points =
                points.filter(|(_, point)| Fault::Overlap.fits(**point)).map(|(nth, _)| Pause::At(nth));
            for pause in points.chain((1..=delivery.polls).map(Pause::AfterPolls)) {
                let order = [events[paused], events[1 - paused]];
                let played = overlapping(subject, earlier, order, pause)?;
                report.schedules += 1;
                if let Some((what, advice)) = self.judge(&played, paused) {
                    return Ok(Some(Finding {
                        mistake: Mistake::UpdateLost,
                        what,
                        advice: advice.to_owned(),
                        story: story_of(&played),
                        seed: NO_SEED,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the mistake and the advice.
    fn judge(&self, played: &Played, paused: usize) -> Option<(String, &'static str)> {
        let of = |which: usize| Operation {
            as_first: self.seen(which, which, 0),
            as_second: self.seen(1 - which, which, 0),
            now: Seen::of(played, self.earlier + usize::from(which != paused)),
        };
        let both = [of(paused), of(1 - paused)];
        if !both.iter().all(|operation| operation.now.is_done) {
            return None;
        }
        let has_written =
            |of: &Operation| [&of.as_first, &of.as_second].iter().any(|seen| of.now.writes == seen.writes);
        if both.iter().all(has_written)
            && let Some(lost) = self.lost_item(played)
        {
            return Some((lost, ADVICE));
        }
        if both.iter().all(Operation::saw_nothing) {
            let what = "two concurrent operations were both done, but one after the other, the second one isn't done in the \
                        same way: neither saw the other's write";
            return Some((what.to_owned(), ADVICE));
        }
        if let Some(name) = both[0].as_first.details.keys().find(|name| {
            self.is_stable(name) && both.iter().all(|operation| operation.has_detail_as_first(name))
        }) {
            let detail = both.each_ref().map(|operation| operation.now.details[name].join(", "));
            let what = format!(
                "two concurrent operations lost an update: `{name}` happened with {} and with {}, as if neither knew of \
                 the other",
                detail[0], detail[1]
            );
            return Some((what, ADVICE));
        }
        let declined = both.iter().find(|operation| operation.is_declined_as_done())?;
        let (name, item) = declined.as_first.writes.keys().next().cloned().unwrap_or_default();
        let what =
            format!("`{name}` ({item}) was declined because of a concurrent operation, but answered as done");
        Some((what, DECLINED))
    }

    /// Finds an item whose value isn't one that either order leaves.
    fn lost_item(&self, played: &Played) -> Option<String> {
        let [one, two] = &self.plays;
        let items: BTreeSet<_> =
            [&one[0], &two[0], played].into_iter().flat_map(|played| played.items.keys()).collect();
        items.into_iter().find_map(|item| {
            let value = |played: &Played| played.items.get(item).cloned().unwrap_or_else(|| "absent".to_owned());
            let is_stable = [one, two].iter().all(|plays| plays.windows(2).all(|pair| value(&pair[0]) == value(&pair[1])));
            let (found, one, two) = (value(played), value(&one[0]), value(&two[0]));
            let either = if one == two { format!("`{one}`") } else { format!("`{one}` or `{two}`") };
            (is_stable && found != one && found != two).then(|| {
                let (table, id) = item;
                format!(
                    "two concurrent operations lost an update: `{id}` in `{table}` is `{found}`, but one after the other \
                     they leave {either}"
                )
            })
        })
    }
}

const ADVICE: &str = "Both operations read the same state before either wrote. Put a condition on what you read into the \
    transaction that writes: `is(…)` of the kit's transaction, or a `ConditionExpression` such as `balance = :read`. Or let \
    the store add: `SET balance = balance + :cents`. The later write is then declined, its key is released, and the retry \
    reads again.";

const DECLINED: &str = "Nothing was written, and the answer says otherwise. Leave out `on_declined`: then the key is released, \
    and the retry reads again. Or answer that the operation was declined.";

impl Operation {
    /// Whether the operation wrote and answered as if the other one hadn't happened, although it does neither after the
    /// other one.
    fn saw_nothing(&self) -> bool {
        let Self { as_first, as_second, now } = self;
        !now.writes.is_empty()
            && now.writes == as_first.writes
            && now.answers_as(as_first)
            && as_first.is_done
            && as_second.writes != as_first.writes
            && !as_second.answers_as(as_first)
    }

    /// Whether this effect has the details that it has before the other operation, and not those that it has after it.
    fn has_detail_as_first(&self, name: &str) -> bool {
        let of = |seen: &Seen| seen.details.get(name).cloned().unwrap_or_default();
        let (first, second, now) = (of(&self.as_first), of(&self.as_second), of(&self.now));
        !second.is_empty() && !now.is_empty() && now == first && first != second && self.as_second.is_done
    }

    /// Whether the operation wrote nothing, although it writes in both orders, and answered as if it had written.
    fn is_declined_as_done(&self) -> bool {
        let Self { as_first, as_second, now } = self;
        let says_something = now.answer.as_ref().is_some_and(Answer::is_telling);
        !as_first.writes.is_empty()
            && as_first.writes == as_second.writes
            && now.writes.is_empty()
            && says_something
            && (now.answers_as(as_first) || now.answers_as(as_second))
    }
}
