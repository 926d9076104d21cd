//! Finds events that wrongly get the first event's outcome: another operation's event, an event with the same key but
//! different content, and the first event with one field changed.

use std::{collections::BTreeSet, io, sync::Arc};

use lambda_idempotency_core::ErrorKind::Declined;
use serde_json::Value;

use super::{
    Report,
    judge::{Expected, Finding, Mistake, Off, is_batch},
    play::{Played, Subject, in_turn, reused},
    together,
};
use crate::{
    effect::{Happened, Origin},
    fields::{self, OtherEvent},
    told::Told,
};

/// How many variants of the event are played concurrently with it.
const SIBLINGS: usize = 3;

/// Delivers the event of another operation, a conflicting event, and the same event with each field changed.
pub(super) fn others(
    subject: &Subject<'_>,
    first: &Played,
    expected: &Expected,
    report: &mut Report,
) -> io::Result<()> {
    let event = subject.event.shared();
    let mut partners: Vec<Arc<str>> = Vec::new();
    if let Some(other) = subject.event.other_one() {
        let (alone, own) = report.undisturbed(subject, other)?;
        let pair = Pair::played(subject, (&event, first, expected), (other, &alone, &own))?;
        report.schedules += 2;
        report.add(pair.judge());
        report.add(pair.judge_leak(&event, other));
        if pair.is_ambiguous() {
            // Whether the two operations may share a step shows only if the step's effects differ.
            for OtherEvent { json, .. } in fields::other_events(other) {
                let (alone, own) = report.undisturbed(subject, &json)?;
                let pair = Pair::played(subject, (&event, first, expected), (&json, &alone, &own))?;
                report.schedules += 2;
                report
                    .add(pair.judge().into_iter().filter(|found| found.mistake == Mistake::Shared).collect());
            }
        }
        if alone.is_done && alone.failures.is_empty() {
            partners.push(Arc::clone(other));
        }
    }
    if let Some(conflicting) = subject.event.conflicting_one() {
        let events = [(&event, "the event"), (conflicting, "the same key with different content")];
        let played = in_turn(subject, &events, true, 0)?;
        report.schedules += 1;
        report.add(judge_conflict(&played, expected));
        let (alone, own) = report.undisturbed(subject, conflicting)?;
        used_again(subject, (&event, first, expected), (conflicting, &alone, &own), report)?;
    }
    let mut fixed = FixedKeys::of(first);
    let mut siblings = Vec::new();
    for OtherEvent { field, json, with_same_ids } in fields::other_events(&event) {
        let (alone, own) = report.undisturbed(subject, &json)?;
        fixed.compare(first, &alone, &field, &json);
        if let Some(shared) = together::sibling(first, &alone) {
            siblings.push((shared, Arc::clone(&json)));
        }
        // A batch's answer only lists the failed records.
        let answers = |played: &Played| {
            let done = played.first_done.as_ref().filter(|_| !is_batch(&event));
            done.map(|(_, answer)| answer.clone())
        };
        let mut is_same = !own.differs_from(expected) && answers(&alone) == answers(first);
        // An id alone may change an effect, although the changed field doesn't matter to the function.
        if let Some(json) = with_same_ids.filter(|_| !is_same && alone.is_done) {
            let (alone, own) = report.undisturbed(subject, &json)?;
            is_same = !own.differs_from(expected) && answers(&alone) == answers(first);
        }
        // A change may make a record unreadable.
        if !alone.is_done || is_same || alone.given_up.len() != first.given_up.len() {
            continue;
        }
        used_again(subject, (&event, first, expected), (&json, &alone, &own), report)?;
        let what = format!("the same event with another `{field}`");
        let played = in_turn(subject, &[(&event, "the event"), (&json, &what)], true, 0)?;
        report.schedules += 1;
        report.add(judge_variant(&played, expected, &own, &field));
    }
    report.fields_left_out = fields::left_out(&event);
    // The following check can only guess whether two operations have different remote keys (keys for the remote
    // system). Skip it if the test set an event of another operation, since `Pair::judge` then shows more. Also skip it
    // if some fields weren't changed, since one of them may change the remote keys.
    let may_guess = subject.event.other_one().is_none() && report.fields_left_out == 0;
    if let Some((field, json)) = fixed.variant().filter(|_| may_guess) {
        let what = format!("the same event with another `{field}`");
        let played = in_turn(subject, &[(&event, "the event"), (json, &what)], true, 0)?;
        report.schedules += 1;
        report.add(fixed.judge(&played, field));
    }
    siblings.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
    partners.extend(siblings.into_iter().map(|(_, json)| json).take(SIBLINGS));
    if first.failures.is_empty() && first.given_up.is_empty() {
        together::lost_updates(subject, &event, &partners, report)?;
    }
    Ok(())
}

/// Uses the event's key again after its retention, for an event with different content whose first attempt dies. Finds a
/// reconciler that takes the old effect for the new one.
fn used_again(
    subject: &Subject<'_>,
    (event, first, expected): (&Arc<str>, &Played, &Expected),
    (other, alone, own): (&Arc<str>, &Played, &Expected),
    report: &mut Report,
) -> io::Result<()> {
    let keys = |played: &Played| -> Vec<_> {
        played.deliveries.iter().flat_map(|delivery| delivery.keys.clone()).collect()
    };
    let is_sent = first.effects.iter().any(|effect| effect.origin == Origin::Sent);
    if !is_sent || !alone.is_done || !own.differs_from(expected) || keys(first) != keys(alone) {
        return Ok(());
    }
    let played = reused(subject, event, other)?;
    report.schedules += 1;
    let (_, fewer) = expected.and(own).compared(&played.effects);
    if let Some(off) = fewer.first().filter(|_| played.is_turn_done(1)) {
        let what = format!("after the retention, a request with the same key got the old effect: {off}");
        let advice = "The remote system still knows the earlier operation's effect. Compare what was found with what \
                      was asked for, such as the amount, and return an error if they differ.";
        report.add(vec![found(&played, Mistake::Shared, what, advice)]);
    }
    Ok(())
}

/// An operation, and then another one: in the same process, and in two processes.
struct Pair<'a> {
    same: Played,
    apart: Played,
    /// The effects of the first operation alone, and the records on which its source gives up.
    firsts: &'a Expected,
    given_up: &'a BTreeSet<String>,
    /// The other operation alone, and its effects.
    alone: &'a Played,
    own: &'a Expected,
}

impl<'a> Pair<'a> {
    fn played(
        subject: &Subject<'_>,
        (event, first, firsts): (&Arc<str>, &'a Played, &'a Expected),
        (other, alone, own): (&Arc<str>, &'a Played, &'a Expected),
    ) -> io::Result<Self> {
        let events = [(event, "the event"), (other, "another operation")];
        let same = in_turn(subject, &events, true, 0)?;
        let apart = in_turn(subject, &events, false, 0)?;
        Ok(Self { same, apart, firsts, given_up: &first.given_up, alone, own })
    }

    /// Finds mistakes that show whatever state the first operation left: another operation that ran under its own key
    /// may do something else than alone.
    fn judge(&self) -> Vec<Finding> {
        if !self.alone.is_done {
            return Vec::new();
        }
        let found = [&self.same, &self.apart].into_iter().flat_map(|played| {
            let refused = self.refused(played);
            let shared = self.shared(played);
            refused.into_iter().chain(shared).chain(self.deduplicated(played)).chain(self.repeated(played))
        });
        found.collect()
    }

    /// Whether the other operation was done, with all records that are done alone.
    fn is_done(&self, played: &Played) -> bool {
        let alone = |id: &String| self.alone.given_up.contains(id) || self.given_up.contains(id);
        played.is_turn_done(1) && played.given_up.iter().all(alone)
    }

    fn has_run_alone(&self) -> bool {
        self.alone.has_run(0)
    }

    fn refused(&self, played: &Played) -> Option<Finding> {
        let is_memory = std::ptr::eq(played, &raw const self.same) && self.is_done(&self.apart);
        let answer = played.last_answer(1);
        let is_by_library =
            answer.is_some_and(|answer| answer.is_refused() && !answer.is_refused_as(Declined));
        let has_not_run = self.has_run_alone() && !played.has_run(1);
        if self.is_done(played) || !(is_memory || is_by_library || has_not_run) {
            return None;
        }
        let how = answer.map_or_else(|| "no answer".to_owned(), ToString::to_string);
        let advice = if is_by_library || has_not_run {
            "The two operations share a key. Take the key from a field that tells them apart, such as the order's id."
        } else {
            "In a process of its own, the other operation succeeds. Don't keep an operation's data in the process's \
             memory."
        };
        Some(found(played, Mistake::OtherRefused, format!("another operation got {how}"), advice))
    }

    /// Finds an operation that got the first one's outcome, or whose step did.
    fn shared(&self, played: &Played) -> Option<Finding> {
        if !played.is_turn_done(1) || !self.has_run_alone() {
            return None;
        }
        let both = self.firsts.and(self.own);
        let missing = if played.has_run(1) {
            self.missing_of_shared_step(played)?
        } else {
            let (_, fewer) = both.compared(&played.effects);
            let answer = || played.last_answer(1).map(ToString::to_string).unwrap_or_default();
            fewer.first().map_or_else(answer, ToString::to_string)
        };
        Some(found(
            played,
            Mistake::Shared,
            format!("another operation got the outcome of the first: {missing}"),
            "Take the key from all fields that identify an operation, such as order and tenant, never from a default.",
        ))
    }

    /// Whether a step of the second operation got the outcome of the first operation's step.
    fn shares_a_step(played: &Played) -> bool {
        let recorded = |key| played.deliveries[played.turn(0)].iter().any(|one| one.recorded.contains(key));
        played.deliveries[played.turn(1)].iter().any(|one| one.refused.iter().any(recorded))
    }

    /// Describes an effect of the second operation that's missing because its step got the first operation's outcome.
    /// If the first operation has the same effect, the two operations may share the step on purpose.
    fn missing_of_shared_step(&self, played: &Played) -> Option<String> {
        if !Self::shares_a_step(played) {
            return None;
        }
        let (_, fewer) = self.own.compared(played.effects_of(1));
        let is_missing = |off: &&Off| {
            let happened = played.effects_of(1).filter(|effect| effect.name == off.name).count();
            happened < self.own.times(&off.name) && !self.firsts.has(&off.name, &off.detail)
        };
        fewer.iter().find(is_missing).map(ToString::to_string)
    }

    /// Whether the two operations share a step, and nothing shows that this is a mistake.
    fn is_ambiguous(&self) -> bool {
        let is_missing = |played: &Played| {
            let (_, fewer) = self.own.compared(played.effects_of(1));
            Self::shares_a_step(played) && !fewer.is_empty()
        };
        self.alone.is_done && is_missing(&self.apart) && self.judge().is_empty()
    }

    /// Finds an effect of the second operation that the remote system took for the first operation's effect.
    fn deduplicated(&self, played: &Played) -> Option<Finding> {
        let (firsts, seconds) = (played.turn(0), played.turn(1));
        let effect = played.trace.iter().find_map(|told| {
            let Told::Deduplicated { delivery, effect, .. } = told else { return None };
            let effect = played.effects.get(*effect)?;
            (seconds.contains(delivery) && firsts.contains(&effect.delivery)).then_some(effect)
        })?;
        let (name, key) = (&effect.name, effect.key.as_deref().unwrap_or_default());
        Some(found(
            played,
            Mistake::Shared,
            format!(
                "`{name}` didn't happen for another operation: the remote system knows the key `{key}` from the first \
                 operation"
            ),
            "Give the remote system `current()…derive_key(…)`, which differs for each operation.",
        ))
    }

    /// Finds an effect of the first operation that the second one repeats.
    fn repeated(&self, played: &Played) -> Option<Finding> {
        let times = |played: &Played, name: &str| played.effects_of(1).filter(|one| one.name == name).count();
        let effect = played.effects_of(1).find(|effect| {
            let happened = times(played, &effect.name);
            let is_memory = std::ptr::eq(played, &raw const self.same)
                && self.apart.is_turn_done(1)
                && times(&self.apart, &effect.name) == self.own.times(&effect.name);
            let is_of_first = !effect.is_staged()
                && self.firsts.has(&effect.name, effect.what())
                && !self.own.has(&effect.name, effect.what());
            happened > self.own.times(&effect.name) && (is_memory || is_of_first)
        })?;
        let off = Off {
            name: effect.name.clone(),
            detail: effect.what().to_owned(),
            happened: times(played, &effect.name),
            expected: self.own.times(&effect.name),
        };
        Some(found(
            played,
            Mistake::Repeated,
            format!("after the first operation, another one had an effect too often: {off}"),
            "Don't keep an operation's data in the process's memory: the next operation sees it.",
        ))
    }

    /// Finds a value that only the first operation's event has, but that an effect of the second operation contains,
    /// although the value doesn't come from a state that the operations share.
    fn judge_leak(&self, event: &Arc<str>, other: &Arc<str>) -> Vec<Finding> {
        let (own, others) = (texts(event), texts(other));
        let is_only_in_first =
            |text: &&String| text.len() >= 4 && !other.contains(text.as_str()) && !others.contains(*text);
        let user = |played: &Played, nth: usize, text: &str| {
            let contains = |effect: &&Happened| effect.detail.contains(text);
            played.effects_of(nth).find(contains).map(|effect| effect.name.clone())
        };
        let leaked = own.iter().filter(is_only_in_first).find_map(|text| {
            let name = user(&self.same, 1, text).filter(|_| user(&self.same, 0, text).is_some())?;
            let is_static = user(self.alone, 0, text).is_some();
            (is_static || user(&self.apart, 1, text).is_none()).then(|| (text.clone(), name))
        });
        let Some((text, name)) = leaked else { return Vec::new() };
        vec![found(
            &self.same,
            Mistake::Shared,
            format!(
                "`{name}` of another operation contains `{text}`, which only the first operation's event has"
            ),
            "Don't keep an operation's data in a static or in a field of the service: the next operation sees it.",
        )]
    }
}

fn found(played: &Played, mistake: Mistake, what: String, advice: &str) -> Finding {
    Finding::new(mistake, what, advice, played, None)
}

/// The effects whose remote key stayed the same for every changed event.
struct FixedKeys {
    /// The names and keys of these effects.
    effects: BTreeSet<(String, String)>,
    /// The first changed field that makes the function use another idempotency key, and the changed event.
    other_operation: Option<(String, Arc<str>)>,
    /// Whether the function refused a changed event, or had no effect with a remote key for that event. The field that
    /// was changed there may be the one that changes the remote keys.
    has_gap: bool,
}

impl FixedKeys {
    fn of(first: &Played) -> Self {
        Self { effects: keyed(first), other_operation: None, has_gap: false }
    }

    /// Compares a variant's undisturbed delivery with the first event's. A variant that the function refuses has no
    /// effects, so it doesn't show which keys the effects would have.
    fn compare(&mut self, first: &Played, alone: &Played, field: &str, json: &Arc<str>) {
        let effects = keyed(alone);
        if !alone.is_done || effects.is_empty() {
            self.has_gap = true;
            return;
        }
        self.effects.retain(|effect| effects.contains(effect));
        let keys = |played: &Played| -> BTreeSet<_> {
            played.deliveries.iter().flat_map(|delivery| delivery.keys.clone()).collect()
        };
        if self.other_operation.is_none() && !keys(alone).is_subset(&keys(first)) {
            self.other_operation = Some((field.to_owned(), Arc::clone(json)));
        }
    }

    /// Returns the field and the changed event that make another operation. `None` if no effect kept its remote key, or
    /// if there's a gap.
    fn variant(&self) -> Option<&(String, Arc<str>)> {
        self.other_operation.as_ref().filter(|_| !self.effects.is_empty() && !self.has_gap)
    }

    /// Finds an effect of the variant that the remote system took for the first event's effect.
    fn judge(&self, played: &Played, field: &str) -> Vec<Finding> {
        let lost = played.trace.iter().find_map(|told| {
            let Told::Deduplicated { delivery, effect, .. } = told else { return None };
            let effect = played.effects.get(*effect)?;
            let key = effect.key.clone()?;
            let is_second = played.turn(1).contains(delivery) && played.turn(0).contains(&effect.delivery);
            (is_second && self.effects.contains(&(effect.name.clone(), key.clone())))
                .then(|| (effect.name.clone(), key))
        });
        let Some((name, key)) = lost else { return Vec::new() };
        vec![found(
            played,
            Mistake::Shared,
            format!(
                "an operation with another `{field}` has its own idempotency key, but `{name}` didn't happen for that \
                 operation: no field of the event changes the effect's key `{key}`"
            ),
            &format!(
                "Give the remote system `current()…derive_key(\"{name}\")`, which differs for each operation. If this \
                 effect's key does differ for another operation, set that operation's event with `Event::other`."
            ),
        )]
    }
}

/// Returns the names and remote keys of the effects that have a key.
fn keyed(played: &Played) -> BTreeSet<(String, String)> {
    played.effects.iter().filter_map(|effect| Some((effect.name.clone(), effect.key.clone()?))).collect()
}

/// Returns every string in an event, also from JSON inside strings.
fn texts(json: &str) -> BTreeSet<String> {
    fn collect(value: &Value, texts: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(inner @ (Value::Object(_) | Value::Array(_))) => collect(&inner, texts),
                _ => {
                    texts.insert(text.clone());
                }
            },
            Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
            Value::Object(fields) => fields.values().for_each(|field| collect(field, texts)),
            _ => {}
        }
    }
    let mut texts = BTreeSet::new();
    collect(&serde_json::from_str(json).unwrap_or_default(), &mut texts);
    texts
}

fn judge_conflict(played: &Played, expected: &Expected) -> Vec<Finding> {
    if !played.is_turn_done(1) || !played.failures.is_empty() {
        return Vec::new();
    }
    let (more, _) = expected.compared(&played.effects);
    let (what, advice) = match more.first() {
        Some(off) => (
            format!("the same operation with different content ran too: {off}"),
            "The key contains a field of the content. Take the key only from fields that identify the operation, and \
             let the library compare the rest.",
        ),
        None => (
            "the same operation with different content got the first one's outcome".to_owned(),
            "The content isn't compared. Let the library compare it: pass the request as the payload, or pass its \
             fingerprint.",
        ),
    };
    vec![found(played, Mistake::ConflictAccepted, what, advice)]
}

fn judge_variant(played: &Played, expected: &Expected, own: &Expected, field: &str) -> Vec<Finding> {
    if !played.is_turn_done(1) {
        return Vec::new();
    }
    let (_, fewer) = expected.and(own).compared(&played.effects);
    if played.has_run(1) || (fewer.is_empty() && own.differs_from(expected)) {
        return Vec::new();
    }
    let missing = fewer.first().map(|off| format!(": {off}")).unwrap_or_default();
    let what = format!("a request with another `{field}` got the first one's outcome{missing}");
    let advice = format!(
        "`{field}` changes what the function does, but is neither in the key nor compared. Let the library compare it, or \
         put it into the key."
    );
    vec![found(played, Mistake::Shared, what, &advice)]
}
