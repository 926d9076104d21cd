//! Plays two operations concurrently, and compares the result with both orders in which they can follow each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    thread,
    time::Duration,
};

use super::{
    Report,
    judge::{Finding, Mistake},
    play::{Pause, Played, Subject, overlapping, serially, undisturbed},
};
use crate::{
    effect::{Guard, Happened, Origin},
    fault::Fault,
    fields,
    function::Answer,
};

/// The time between two operations in later plays. Every part of a time in an effect then differs: hours, minutes, seconds
/// and milliseconds.
const GAP: Duration = Duration::from_millis(3_723_457);
/// The pause before a finding is confirmed. Times of the machine's clock in effects then differ too.
const MACHINE_GAP: Duration = Duration::from_millis(1_100);

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
        let mut orders = Orders::played(subject, None, [event, partner], report)?;
        if !orders.differ() {
            continue;
        }
        let mut found = orders.interleaved(report)?;
        // An earlier operation may have created the items. Without it, the first write may be another one.
        if let Some(earlier) = earlier(subject, event, partner, report)?.filter(|_| found.is_none()) {
            found = Orders::played(subject, Some(&earlier), [event, partner], report)?.interleaved(report)?;
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

/// The effects of one operation, as far as another operation's writes can change them.
#[derive(Debug)]
struct Seen {
    /// The details of the staged writes by their names, without those whose condition the bench can't check.
    details: BTreeMap<String, Vec<String>>,
    /// How often each kind of write was staged, without writes that have a condition which the bench can't check.
    writes: BTreeMap<String, usize>,
    answer: Option<Answer>,
    is_done: bool,
}

impl Seen {
    fn of(played: &Played, turn: usize) -> Self {
        let mut details: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut writes = BTreeMap::new();
        for effect in played.effects_of(turn) {
            let Happened { name, detail, origin, .. } = effect;
            let Origin::Staged(_, guard) = origin else { continue };
            if *guard == Guard::None {
                *writes.entry(name.clone()).or_default() += 1;
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
struct Orders<'a> {
    subject: &'a Subject<'a>,
    /// The event of an operation before the two.
    earlier: Option<&'a Arc<str>>,
    events: [&'a Arc<str>; 2],
    /// For each operation, the plays in which it comes first. The plays are at different times.
    plays: [Vec<Played>; 2],
}

/// An operation as it is before and after the other one, and concurrently with it.
struct Operation {
    as_first: Vec<Seen>,
    as_second: Vec<Seen>,
    now: Seen,
}

impl<'a> Orders<'a> {
    fn played(
        subject: &'a Subject<'a>,
        earlier: Option<&'a Arc<str>>,
        events: [&'a Arc<str>; 2],
        report: &mut Report,
    ) -> io::Result<Self> {
        let mut orders = Self { subject, earlier, events, plays: Default::default() };
        orders.play(report)?;
        Ok(orders)
    }

    /// Plays both orders, each time with longer pauses and with other random values.
    fn play(&mut self, report: &mut Report) -> io::Result<()> {
        let [one, two] = self.events;
        for (plays, order) in self.plays.iter_mut().zip([[one, two], [two, one]]) {
            let events: Vec<&Arc<str>> = self.earlier.into_iter().chain(order).collect();
            let nth = plays.len() as u32;
            plays.push(serially(self.subject, &events, GAP * nth, nth.into())?);
            report.schedules += 1;
        }
        Ok(())
    }

    /// Returns what the operation `which` does in the order in which `first` comes first, in each play.
    fn seen(&self, first: usize, which: usize) -> Vec<Seen> {
        self.plays[first].iter().map(|played| Seen::of(played, self.turn(first, which))).collect()
    }

    /// The number of the operation `which` in the plays in which `first` comes first.
    fn turn(&self, first: usize, which: usize) -> usize {
        usize::from(self.earlier.is_some()) + usize::from(first != which)
    }

    /// Whether an operation does something else after the other one than before it.
    fn differ(&self) -> bool {
        (0..2).any(|which| !self.seen(which, which)[0].does_as(&self.seen(1 - which, which)[0]))
    }

    /// Pauses each of the two operations at each point and wherever it waits, and delivers the other one.
    fn interleaved(&mut self, report: &mut Report) -> io::Result<Option<Finding>> {
        self.play(report)?;
        for paused in 0..2 {
            let alone = &self.plays[paused][0];
            let Some(delivery) = alone.deliveries.get(alone.turn(self.turn(paused, paused)).start) else {
                continue;
            };
            let points = delivery.reached.iter().enumerate();
            let points =
                points.filter(|(_, point)| Fault::Overlap.fits(**point)).map(|(nth, _)| Pause::At(nth));
            let pauses: Vec<_> = points.chain((1..=delivery.polls).map(Pause::AfterPolls)).collect();
            for pause in pauses {
                let found = self.found(paused, pause, report)?;
                if found.is_none() {
                    continue;
                }
                // Confirm the finding at another time, since times in the effects may have differed by chance.
                thread::sleep(MACHINE_GAP);
                self.play(report)?;
                if let Some(finding) = self.found(paused, pause, report)? {
                    return Ok(Some(finding));
                }
            }
        }
        Ok(None)
    }

    fn found(&self, paused: usize, pause: Pause, report: &mut Report) -> io::Result<Option<Finding>> {
        let order = [self.events[paused], self.events[1 - paused]];
        let played = overlapping(self.subject, self.earlier, order, pause)?;
        report.schedules += 1;
        let found =
            |(what, advice): (_, &str)| Finding::new(Mistake::UpdateLost, what, advice, &played, None);
        Ok(self.judge(&played, paused).map(found))
    }

    /// Returns the mistake and the advice.
    fn judge(&self, played: &Played, paused: usize) -> Option<(String, &'static str)> {
        let of = |which: usize| Operation {
            as_first: self.seen(which, which),
            as_second: self.seen(1 - which, which),
            now: Seen::of(played, self.turn(paused, which)),
        };
        let both = [of(paused), of(1 - paused)];
        if !both.iter().all(|operation| operation.now.is_done) {
            return None;
        }
        let has_written =
            |of: &Operation| of.as_first.iter().chain(&of.as_second).any(|seen| of.now.writes == seen.writes);
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
        let has_seen_nothing = |name: &&String| both.iter().all(|one| one.has_detail_as_first(name));
        if let Some(name) = both[0].now.details.keys().find(has_seen_nothing) {
            let detail = both.each_ref().map(|operation| operation.now.details[name].join(", "));
            let what = format!(
                "two concurrent operations lost an update: `{name}` happened with {} and with {}, as if neither knew of \
                 the other",
                detail[0], detail[1]
            );
            return Some((what, ADVICE));
        }
        let declined = both.iter().find(|operation| operation.is_declined_as_done())?;
        let name =
            declined.as_first.iter().flat_map(|seen| seen.writes.keys()).next().cloned().unwrap_or_default();
        let what = format!("`{name}` was declined because of a concurrent operation, but answered as done");
        Some((what, DECLINED))
    }

    /// Finds an item whose value isn't one that either order leaves.
    fn lost_item(&self, played: &Played) -> Option<String> {
        let value = |played: &Played, item| match played.items.get(item) {
            Some(value) => String::clone(value),
            None => "absent".to_owned(),
        };
        let items: BTreeSet<_> = self.plays.iter().flat_map(|plays| plays[0].items.keys()).collect();
        items.into_iter().find_map(|item| {
            let found = value(played, item);
            let [one, two] =
                self.plays.each_ref().map(|plays| plays.iter().map(|played| value(played, item)).collect::<Vec<_>>());
            let is_lost = !is_one_of(&found, &one) && !is_one_of(&found, &two);
            let either =
                if one == two { format!("`{}`", one[0]) } else { format!("`{}` or `{}`", one[0], two[0]) };
            is_lost.then(|| {
                let (table, id) = item;
                format!(
                    "two concurrent operations lost an update: `{id}` in `{table}` is `{found}`, but one after the other \
                     they leave {either}"
                )
            })
        })
    }
}

/// Whether `text` is equal to the `others`, except in the words in which the others differ from each other, such as times
/// and random values. If the others don't have the same number of words, the text can't be compared and counts as equal.
fn is_one_of(text: &str, others: &[String]) -> bool {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect()
    };
    let others: Vec<Vec<String>> = others.iter().map(|other| words(other)).collect();
    let Some((first, rest)) = others.split_first() else { return true };
    if rest.iter().any(|other| other.len() != first.len()) {
        return true;
    }
    let own = words(text);
    let is_stable = |at: usize| rest.iter().all(|other| other[at] == first[at]);
    own.len() == first.len() && (0..first.len()).all(|at| own[at] == first[at] || !is_stable(at))
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
            && as_first
                .iter()
                .all(|first| now.writes == first.writes && now.answers_as(first) && first.is_done)
            && as_second.iter().all(|second| now.writes != second.writes && !now.answers_as(second))
    }

    /// Whether this write has the details that it has before the other operation, and not those that it has after it.
    fn has_detail_as_first(&self, name: &str) -> bool {
        let of = |seen: &Seen| seen.details.get(name).map(|details| details.join("\n")).unwrap_or_default();
        let all = |seen: &[Seen]| seen.iter().map(of).collect::<Vec<String>>();
        let (first, second, now) = (all(&self.as_first), all(&self.as_second), of(&self.now));
        !now.is_empty()
            && !second.iter().any(String::is_empty)
            && is_one_of(&now, &first)
            && !is_one_of(&now, &second)
            && !is_one_of(&second[0], &first)
            && self.as_second.iter().all(|second| second.is_done)
    }

    /// Whether the operation wrote nothing, although it writes in both orders, and answered as if it had written.
    fn is_declined_as_done(&self) -> bool {
        let Self { as_first, as_second, now } = self;
        let says_something = now.answer.as_ref().is_some_and(Answer::is_telling);
        let writes = &as_first[0].writes;
        !writes.is_empty()
            && as_second.iter().all(|second| second.writes == *writes)
            && now.writes.is_empty()
            && says_something
            && (now.answers_as(&as_first[0]) || now.answers_as(&as_second[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::is_one_of;

    #[test]
    fn changing_words_are_not_compared() {
        let plays = ["100 at 09:15".to_owned(), "100 at 10:17".to_owned()];
        assert!(is_one_of("100 at 23:59", &plays));
        assert!(!is_one_of("150 at 09:15", &plays));
        assert!(!is_one_of("100", &plays));
        assert!(is_one_of("anything", &["a b".to_owned(), "a".to_owned()]));
    }
}
