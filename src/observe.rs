//! The library's `tracing` events and metrics, one function per fact.
//!
//! Names and fields are stable. The target is `lambda_idempotency`; `event` is the fact's name and `id` the
//! stored key, which reveals neither key nor caller. No event holds a raw key, a payload, a response or a
//! token.

use std::{
    error::Error as StdError,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    error::{Error, ErrorKind, causes},
    key::StoredKey,
    metrics::{Metric, count, measure},
    protocol::{Held, Rules},
    record::{Generation, Record, Status},
    settings::{Execution, Mode, Settings},
    store::StoreError,
    time::{Stopwatch, Timestamp},
};

pub(crate) const TARGET: &str = "lambda_idempotency";

pub(crate) fn claimed(id: &StoredKey, held: &Held) {
    OUTAGE.store(0, Ordering::Relaxed);
    count(Metric::Executed);
    if held.lock.mark.is_interrupted() {
        count(Metric::Takeover);
        tracing::warn!(
            target: TARGET, event = "takeover", %id, generation = held.lock.generation.get(), attempt = held.lock.attempt,
            "claimed after an attempt that ended without an answer: its handler may have had an effect"
        );
    } else {
        tracing::debug!(
            target: TARGET, event = "claimed", %id, generation = held.lock.generation.get(), attempt = held.lock.attempt,
            "claimed"
        );
    }
    if held.is_recovered {
        count(Metric::ClaimRecovered);
        tracing::info!(
            target: TARGET, event = "claim_recovered", %id, generation = held.lock.generation.get(),
            "the store's answer to the claim was lost; recognised the claim by its owner"
        );
    }
}

/// An operation has no invocation. Outside Lambda, that's normal. In Lambda, it means that the operation runs outside a
/// layer's handler, for example in a spawned task, and that nothing called `for_invocation`. Logged once.
pub(crate) fn no_invocation(settings: &Settings, is_in_lambda: bool) {
    let lease_ms = lease_ms(settings);
    if is_in_lambda {
        tracing::warn!(
            target: TARGET, event = "no_invocation", lease_ms,
            "an operation runs outside any invocation, for example in a spawned task, so its deadline is \
             unknown: call Invocation::current() before you spawn the task, and pass it to for_invocation"
        );
    } else {
        tracing::debug!(
            target: TARGET, event = "no_invocation", lease_ms, "no invocation and no deadline: not running in Lambda"
        );
    }
}

/// The operation happened, but its result can't be encoded, or can't be decoded again. So the result isn't recorded,
/// and duplicates get an error instead.
pub(crate) fn not_readable(id: &StoredKey, result_type: &str, why: &str) {
    tracing::error!(
        target: TARGET, event = "result_not_readable", %id, result_type, why,
        "the operation's result isn't recorded, because a duplicate couldn't read it: duplicates get NotRetained"
    );
}

/// The result is recorded, but a duplicate reads another value. Only debug builds and the testing kit look.
pub(crate) fn reads_differently(id: &StoredKey, result_type: &str) {
    tracing::error!(
        target: TARGET, event = "result_reads_differently", %id, result_type,
        "duplicates get another result than this call: what {result_type} serialises reads back as a different value. \
         The causes are `Option<()>`, `Option<Option<_>>` and untagged enums: use a type that distinguishes them"
    );
}

/// Nothing ran. The operation is done, but its recorded result doesn't fit the type that this call returns. That's
/// usually a deployment's fault, not the record's.
pub(crate) fn result_does_not_fit(id: &StoredKey, error: &Error, result_type: &str) {
    count(refusal(error.kind(), false));
    tracing::error!(
        target: TARGET, event = "result_does_not_fit", %id, kind = error.kind().as_str(), result_type, "{error}"
    );
}

pub(crate) fn replayed(id: &StoredKey, record: &Record) {
    OUTAGE.store(0, Ordering::Relaxed);
    count(Metric::Replayed);
    tracing::info!(
        target: TARGET, event = "replayed", %id, generation = record.generation.get(),
        status = record.status().as_str(), "answered from the record"
    );
}

/// The cache answered without a request. The answer itself is reported as if it came from the store.
pub(crate) fn recalled(id: &StoredKey, record: &Record) {
    count(Metric::LocalCacheHit);
    tracing::debug!(
        target: TARGET, event = "local_cache_hit", %id, generation = record.generation.get(),
        "answered from the local cache, without a store request"
    );
}

/// The kinds of the store failures that were logged in this outage, one bit each. Zero again when a delivery claims a key
/// or gets a recorded outcome.
static OUTAGE: AtomicU32 = AtomicU32::new(0);

/// Nothing ran. `is_store_failure` says whether the store failed; otherwise a rule refused the delivery.
pub(crate) fn refused(id: &StoredKey, error: &Error, is_store_failure: bool) {
    count(refusal(error.kind(), is_store_failure));
    let bit = 1 << (error.kind() as u32);
    if is_store_failure && OUTAGE.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        // The helpful details, such as a missing permission or credential, or a wrong Region, are in the causes.
        tracing::warn!(
            target: TARGET, event = "store_unavailable", %id, kind = error.kind().as_str(), cause = causes(error),
            "the store can't be used; until it works again, further refusals are logged at INFO: {error}"
        );
        return;
    }
    tracing::info!(
        target: TARGET, event = "refused", %id, kind = error.kind().as_str(), "refused: {error}"
    );
}

/// Returns an error and its causes in one line. The causes have the details, such as a missing permission.
fn whole(error: Option<&dyn StdError>) -> Option<String> {
    let error = error?;
    Some(causes(error).map_or_else(|| error.to_string(), |causes| format!("{error}: {causes}")))
}

/// The calling code misuses the library.
pub(crate) fn misused(error: &Error) {
    tracing::error!(target: TARGET, event = "misused", kind = error.kind().as_str(), "{error}");
}

/// Nothing ran, and the store wasn't asked, since there's no key to claim.
pub(crate) fn refused_unasked(error: &Error) {
    count(refusal(error.kind(), false));
    tracing::info!(target: TARGET, event = "refused", kind = error.kind().as_str(), "refused: {error}");
}

/// Nothing ran: the event can't be read as an HTTP request.
pub(crate) fn unreadable() {
    tracing::info!(
        target: TARGET, event = "refused", kind = "RequestUnreadable",
        "refused: the event can't be read as an HTTP request"
    );
}

/// Nothing ran: an idempotency key belongs to its caller, and the caller isn't verified.
pub(crate) fn caller_missing() {
    count(Metric::CallerMissing);
    tracing::info!(
        target: TARGET, event = "refused", kind = "CallerMissing",
        "refused: the request has a key but no verified caller"
    );
}

/// Nothing ran: the request carries credentials, but the caller is unknown. `found` says where the credentials are.
pub(crate) fn caller_unknown(found: &str) {
    count(Metric::CallerUnknown);
    tracing::error!(
        target: TARGET, event = "refused", kind = "CallerUnknown", found,
        "refused a keyed request: it has a credential in `{found}`, but nothing names the credential's owner. \
         Authenticate before the request reaches this layer, and name the caller. If all callers, or all users of an \
         API key or a role, may get each other's answers, share one namespace. Ignore cookies that don't authenticate"
    );
}

/// The handler ran and failed, and its failure is the operation's outcome. The error isn't passed on to the
/// runtime. Its text isn't logged, since it may contain anything.
pub(crate) fn failure_recorded(how: &'static str, error_type: &'static str) {
    tracing::error!(
        target: TARGET, event = "failure_recorded", error_type,
        "{how}, which is recorded as the outcome: this request and its duplicates get 500 `operation-failed`. Log the \
         error's text in the handler"
    );
}

/// The text of the body's error isn't logged, since it may contain anything.
pub(crate) fn broken_off() {
    tracing::error!(
        target: TARGET, event = "response_broken_off",
        "the body of the handler's response broke off: unless the failure is recorded, the caller gets 500"
    );
}

/// A response has a header that Lambda doesn't deliver.
pub(crate) fn header_dropped(name: &str) {
    tracing::error!(
        target: TARGET, event = "header_dropped", name,
        "dropped a header of the response, because Lambda can't deliver its value: keep to ASCII, for example with \
         `filename*` in Content-Disposition (RFC 8187)"
    );
}

/// Logged when the layer is configured.
pub(crate) fn record_when_unused() {
    tracing::warn!(
        target: TARGET, event = "record_when_unused",
        "`record_when` has no effect in a function that runs at most once: every answer is recorded, unless the \
         response asks for its release"
    );
}

/// A record of a batch is returned for redelivery. `identifier` is the source's own name for the record.
pub(crate) fn returned(
    source: &'static str,
    identifier: &str,
    kind: &str,
    detail: &str,
    refused: Option<ErrorKind>,
) {
    // `refused` is only set if the record was refused before a claim. Later refusals were already counted.
    if let Some(kind) = refused {
        count(refusal(kind, false));
    }
    tracing::warn!(
        target: TARGET, event = "returned", source, record = identifier, kind, detail,
        "a record of the batch is returned for redelivery"
    );
}

/// Every record of a batch is returned for redelivery. Lambda still counts the invocation as a success, unless
/// `fail_if_all_fail` makes the function fail.
pub(crate) fn all_failed(source: &'static str, records: usize) {
    count(Metric::AllFailed);
    tracing::error!(target: TARGET, event = "all_failed", source, records, "every record of the batch is redelivered");
}

/// The library couldn't extend the visibility timeout of messages that other deliveries are processing. `code` is the
/// service's error code.
#[cfg(feature = "sqs-visibility")]
pub(crate) fn not_hidden(messages: usize, code: Option<&str>) {
    tracing::warn!(
        target: TARGET, event = "not_hidden", messages, code,
        "couldn't hide messages that other deliveries are processing: the queue redelivers them after its visibility \
         timeout"
    );
}

const fn refusal(kind: ErrorKind, is_store_failure: bool) -> Metric {
    match kind {
        ErrorKind::MissingKey => Metric::MissingKey,
        ErrorKind::InvalidKey => Metric::InvalidKey,
        ErrorKind::Mismatch => Metric::Mismatch,
        ErrorKind::InProgress => Metric::InProgress,
        ErrorKind::OutcomeUnknown => Metric::OutcomeUnknown,
        ErrorKind::NotRetained => Metric::NotRetained,
        ErrorKind::Corrupt => Metric::Corrupt,
        ErrorKind::Unavailable if !is_store_failure => Metric::NoTimeLeft,
        ErrorKind::Invalid if !is_store_failure => Metric::Invalid,
        ErrorKind::Declined => Metric::Declined,
        ErrorKind::AllFailed => Metric::AllFailed,
        // `Unavailable` and `Invalid` of the store. `Fenced` and `Unrecorded` are errors of a settlement, and never
        // refuse a claim.
        _ => Metric::StoreUnavailable,
    }
}

/// Measures how long claiming took, whether or not it succeeded.
pub(crate) fn asked(stopwatch: Stopwatch) {
    measure(Metric::ClaimLatency, stopwatch.read());
}

/// Measures how long settling took, whether or not it succeeded.
pub(crate) fn settling_ended(stopwatch: Stopwatch) {
    measure(Metric::SettleLatency, stopwatch.read());
}

pub(crate) fn settled(id: &StoredKey, held: &Held, status: Status) {
    count(if status == Status::Released { Metric::Released } else { Metric::Recorded });
    tracing::debug!(
        target: TARGET, event = "settled", %id, generation = held.lock.generation.get(), status = status.as_str(),
        "settled"
    );
}

pub(crate) fn fenced(id: &StoredKey, held: &Held) {
    count(Metric::Fenced);
    tracing::warn!(
        target: TARGET, event = "fenced", %id, generation = held.lock.generation.get(),
        "this run lost its claim: the record was taken over or settled, or it's gone or unreadable"
    );
}

/// It's unknown whether a key is released. If it isn't, the claim is left as if it had been dropped, so it's counted as
/// abandoned too. It isn't counted as unrecorded, since a release has no outcome to lose.
pub(crate) fn not_released(id: &StoredKey, held: &Held, cause: Option<&dyn StdError>) {
    count(Metric::Abandoned);
    tracing::warn!(
        target: TARGET, event = "not_released", %id, generation = held.lock.generation.get(),
        cause = whole(cause),
        "it's unknown whether the key is released; if it isn't, the key becomes free when the claim's lease ends; \
         under at-most-once, an operator must settle the record"
    );
}

pub(crate) fn unrecorded(id: &StoredKey, held: &Held, cause: Option<&dyn StdError>) {
    count(Metric::Unrecorded);
    tracing::error!(
        target: TARGET, event = "unrecorded", %id, generation = held.lock.generation.get(),
        cause = whole(cause),
        "the handler ran, but its outcome isn't known to be stored: a later delivery may run the handler again"
    );
}

pub(crate) fn not_retained(id: &StoredKey, bytes: Option<usize>, cause: Option<&dyn StdError>) {
    count(Metric::ResponseOmitted);
    tracing::warn!(
        target: TARGET, event = "not_retained", %id, bytes, cause = whole(cause),
        "the outcome is recorded without its response: duplicates get NotRetained"
    );
}

/// The last attempt to commit the handler's own writes failed. `is_in_doubt` says whether an earlier attempt may still
/// be applied. If so, the event leaves out the text of `error`, which may say that nothing was written.
pub(crate) fn not_committed(id: &StoredKey, error: &Error, is_in_doubt: bool) {
    let kind = error.kind();
    count(match kind {
        ErrorKind::Declined => Metric::Declined,
        // No record shows whether the writes were applied, because idempotency isn't enforced.
        ErrorKind::Unrecorded => Metric::Unresolved,
        _ => Metric::NotCommitted,
    });
    if is_in_doubt {
        tracing::warn!(
            target: TARGET, event = "not_committed", %id, kind = kind.as_str(), cause = causes(error),
            "the last attempt to commit the handler's writes failed, and an earlier attempt may still be applied"
        );
        return;
    }
    tracing::warn!(
        target: TARGET, event = "not_committed", %id, kind = kind.as_str(), cause = causes(error),
        "committing the handler's writes failed: {error}"
    );
}

/// The writes and the outcome may have been applied, or not.
pub(crate) fn unresolved(id: &StoredKey, cause: Option<&dyn StdError>) {
    count(Metric::Unresolved);
    tracing::error!(
        target: TARGET, event = "unresolved", %id, cause = whole(cause),
        "it's unknown whether the handler's writes and its outcome were applied; a later delivery resolves it"
    );
}

/// The handler ran optimistically. Its settlement is reported separately.
pub(crate) fn ran_optimistically(id: &StoredKey) {
    count(Metric::Executed);
    tracing::debug!(target: TARGET, event = "ran_optimistically", %id, "the handler ran without a claim");
}

/// The outcome of an optimistic handler is stored.
pub(crate) fn concluded(id: &StoredKey) {
    count(Metric::Recorded);
    tracing::debug!(target: TARGET, event = "concluded", %id, "recorded the outcome without a claim");
}

/// Another delivery recorded its outcome first, so this optimistic handler's writes weren't applied.
pub(crate) fn outrun(id: &StoredKey) {
    tracing::debug!(target: TARGET, event = "outrun", %id, "another delivery recorded its outcome first");
}

pub(crate) fn extended(id: &StoredKey, held: &Held) {
    count(Metric::LeaseExtended);
    tracing::debug!(
        target: TARGET, event = "extended", %id, generation = held.lock.generation.get(),
        lease_until_ms = held.lock.lease_until.as_millis(), "extended the lease"
    );
}

pub(crate) fn not_extended(id: &StoredKey, held: &Held) {
    count(Metric::LeaseNotExtended);
    tracing::warn!(
        target: TARGET, event = "not_extended", %id, generation = held.lock.generation.get(),
        ends_at_ms = held.lock.lease_until.as_millis(), "the lease isn't known to be extended"
    );
}

/// `frees_at` is when the key becomes claimable. It's `None` under at-most-once: an operator must settle the record.
pub(crate) fn abandoned(id: &StoredKey, held: &Held, frees_at: Option<Timestamp>) {
    count(Metric::Abandoned);
    let message = match frees_at {
        Some(_) => "the claim was dropped without being settled: the end of its lease frees the key",
        None => {
            "the claim was dropped without being settled: once its lease has expired, settle the record by hand; \
             `idempotency inspect` shows how"
        }
    };
    tracing::warn!(
        target: TARGET, event = "abandoned", %id, generation = held.lock.generation.get(),
        frees_at_ms = frees_at.map(Timestamp::as_millis), "{message}"
    );
}

/// The handler's process ended without an answer. `is_short` says whether the lease is known to end soon. Under
/// at-most-once, the claim stays as it is.
pub(crate) fn interrupted(
    id: &StoredKey,
    held: &Held,
    is_short: bool,
    rules: &Rules,
    cause: Option<&dyn StdError>,
) {
    count(Metric::Abandoned);
    let message = match (rules.execution, is_short) {
        _ if rules.reconcile.is_some() => {
            "the handler ended without an answer: the next attempt asks for its effect, once it may have arrived"
        }
        (Execution::AtMostOnce, _) => {
            "the handler's process ended without an answer: once the lease has expired, settle the record by hand; \
             `idempotency inspect` shows how"
        }
        (Execution::AtLeastOnce, true) => {
            "the handler's process ended without an answer: the key is free within seconds"
        }
        (Execution::AtLeastOnce, false) => {
            "the handler's process ended without an answer, and the lease isn't known to be shortened: the end of the \
             lease frees the key"
        }
    };
    tracing::warn!(
        target: TARGET, event = "interrupted", %id, generation = held.lock.generation.get(), attempt = held.lock.attempt,
        cause = whole(cause), "{message}"
    );
}

/// The remote system was asked for the effect of an earlier attempt. `status` is the record's after the answer.
pub(crate) fn asked_remotely(id: &StoredKey, held: &Held, status: Status) {
    let (generation, attempt) = (held.lock.generation.get(), held.lock.attempt);
    if status == Status::Started {
        count(Metric::Unanswered);
        tracing::warn!(
            target: TARGET, event = "unanswered", %id, generation, attempt,
            "an earlier attempt ended without an answer, and its effect isn't known yet: the next attempt asks again"
        );
        return;
    }
    count(Metric::Reconciled);
    tracing::info!(
        target: TARGET, event = "reconciled", %id, generation, attempt, status = status.as_str(),
        "an earlier attempt ended without an answer, and its effect was found: the handler didn't run"
    );
}

/// An optimistic run has no generation.
pub(crate) fn cut_off(id: &StoredKey, generation: Option<Generation>, at: Timestamp) {
    count(Metric::CutOff);
    tracing::warn!(
        target: TARGET, event = "cut_off", %id, generation = generation.map(Generation::get),
        at_ms = at.as_millis(), "the handler was cut off because its time ran out or its claim was lost"
    );
}

/// An optimistic run has no generation.
pub(crate) fn panicked(id: &StoredKey, generation: Option<Generation>) {
    count(Metric::Panicked);
    tracing::warn!(
        target: TARGET, event = "panicked", %id, generation = generation.map(Generation::get),
        "the handler panicked"
    );
}

/// The store didn't answer before the first invocation.
pub(crate) fn not_warm(error: &StoreError) {
    tracing::warn!(
        target: TARGET, event = "not_warm", cause = whole(Some(error)),
        "the store didn't answer during the init; the first invocation connects"
    );
}

/// An operator settled the record, whatever its state was.
pub(crate) fn resolved(id: &StoredKey, record: &Record) {
    count(Metric::Resolved);
    tracing::info!(
        target: TARGET, event = "resolved", %id, generation = record.generation.get(),
        status = record.status().as_str(), "an operator settled the record; any running claim is fenced"
    );
}

pub(crate) fn unprotected(reason: &'static str) {
    count(Metric::Unprotected);
    tracing::warn!(target: TARGET, event = "unprotected", reason, "the handler runs without protection");
}

/// The mode is `off` or `shadow`, so nothing protects this function. Logged once, when the function starts.
pub(crate) fn switched(mode: Mode) {
    let mode = mode.as_str();
    tracing::warn!(
        target: TARGET, event = "not_enforced", mode,
        "idempotency is not enforced: every delivery runs the handler, duplicates too. Set IDEMPOTENCY_MODE=enforce, \
         or leave it out, to protect the function"
    );
}

/// `IDEMPOTENCY_MODE=off!` switches protection off where `IDEMPOTENCY_REQUIRED=1` demands it. Logged once, when the
/// function starts.
pub(crate) fn required_overridden() {
    tracing::error!(
        target: TARGET, event = "required_overridden", mode = "off!",
        "IDEMPOTENCY_MODE=off! overrides IDEMPOTENCY_REQUIRED=1: nothing protects this function. Remove the mode when \
         the emergency is over"
    );
}

/// Counts a delivery that isn't protected.
pub(crate) fn not_enforced() {
    count(Metric::NotEnforced);
}

/// How enforcing would have treated a delivery in shadow mode.
pub(crate) enum Would {
    Run,
    TakeOver,
    /// Whether the recorded answer is the same as the handler's answer now. `None` if either answer wasn't kept.
    Replay(Option<bool>),
    /// The refusal's kind.
    Refuse(&'static str),
    /// The store failed, or was too slow.
    Unknown,
}

/// Reports how enforcing would have treated a delivery. `id` is `None` if the delivery has no key.
pub(crate) fn shadow(id: Option<&StoredKey>, would: &Would, cause: Option<&StoreError>) {
    let (does, kind, answer) = match would {
        Would::Run => ("run", None, None),
        Would::TakeOver => ("take over", None, None),
        Would::Replay(is_same) => ("replay", None, Some(is_same.map_or("unknown", same_or_not))),
        Would::Refuse(kind) => ("refuse", Some(*kind), None),
        Would::Unknown => ("unknown", None, None),
    };
    if let Some(metric) = shadow_metric(would) {
        count(metric);
    }
    if let Would::Replay(Some(false)) = would {
        count(Metric::ShadowDiffered);
    }
    let (id, cause) = (id.map(tracing::field::display), whole(cause.map(|cause| cause as _)));
    match would {
        Would::Run => tracing::debug!(
            target: TARGET, event = "shadow", id, would = does, "enforcing would have run the handler"
        ),
        Would::Unknown => tracing::warn!(
            target: TARGET, event = "shadow", id, would = does, cause,
            "a request failed or took too long, so it's unknown what enforcing would have done"
        ),
        _ => tracing::info!(
            target: TARGET, event = "shadow", id, would = does, kind, answer,
            "the handler ran and the caller got its answer; `would` says what enforcing would have done"
        ),
    }
}

const fn same_or_not(is_same: bool) -> &'static str {
    if is_same { "same" } else { "different" }
}

fn shadow_metric(would: &Would) -> Option<Metric> {
    let is = |kind: &str, other: ErrorKind| kind == other.as_str();
    Some(match would {
        Would::Run => return None,
        Would::TakeOver => Metric::ShadowTakeover,
        Would::Replay(_) => Metric::ShadowReplayed,
        Would::Refuse(kind) if is(kind, ErrorKind::InProgress) => Metric::ShadowInProgress,
        Would::Refuse(kind) if is(kind, ErrorKind::Mismatch) => Metric::ShadowMismatch,
        Would::Refuse(kind) if is(kind, ErrorKind::MissingKey) => Metric::ShadowMissingKey,
        Would::Refuse(_) => Metric::ShadowRefused,
        Would::Unknown => Metric::ShadowUnknown,
    })
}

/// Logged once for an [`Idempotency`](crate::Idempotency) and all its clones together.
pub(crate) fn unknown_deadline(settings: &Settings) {
    let lease_ms = lease_ms(settings);
    tracing::warn!(
        target: TARGET, event = "unknown_deadline", lease_ms,
        "the invocation's deadline is missing or invalid, as in some local emulators; leases use the fallback length, \
         and handlers are cut off before their lease expires. On Lambda, pass the invocation's own context"
    );
}

/// The lease's length if the deadline is unknown.
fn lease_ms(settings: &Settings) -> u64 {
    u64::try_from(settings.lease_fallback.as_millis()).unwrap_or(u64::MAX)
}
