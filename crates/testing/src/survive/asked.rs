//! Effects that a reconciler asks for: the advice for a repeated one, and a key that's used again after its retention.

use std::{io, sync::Arc};

use super::{
    Report,
    judge::{Expected, Finding, Mistake, NO_SEED, story_of},
    play::{Played, Subject, reused},
};
use crate::{
    effect::{Happened, Origin},
    ledger::{Lookup, NoAnswer},
    point::Call,
    world::Told,
};

/// Returns the advice for an effect that was sent again.
pub(super) fn advice(played: &Played, first: &Happened, last: &Happened) -> String {
    let (name, key) = (&first.name, first.key.as_deref().unwrap_or_default());
    if first.key != last.key {
        return format!(
            "The remote system got two different references, so nobody can find the first one. Give it \
             `current()…derive_key(\"{name}\")`, which is the same in every attempt."
        );
    }
    let questions = played.trace.iter().rev().filter_map(|told| match told {
        Told::Asked { delivery, effect, reference, answer }
            if *delivery == last.delivery && effect == name =>
        {
            Some((reference, answer))
        }
        _ => None,
    });
    match questions.into_iter().next() {
        Some((_, Err(NoAnswer))) => {
            "The question got no answer, and the reconciler took that for \"did not happen\". \
            Return the error with `?`: then the handler doesn't run, and the next attempt asks again."
                .to_owned()
        }
        Some((_, Ok(Lookup::OnItsWay))) => {
            "The remote system had the request, but hadn't done it yet. Answer \
            `Found::NotKnownYet`: then the handler doesn't run, and the next attempt asks again."
                .to_owned()
        }
        Some((reference, _)) if reference != key => format!(
            "The reconciler asked for `{reference}`, but the handler had sent `{key}`. Use one key for both: \
             `claim.derive_key(\"{name}\")`."
        ),
        Some((_, Ok(Lookup::Found(_)))) => {
            "The reconciler found the effect, and the handler ran again. Answer \
            `Found::Happened` with the receipt."
                .to_owned()
        }
        _ if has_released(played, first.delivery) => {
            "A call without an answer may have had its effect, but the \
            handler's error released the key, so nobody asked. Return `Failure::unknown(…)` in this case."
                .to_owned()
        }
        _ => format!(
            "An attempt may end between an effect and its record, and nobody asked whether `{name}` had happened. Give \
             the operation a reconciler that asks the remote system: `operation(…)?.reconcile(…)`."
        ),
    }
}

fn has_released(played: &Played, of: usize) -> bool {
    let released =
        |told: &Told| matches!(told, Told::Wrote { delivery, call: Call::Release } if *delivery == of);
    played.trace.iter().any(released)
}

/// Uses the event's key again after its retention, for an event with different content whose first attempt dies. Finds a
/// reconciler that takes the old effect for the new one.
pub(super) fn used_again(
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
        let advice =
            "The remote system still knows the earlier operation's effect. Compare what was found with what \
                      was asked for, such as the amount, and return an error if they differ."
                .to_owned();
        let (mistake, story) = (Mistake::Shared, story_of(&played));
        report.add(vec![Finding { mistake, what, advice, story, seed: NO_SEED }]);
    }
    Ok(())
}
