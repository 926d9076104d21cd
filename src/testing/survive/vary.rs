//! Finds events that wrongly get the first event's outcome: another operation's event, an event with the same key but
//! different content, and the first event with one field changed.

use std::{collections::BTreeSet, io, sync::Arc};

use serde_json::Value;

use super::{
    Report,
    judge::{Expected, Finding, Mistake, story_of},
    play::{Played, Subject, in_turn},
};
use crate::testing::{
    fields::{self, Variant},
    world::{Delivered, Told},
};

/// The seed in a finding about other operations. It isn't the seed of a schedule: these deliveries aren't random.
const NO_SEED: u64 = 0;

/// Delivers the event of another operation, a conflicting event, and the same event with each field changed.
pub(super) fn others(
    subject: &Subject<'_>,
    first: &Played,
    expected: &Expected,
    report: &mut Report,
) -> io::Result<()> {
    let event = subject.event.shared();
    if let Some(other) = subject.event.other_one() {
        let (alone, own) = report.undisturbed(subject, other)?;
        let expected = expected.and(&own);
        for is_in_same_process in [true, false] {
            let events = [(&event, "the event"), (other, "another operation")];
            let played = in_turn(subject, &events, is_in_same_process, 0)?;
            report.schedules += 1;
            report.add(judge_other(&played, &alone, first, &expected));
            report.add(judge_leak(&played, &event, other));
        }
    }
    if let Some(conflicting) = subject.event.conflicting_one() {
        let events = [(&event, "the event"), (conflicting, "the same key with different content")];
        let played = in_turn(subject, &events, true, 0)?;
        report.schedules += 1;
        report.add(judge_conflict(&played, expected));
    }
    let mut fixed = FixedKeys::of(first);
    for Variant { field, json } in fields::variants(&event) {
        let (alone, own) = report.undisturbed(subject, &json)?;
        fixed.compare(first, &alone, &field, &json);
        let answers = |played: &Played| played.first_done.as_ref().map(|(_, answer)| answer.clone());
        let is_same = !own.differs_from(expected) && answers(&alone) == answers(first);
        if !alone.is_done || is_same {
            continue;
        }
        let what = format!("the same event with another `{field}`");
        let played = in_turn(subject, &[(&event, "the event"), (&json, &what)], true, 0)?;
        report.schedules += 1;
        report.add(judge_variant(&played, expected, &own, &field));
    }
    report.fields_left_out = fields::left_out(&event);
    // The following check can only guess whether two operations have different remote keys (keys for the remote
    // system). Skip it if the test set an event of another operation, since `judge_other` then shows more. Also skip it
    // if some fields weren't changed, since one of them may change the remote keys.
    let may_guess = subject.event.other_one().is_none() && report.fields_left_out == 0;
    if let Some((field, json)) = fixed.variant().filter(|_| may_guess) {
        let what = format!("the same event with another `{field}`");
        let played = in_turn(subject, &[(&event, "the event"), (json, &what)], true, 0)?;
        report.schedules += 1;
        report.add(fixed.judge(&played, field));
    }
    Ok(())
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
            let Told::Deduplicated { delivery: 1, effect, .. } = told else { return None };
            let effect = played.effects.get(*effect)?;
            let key = effect.key.clone()?;
            (effect.delivery == 0 && self.effects.contains(&(effect.name.clone(), key.clone())))
                .then(|| (effect.name.clone(), key))
        });
        let Some((name, key)) = lost else { return Vec::new() };
        vec![Finding {
            mistake: Mistake::Shared,
            what: format!(
                "an operation with another `{field}` has its own idempotency key, but `{name}` didn't happen for that \
                 operation: no field of the event changes the effect's key `{key}`"
            ),
            advice: format!(
                "Give the remote system `current()…derive_key(\"{name}\")`, which differs for each operation. If this \
                 effect's key does differ for another operation, set that operation's event with `Event::other`."
            ),
            story: story_of(played),
            seed: NO_SEED,
        }]
    }
}

/// Returns the names and remote keys of the effects that have a key.
fn keyed(played: &Played) -> BTreeSet<(String, String)> {
    played.effects.iter().filter_map(|effect| Some((effect.name.clone(), effect.key.clone()?))).collect()
}

/// Returns the last delivery's answer, if it reports the whole operation as done.
fn last_done(played: &Played) -> Option<&crate::testing::function::Answer> {
    let (delivery, answer) = played.answers.last()?;
    let is_last = *delivery + 1 == played.deliveries.len();
    (is_last && answer.is_whole()).then_some(answer)
}

fn judge_other(played: &Played, alone: &Played, first: &Played, expected: &Expected) -> Vec<Finding> {
    let finding = |mistake, what: String, advice: &str| {
        vec![Finding { mistake, what, advice: advice.to_owned(), story: story_of(played), seed: NO_SEED }]
    };
    if !alone.is_done {
        return Vec::new();
    }
    let Some(answer) = last_done(played) else {
        let how =
            played.answers.last().map_or_else(|| "no answer".to_owned(), |(_, answer)| answer.to_string());
        return finding(
            Mistake::OtherRefused,
            format!("another operation got {how}"),
            "The two operations share a key. Take the key from a field that tells them apart, such as the order's id.",
        );
    };
    let (more, fewer) = expected.compared(&played.effects);
    if let Some(off) = fewer.first() {
        return finding(
            Mistake::Shared,
            format!("another operation got the outcome of the first: {off}"),
            "Take the key from all fields that identify an operation, such as order and tenant, never from a default.",
        );
    }
    if let Some(off) = more.first() {
        return finding(
            Mistake::Repeated,
            format!("the first operation and another one together had an effect too often: {off}"),
            "Don't keep an operation's data in the process's memory: the next operation sees it.",
        );
    }
    let own = alone.first_done.as_ref().map(|(_, answer)| answer);
    let firsts = first.first_done.as_ref().map(|(_, answer)| answer);
    if own != firsts && Some(answer) == firsts {
        return finding(
            Mistake::Shared,
            format!("another operation got the answer of the first: {answer}"),
            "Take the key from every field that identifies an operation.",
        );
    }
    Vec::new()
}

/// Finds a value that only the first operation's event has, but that an effect of the second operation contains.
fn judge_leak(played: &Played, event: &Arc<str>, other: &Arc<str>) -> Vec<Finding> {
    let (own, others) = (texts(event), texts(other));
    let is_only_in_first =
        |text: &&String| text.len() >= 4 && !other.contains(text.as_str()) && !others.contains(*text);
    let of = |delivery: usize| played.effects.iter().filter(move |effect| effect.delivery == delivery);
    let leaked = own.iter().filter(is_only_in_first).find_map(|text| {
        let is_used = of(0).any(|effect| effect.detail.contains(text.as_str()));
        let effect = of(1).find(|effect| effect.detail.contains(text.as_str()))?;
        is_used.then(|| (text.clone(), effect.name.clone()))
    });
    let Some((text, name)) = leaked else { return Vec::new() };
    vec![Finding {
        mistake: Mistake::Shared,
        what: format!("`{name}` of another operation contains `{text}`, which only the first operation's event has"),
        advice: "Don't keep an operation's data in a static or in a field of the service: the next operation sees it."
            .to_owned(),
        story: story_of(played),
        seed: NO_SEED,
    }]
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
    if last_done(played).is_none() {
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
    let advice = advice.to_owned();
    vec![Finding { mistake: Mistake::ConflictAccepted, what, advice, story: story_of(played), seed: NO_SEED }]
}

fn judge_variant(played: &Played, expected: &Expected, own: &Expected, field: &str) -> Vec<Finding> {
    if last_done(played).is_none() {
        return Vec::new();
    }
    let (_, fewer) = expected.and(own).compared(&played.effects);
    let has_run = played.deliveries.last().is_some_and(Delivered::shows_run);
    if has_run || (fewer.is_empty() && own.differs_from(expected)) {
        return Vec::new();
    }
    let missing = fewer.first().map(|off| format!(": {off}")).unwrap_or_default();
    vec![Finding {
        mistake: Mistake::Shared,
        what: format!("a request with another `{field}` got the first one's outcome{missing}"),
        advice: format!(
            "`{field}` changes what the function does, but is neither in the key nor compared. Let the library compare \
             it, or put it into the key."
        ),
        story: story_of(played),
        seed: NO_SEED,
    }]
}
