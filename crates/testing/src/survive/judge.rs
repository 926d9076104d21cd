//! Compares what happened in a schedule with what an undisturbed delivery does.

use std::{collections::BTreeMap, fmt};

use lambda_idempotency_core::ErrorKind::{InProgress, Mismatch};

use super::{asked, play::Played};
use crate::{
    drawing::Event,
    effect::{Happened, Origin},
    event::{ids_of, is_of_queue},
    fault::Fault,
    function::Answer,
    ledger::count,
    picture,
    point::{Call, Point},
    story,
    told::Told,
};

/// The kind of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mistake {
    /// The first delivery fails, although no fault happened.
    FirstFailed,
    /// An effect happened more often than when each operation is delivered once, without faults.
    Repeated,
    /// The operation was answered as done, but an effect is missing. Or a retry sent an effect with other details under
    /// the same key, and only the first attempt's details took effect.
    Missing,
    /// An effect happened after the answer, when Lambda may freeze the process.
    AfterAnswer,
    /// Two answers to one operation differ.
    AnswersDiffer,
    /// A retry is refused, although it should run the operation or get the recorded answer.
    RetryRefused,
    /// Two operations, or two steps of one operation, share an outcome.
    Shared,
    /// Another operation is refused.
    OtherRefused,
    /// The same key with different content isn't refused.
    ConflictAccepted,
    /// Two concurrent operations read the same state, and one of them overwrote what the other one had written.
    UpdateLost,
}

impl Mistake {
    /// Returns the mistake's name in a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstFailed => "first delivery fails",
            Self::Repeated => "effect repeated",
            Self::Missing => "effect missing",
            Self::AfterAnswer => "effect after the answer",
            Self::AnswersDiffer => "answers differ",
            Self::RetryRefused => "retry refused",
            Self::Shared => "outcome shared",
            Self::OtherRefused => "other operation refused",
            Self::ConflictAccepted => "conflict accepted",
            Self::UpdateLost => "update lost",
        }
    }
}

/// A mistake of the function under test: what happened, how, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the mistake.
    pub mistake: Mistake,
    /// The mistake, in one line.
    pub what: String,
    /// The advice, in a sentence or two.
    pub advice: String,
    /// The events of the schedule, line by line.
    pub story: Vec<String>,
    /// The number of the schedule that shows the mistake, for [`Survival::seed`](super::Survival::seed). `None` in a
    /// finding about other operations, whose deliveries aren't random.
    pub seed: Option<u64>,
    /// The story as a drawing.
    pub(super) events: Vec<Event>,
}

impl Finding {
    pub(super) fn new(
        mistake: Mistake,
        what: String,
        advice: &str,
        played: &Played,
        seed: Option<u64>,
    ) -> Self {
        let Played { trace, effects, deliveries, .. } = played;
        let (story, events) =
            (story::lines(trace, effects, deliveries), picture::events(trace, effects, deliveries));
        Self { mistake, what, advice: advice.to_owned(), story, seed, events }
    }

    /// The mistake and its seed, in one line.
    pub(super) fn head(&self) -> String {
        self.seed.map_or_else(|| self.what.clone(), |seed| format!("{} (seed {seed})", self.what))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.head())?;
        for line in &self.story {
            writeln!(f, "  {line}")?;
        }
        write!(f, "  → {}", self.advice)
    }
}

/// The effects of one undisturbed delivery.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// How often each effect happens, by its name and detail, or for a staged write, by its name and item. If any
    /// detail differs between two runs, all details are left empty.
    counts: BTreeMap<(String, String), usize>,
    has_details: bool,
}

impl Expected {
    /// Takes the effects of one undisturbed delivery. Their details count only if a second undisturbed delivery had
    /// the same details.
    pub(super) fn of(one: &Played, another: &Played) -> Self {
        let exact = counts(&one.effects, true);
        let has_details = exact == counts(&another.effects, true);
        let counts = if has_details { exact } else { counts(&one.effects, false) };
        Self { counts, has_details }
    }

    /// Returns the effects of both deliveries together.
    pub(super) fn and(&self, other: &Self) -> Self {
        let has_details = self.has_details && other.has_details;
        let mut sum = Self { counts: BTreeMap::new(), has_details };
        for ((name, detail), count) in self.counts.iter().chain(&other.counts) {
            let detail = if has_details { detail.clone() } else { String::new() };
            *sum.counts.entry((name.clone(), detail)).or_default() += count;
        }
        sum
    }

    /// Returns the effects that happened too often, and the effects that didn't happen often enough.
    pub(super) fn compared<'a>(
        &self,
        effects: impl IntoIterator<Item = &'a Happened>,
    ) -> (Vec<Off>, Vec<Off>) {
        let found = counts(effects, self.has_details);
        let (mut more, mut fewer) = (Vec::new(), Vec::new());
        let names: std::collections::BTreeSet<_> = found.keys().chain(self.counts.keys()).collect();
        for at in names {
            let happened = found.get(at).copied().unwrap_or_default();
            let expected = self.counts.get(at).copied().unwrap_or_default();
            let off = Off { name: at.0.clone(), detail: at.1.clone(), happened, expected };
            if happened > expected {
                more.push(off);
            } else if happened < expected {
                fewer.push(off);
            }
        }
        (more, fewer)
    }

    /// How often the effect with this name happens, whatever its details.
    pub(super) fn times(&self, name: &str) -> usize {
        self.counts.iter().filter(|((other, _), _)| other == name).map(|(_, count)| count).sum()
    }

    /// Whether an undisturbed delivery has this effect. Without details, only the name counts.
    pub(super) fn has(&self, name: &str, what: &str) -> bool {
        let what = if self.has_details { what } else { "" };
        self.counts.contains_key(&(name.to_owned(), what.to_owned()))
    }

    pub(super) fn differs_from(&self, other: &Self) -> bool {
        self.counts != other.counts
    }
}

/// An effect that happened too often, or not often enough.
#[derive(Clone, Debug)]
pub(super) struct Off {
    pub(super) name: String,
    pub(super) detail: String,
    pub(super) happened: usize,
    pub(super) expected: usize,
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, detail, happened, expected } = self;
        let of = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        let expected =
            if *expected == 0 { "not expected".to_owned() } else { format!("expected {}", count(*expected)) };
        match happened {
            0 => write!(f, "`{name}`{of} never happened, {expected}"),
            happened => write!(f, "`{name}`{of} happened {}, {expected}", count(*happened)),
        }
    }
}

fn counts<'a>(
    effects: impl IntoIterator<Item = &'a Happened>,
    with_details: bool,
) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for effect in effects {
        let detail = if with_details { effect.what().to_owned() } else { String::new() };
        *counts.entry((effect.name.clone(), detail)).or_default() += 1;
    }
    counts
}

/// Finds the mistakes in a schedule whose deliveries all belong to one operation.
pub(super) fn judge(played: &Played, expected: &Expected, event: &str, seed: u64) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |mistake, what: String, advice: String| {
        found.push(Finding::new(mistake, what, &advice, played, Some(seed)));
    };
    if let Some(late) = played.effects.iter().find(|effect| effect.is_late) {
        add(
            Mistake::AfterAnswer,
            format!("`{}` happened after the answer", late.name),
            "Lambda freezes or kills the process after the answer. Await the effect inside the handler, and \
             spawn nothing that outlives the handler."
                .to_owned(),
        );
    }
    let (more, fewer) = expected.compared(&played.effects);
    if let Some(off) = more.first() {
        add(Mistake::Repeated, off.to_string(), advice_for_repeated(played, &off.name, event));
    }
    if let (true, Some(off)) = (played.is_done, fewer.first()) {
        add(
            Mistake::Missing,
            format!("answered as done, but {off}"),
            advice_for_missing(played, &off.name, event),
        );
    }
    if let Some(what) = sent_otherwise(played).filter(|_| played.is_done && expected.has_details) {
        add(
            Mistake::Missing,
            format!("answered as done, but {what}"),
            "A retry of this call must send the same details. Take them from the event, or determine them in an \
             earlier step with its own `operation(…)`, so that they're recorded."
                .to_owned(),
        );
    }
    // An at-most-once operation must not run again, so its retries may be refused. If the handler has other operations,
    // `left_behind` checks their claims.
    let is_at_most_once = played.deliveries.iter().any(|delivery| !delivery.at_most_once.is_empty());
    let last = played.answers.last().map(|(_, answer)| answer);
    // A response that the store can't hold isn't the function's mistake: retries learn that the operation is done,
    // but don't get its answer.
    let is_unstored =
        played.trace.iter().any(|told| matches!(told, Told::Fault { fault: Fault::Unstorable, .. }));
    let may_be_refused = is_at_most_once || is_unstored;
    if !played.is_done && !may_be_refused {
        let how = last.map_or_else(
            || "every delivery ended without an answer".to_owned(),
            |last| format!("the last answer is {last}"),
        );
        add(Mistake::RetryRefused, format!("every retry is refused: {how}"), advice_for_refused(played));
    }
    if let Some(answer) = left_behind(played) {
        add(
            Mistake::RetryRefused,
            format!(
                "a failed delivery kept its claim, so every retry is refused until the lease expires. The delivery \
                 ended with {answer}"
            ),
            "Release the claim on every path: call `claim.release()` before each `?`, or use `run`, which does so."
                .to_owned(),
        );
    }
    // A mismatch is always the function's mistake: no fault causes one.
    let mismatched =
        played.answers.iter().map(|(_, answer)| answer).find(|answer| answer.is_refused_as(Mismatch));
    let for_good = played.refused_duplicate.as_ref().filter(|_| !may_be_refused);
    if let Some(refused) = mismatched.or(for_good) {
        add(
            Mistake::RetryRefused,
            format!("a retry of the same operation got {refused}"),
            "A retry must have the same key and the same compared fields as the first request. `key_of` lists which \
             fields change the key or the fingerprint."
                .to_owned(),
        );
    }
    // A batch's answer only lists the failed records, and a failure may be worded differently.
    if let Some((first, answer)) = played.first_done.as_ref().filter(|(_, answer)| answer.is_whole()) {
        // An answer that couldn't be recorded may differ from the recorded one.
        let is_recorded = |delivery: usize| {
            let delivery = &played.deliveries[delivery];
            !delivery.shows_run() || !delivery.recorded.is_empty()
        };
        for (delivery, other) in played.answers.iter().filter(|(_, other)| !std::ptr::eq(other, answer)) {
            if other.is_whole()
                && is_recorded(*first)
                && is_recorded(*delivery)
                && !other.is_replay_of(answer)
            {
                add(
                    Mistake::AnswersDiffer,
                    format!("two answers to one operation differ: {answer}, then {other}"),
                    "Build the whole answer inside the protected handler, so that it's recorded and replayed. Add no \
                     time, random id or lookup to it afterwards."
                        .to_owned(),
                );
            }
        }
    }
    found
}

/// Describes an effect that was sent again under the same key, but with other details than those that took effect.
fn sent_otherwise(played: &Played) -> Option<String> {
    played.trace.iter().find_map(|told| {
        let Told::Deduplicated { effect, detail, .. } = told else { return None };
        let Happened { name, detail: first, .. } = played.effects.get(*effect)?;
        (detail != first).then(|| {
            format!(
                "`{name}` was sent again under the same key with other details: {detail}. The remote system knows \
                 the key, so only the first call took effect: {first}"
            )
        })
    })
}

/// Returns the answer of a delivery that never settled its claim, although only a remote system failed.
fn left_behind(played: &Played) -> Option<&Answer> {
    let is_of_effect = |of: usize| {
        let mut faults = played.trace.iter().filter_map(|told| match told {
            Told::Fault { delivery, point, fault, .. } if *delivery == of => Some((*point, *fault)),
            _ => None,
        });
        faults.all(|(point, fault)| {
            matches!(point, Point::BeforeEffect | Point::AfterEffect)
                && matches!(fault, Fault::Throttle | Fault::LoseAnswer)
        })
    };
    // `InProgress` may mean that the handler was cut off. Its effect may have happened, so its claim stays.
    let is_cut_off = |answer: &Answer| answer.is_refused_as(InProgress);
    let mut answers = played.answers.iter().filter(|(_, answer)| !answer.is_whole() && !is_cut_off(answer));
    let left = answers.find(|(of, _)| {
        let delivery = &played.deliveries[*of];
        !delivery.holds.is_subset(&delivery.at_most_once) && is_of_effect(*of)
    });
    left.map(|(_, answer)| answer)
}

/// Finds the mistakes of an undisturbed first delivery.
pub(super) fn judge_first(played: &Played, event: &str, seed: u64) -> Vec<Finding> {
    let mut found = Vec::new();
    if !played.is_done {
        let how = played
            .answers
            .last()
            .map_or_else(|| "no answer in time".to_owned(), |(_, answer)| answer.to_string());
        // Only the event's own records or steps can have used the key before.
        let shares_key = played.answers.iter().any(|(_, answer)| answer.is_refused_as(Mismatch));
        let (mistake, what, advice) = if shares_key {
            (
                Mistake::Shared,
                format!("two records or steps of one event share a key, but their content differs: {how}"),
                "Take the key from a field that tells the records apart, and give each step its own name with \
                 `operation(…)`."
                    .to_owned(),
            )
        } else {
            let what = format!("no fault happened, but the first delivery got {how}");
            (Mistake::FirstFailed, what, advice_for_first(played, event))
        };
        found.push(Finding::new(mistake, what, &advice, played, Some(seed)));
    }
    for result_type in played.deliveries.iter().flat_map(|delivery| &delivery.changed) {
        let what = format!(
            "a result of the type `{result_type}` reads back differently, so a replay differs from the run"
        );
        let advice = "The usual causes are `Option<()>`, `Option<Option<_>>` and untagged enums. Return a type whose values \
                      all have different JSON.";
        found.push(Finding::new(Mistake::AnswersDiffer, what, advice, played, Some(seed)));
    }
    if played.deliveries.iter().any(|delivery| !delivery.asked_again.is_empty()) {
        let what =
            "two steps of one delivery share a key: the second got the first one's outcome, and didn't run"
                .to_owned();
        let advice = "Give each step its own name with `operation(…)`, and each item of a loop its own key.";
        found.push(Finding::new(Mistake::Shared, what, advice, played, Some(seed)));
    }
    found
}

fn advice_for_first(played: &Played, event: &str) -> String {
    let panicked = |what: &str| played.answers.iter().any(|(_, answer)| answer.has_panicked_with(what));
    // tokio's message: the kit's runtime has no driver for sockets.
    if panicked("IO is disabled") {
        return "The kit has no network, so the handler can't open a connection here. Give it a fake. Test `run_in` and \
                other code that needs a server on that server, without the kit."
            .to_owned();
    }
    let is_unclaimed = played.deliveries.iter().all(|delivery| delivery.keys.is_empty());
    let unclaimed = if is_unclaimed {
        "No key was claimed: the event has no key, or the handler isn't behind the layer. "
    } else {
        ""
    };
    let advice = if is_batch(event) {
        "Give `survive` records that succeed, and a function that has everything it needs. If a record fails \
         permanently, return `Failure::permanent`, or name the record with `Event::poison`. \
         `acknowledge_permanent_failures(true)` takes recorded failures off the queue."
    } else {
        "Give `survive` an event that succeeds, and a function that has everything it needs. If the event must fail, \
         return `Failure::permanent`, so that the failure is recorded, or set `Event::poison(0)`."
    };
    format!("{unclaimed}{advice}")
}

pub(super) fn is_batch(event: &str) -> bool {
    !ids_of(event).is_empty()
}

/// Whether this effect deletes a message of the event.
fn deletes_message(effect: &Happened, event: &str) -> bool {
    let name = effect.name.to_lowercase();
    let names_message = || {
        ids_of(event).iter().any(|id| effect.detail.contains(id.as_str())) || effect.detail.contains("handle")
    };
    let is_deletion = ["delete", "remove", "ack"].iter().any(|word| name.contains(word));
    is_deletion
        && is_of_queue(event)
        && (names_message() || ["message", "sqs", "queue", "receipt"].iter().any(|word| name.contains(word)))
}

const BY_HAND: &str = "Don't delete a message in the handler: if the process dies before the outcome is recorded, the message is \
    lost. Return `Ok`, and Lambda deletes the message; return an error, and the message comes back \
    (`ReportBatchItemFailures`).";

fn advice_for_repeated(played: &Played, name: &str, event: &str) -> String {
    let all: Vec<&Happened> = played.effects.iter().filter(|effect| effect.name == name).collect();
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return String::new() };
    let keys = |effect: &Happened| &played.deliveries[effect.delivery].keys;
    if deletes_message(last, event) {
        return BY_HAND.to_owned();
    }
    if all.len() < 2 {
        return "This effect doesn't happen in an undisturbed delivery. If it undoes another effect, such as a \
                charge, the retry still counts on that effect."
            .to_owned();
    }
    if first.delivery == last.delivery {
        return "One delivery caused this effect more than once. Retry the call with the key of the first attempt: \
                `current()…derive_key(…)`."
            .to_owned();
    }
    if keys(first).is_empty() {
        return "No key was claimed, so nothing protects this effect: the event has no key, or the handler isn't behind \
                the layer."
            .to_owned();
    }
    if !keys(first).iter().any(|key| keys(last).contains(key)) {
        return "The retry had another idempotency key. Take the key from fields that stay the same when the sender \
                repeats the request. `key_of` lists which fields change the key."
            .to_owned();
    }
    if first.origin == Origin::Sent {
        return asked::advice(played, first, last);
    }
    if first.key.is_some() && last.key.is_some() {
        return format!(
            "The remote system got two different keys. Give it `current()…derive_key(\"{name}\")`, which is the same \
             in every attempt of an operation. If you do, the step's own key differs between attempts: take it from the \
             event, not from a counter."
        );
    }
    if !(first.is_claimed && last.is_claimed) {
        return "This effect happened outside the claim, where nothing stops a duplicate. Move it into the handler."
            .to_owned();
    }
    if first.origin == Origin::Recorded {
        return format!(
            "An attempt may end between an effect and its record, and the next attempt runs the handler again. Stage \
             the write, so that it's committed with the outcome. If `{name}` calls a remote system that deduplicates, \
             give it `current()…derive_key(\"{name}\")` (in the test: `Ledger::call`). If nothing can deduplicate it, \
             choose `Execution::AtMostOnce`."
        );
    }
    format!(
        "An attempt may end between an effect and its record. Pass `current()…derive_key(\"{name}\")` to the remote \
         system, or stage the write, so that it's committed with the outcome."
    )
}

fn advice_for_missing(played: &Played, name: &str, event: &str) -> String {
    if played.effects.iter().any(|effect| effect.name == name && deletes_message(effect, event)) {
        return BY_HAND.to_owned();
    }
    let faults = || {
        played.trace.iter().filter_map(|told| match told {
            Told::Fault { delivery, point, fault, .. } => Some((*delivery, *point, *fault)),
            _ => None,
        })
    };
    let has_failed = |of: usize| {
        faults().any(|(delivery, point, fault)| {
            delivery == of
                && point == Point::BeforeEffect
                && matches!(fault, Fault::Throttle | Fault::Silence | Fault::NoTime | Fault::Slow)
        })
    };
    let claimed_again = |of: usize| {
        let call = |told: &Told| match told {
            Told::Wrote { delivery, call } if *delivery == of => Some(*call),
            _ => None,
        };
        played.trace.iter().filter_map(call).any(|call| matches!(call, Call::TakeOver | Call::Reclaim))
    };
    // The delivery that recorded the outcome without the effect.
    let done = played.trace.iter().find_map(|told| match told {
        Told::Wrote { delivery, call: Call::Complete | Call::Conclude } => Some(*delivery),
        _ => None,
    });
    if let Some(done) =
        done.filter(|done| ids_of(event).len() < 2 && claimed_again(*done) && !has_failed(*done))
    {
        return format!(
            "Delivery {} was a later attempt, and skipped `{name}`. An earlier attempt had begun, but may have ended \
             before the effect: neither `attempt() == 1`, `is_takeover()` nor the process's memory says whether it \
             happened. Do it in every attempt, with `current()…derive_key(\"{name}\")`, so that the remote system does \
             it once; or stage the write; or ask the remote system first.",
            done + 1
        );
    }
    let recorded =
        played.trace.iter().position(|told| matches!(told, Told::Wrote { call: Call::Complete, .. }));
    let died = played.trace.iter().position(|told| matches!(told, Told::Fault { fault: Fault::Die, .. }));
    let failed = faults().any(|(_, point, fault)| {
        point == Point::BeforeEffect && matches!(fault, Fault::Throttle | Fault::Silence)
    });
    if played.trace.iter().any(|told| matches!(told, Told::Wrote { call: Call::Fail, .. })) {
        return TRANSIENT.to_owned();
    }
    if failed {
        return "The call failed, but the handler answered as if the call had succeeded. Return the error: then nothing \
                is recorded, and the retry calls again."
            .to_owned();
    }
    if matches!((recorded, died), (Some(recorded), Some(died)) if recorded < died) {
        return format!(
            "`{name}` happens only after the outcome is recorded. Move it into the protected handler."
        );
    }
    format!(
        "A delivery was answered as done before `{name}` had happened. Answer an operation that's in progress with an \
         error, and keep nothing in the process's memory that says \"done\"."
    )
}

const TRANSIENT: &str = "A transient error was recorded as permanent. Return `Failure::transient`, or leave `on_handler_error` \
    at `Release`.";

fn advice_for_refused(played: &Played) -> String {
    let has_failed = played.trace.iter().any(|told| matches!(told, Told::Wrote { call: Call::Fail, .. }));
    if has_failed {
        return TRANSIENT.to_owned();
    }
    "The last retries had no fault, and came after the claim's lease had expired, so the function itself refuses them. \
     Complete or release the claim."
        .to_owned()
}
