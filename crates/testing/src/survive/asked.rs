//! The advice for an effect that a reconciler should have asked for.

use super::play::Played;
use crate::{
    effect::{Happened, Lookup, NoAnswer},
    point::Call,
    told::Told,
};

/// Returns the advice for an effect that was sent again.
pub(super) fn advice(played: &Played, first: &Happened, last: &Happened) -> String {
    let (name, key) = (&first.name, first.key.as_deref().unwrap_or_default());
    if first.key != last.key {
        return format!(
            "The remote system got two different references, so no question can find the first one. Give it \
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
            handler's error released the key, so no question was asked. Return `Failure::unknown(…)` in this case."
                .to_owned()
        }
        _ => format!(
            "An attempt may end between an effect and its record, and no question was asked whether `{name}` had happened. Give \
             the operation a reconciler that asks the remote system: `operation(…)?.reconcile(…)`."
        ),
    }
}

fn has_released(played: &Played, of: usize) -> bool {
    let released =
        |told: &Told| matches!(told, Told::Wrote { delivery, call: Call::Release } if *delivery == of);
    played.trace.iter().any(released)
}
