//! Compares measurements with expectations, and describes the differences.

use super::{answer::Answer, measured::Measured};

/// The faults of a row; empty if the row is OK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    faults: Vec<String>,
    requirements: Vec<String>,
}

impl Verdict {
    /// The faults, in words.
    pub(crate) fn faults(self) -> Vec<String> {
        self.faults
    }

    /// The requirements so far, in words.
    pub(crate) fn requirements(&self) -> Vec<String> {
        self.requirements.clone()
    }

    /// Notes what the next check requires, in words.
    pub(crate) fn requires(&mut self, what: impl Into<String>) -> &mut Self {
        self.requirements.push(what.into());
        self
    }

    /// Adds a fault unless the condition holds.
    pub(crate) fn must(&mut self, holds: bool, otherwise: impl FnOnce() -> String) -> &mut Self {
        if !holds {
            self.faults.push(otherwise());
        }
        self
    }

    /// The handler must have run this many times. Passes if runs can't be counted.
    pub(crate) fn runs(&mut self, measured: &Measured, must_be: usize) -> &mut Self {
        if measured.runs.is_some() {
            self.requires(match must_be {
                0 => "the handler doesn't run".into(),
                more => format!("the handler runs {}", times(more)),
            });
        }
        let runs = measured.runs.unwrap_or(must_be);
        self.must(runs == must_be, || format!("the handler ran {} (expected {must_be})", times(runs)))
    }

    /// The function must have made this many payments.
    pub(crate) fn payments(&mut self, measured: &Measured, must_be: usize) -> &mut Self {
        if measured.payments.is_some() {
            self.requires(format!("{} made", several(must_be, "payment")));
        }
        let made = measured.payments.unwrap_or(must_be);
        self.must(made == must_be, || format!("{} made (expected {must_be})", several(made, "payment")))
    }

    /// The function must have sent this many requests to the store. `must_be` counts only the protocol's requests, so
    /// retries by the SDK are left out.
    pub(crate) fn requests(&mut self, measured: &Measured, must_be: usize) -> &mut Self {
        let sent = measured.requests().filter(|one| one.first_attempt).count();
        self.must(sent == must_be, || {
            format!("{} sent to the store (expected {must_be})", several(sent, "request"))
        })
    }

    /// The example function must have sent this many requests to the store. A user's function passes with any number:
    /// it may send more, to store its response in chunks, or fewer, if it replays from its local cache.
    pub(crate) fn example_requests(&mut self, measured: &Measured, must_be: usize) -> &mut Self {
        if measured.payments.is_some() { self.requests(measured, must_be) } else { self }
    }

    /// The function must have won this many claims.
    pub(crate) fn claims(&mut self, measured: &Measured, must_be: usize) -> &mut Self {
        self.requires(format!("{} accepted", several(must_be, "claim")));
        let won = measured.claims_won();
        self.must(won == must_be, || match (won, measured.requests().next()) {
            (0, None) => {
                "no request to DynamoDB: the function isn't wrapped, finds no key in the event, or has another store".into()
            }
            (0, Some(_)) if must_be > 0 && measured.settled() > 0 => {
                "no claim was won, but an outcome was recorded: the function runs without claims (`optimistic`), which \
                 the rehearsal can't check"
                    .into()
            }
            _ if must_be > 0 && won > must_be => format!(
                "{won} claims were won (expected {must_be}): the deliveries have different keys, or the function has \
                 several operations, which the rehearsal can't check"
            ),
            _ => format!("{} won (expected {must_be})", several(won, "claim")),
        })
    }

    /// The function must have settled this many claims.
    pub(crate) fn settled(&mut self, measured: &Measured, must_be: usize) -> &mut Self {
        self.requires(format!("{} recorded", several(must_be, "outcome")));
        let settled = measured.settled();
        self.must(settled == must_be, || {
            format!("{} settled (expected {must_be})", several(settled, "claim"))
        })
    }

    /// The response must have this status, or for `None` be any success. It mustn't be marked as a replay.
    pub(crate) fn fresh(&mut self, answer: &Answer, must_be: Option<u64>) -> &mut Self {
        let right = match must_be {
            Some(status) => answer.http().is_some_and(|http| http.status == status),
            None => answer.is_success(),
        };
        let wanted = must_be.map_or_else(|| "success".into(), |status| status.to_string());
        self.requires(format!("the answer is {wanted}, and not a replay"));
        self.must(right, || format!("expected {wanted}, got {}", in_full(answer)));
        self.must(!answer.is_marked_replay(), || "the answer is marked as a replay, but isn't one".into())
    }

    /// The response `again` must have the outcome of `first`. For HTTP, it must be marked as a replay.
    pub(crate) fn replay(&mut self, first: &Answer, again: &Answer) -> &mut Self {
        self.requires("the answer is the recorded one");
        if !again.same_outcome(first) {
            let fault = format!("expected the recorded answer, got {}", in_full(again));
            return self.must(false, || fault);
        }
        let marked = again.http().is_none() || again.is_marked_replay();
        self.must(marked, || "the replay isn't marked `Idempotent-Replayed: true`".into())
    }

    /// The response must be the refusal InProgress.
    pub(crate) fn in_progress(&mut self, answer: &Answer) -> &mut Self {
        self.requires("the answer says that the request is in progress");
        self.must(answer.is_in_progress(), || {
            format!("expected the refusal InProgress (HTTP: 409 with Retry-After), got {}", in_full(answer))
        })
    }

    /// The response must say that an earlier run's outcome is unknown.
    pub(crate) fn unknown(&mut self, answer: &Answer) -> &mut Self {
        self.requires("the answer says that the outcome is unknown");
        self.must(answer.is_unknown(), || {
            format!("expected the refusal OutcomeUnknown, got {}", in_full(answer))
        })
    }

    /// The response must refuse to reuse the key for another payload.
    pub(crate) fn mismatch(&mut self, answer: &Answer) -> &mut Self {
        let code = answer.http().filter(|http| http.status == 422).and_then(|http| http.problem_code());
        self.requires("the answer refuses the key");
        self.must(code.as_deref() == Some("key-reused"), || {
            format!("expected 422 key-reused, got {}", in_full(answer))
        })
    }

    /// One of the concurrent deliveries must have run. The others must get a replay of its outcome, or the refusal
    /// InProgress.
    pub(crate) fn one_of_many(&mut self, answers: &[Answer]) -> &mut Self {
        self.requires("one delivery runs, and the others get its outcome or `in progress`");
        let crowd = Crowd::of(answers);
        if let Some(odd) = crowd.odd.first() {
            let (count, example) = (several(crowd.odd.len(), "answer"), in_full(odd));
            self.must(false, || {
                format!("{count} neither the outcome nor the refusal InProgress, for example {example}")
            });
        }
        // If the answers aren't marked, a first response and its replay look the same.
        let firsts = if crowd.marked { crowd.firsts == 1 } else { crowd.firsts >= 1 };
        self.must(firsts, || format!("{} from a first run (expected 1)", several(crowd.firsts, "answer")));
        self.must(crowd.agree, || "the successful answers have different outcomes".into())
    }
}

/// The responses to many concurrent deliveries, counted by kind.
#[derive(Debug)]
pub(crate) struct Crowd<'a> {
    /// Successes that aren't marked as replays.
    pub(crate) firsts: usize,
    /// Replays.
    pub(crate) replays: usize,
    /// Refusals with InProgress.
    pub(crate) refused: usize,
    /// Anything else.
    pub(crate) odd: Vec<&'a Answer>,
    agree: bool,
    marked: bool,
}

impl<'a> Crowd<'a> {
    /// Counts the responses by kind.
    pub(crate) fn of(answers: &'a [Answer]) -> Self {
        let (outcomes, others): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.is_success());
        let (refused, odd): (Vec<_>, Vec<_>) = others.into_iter().partition(|answer| answer.is_in_progress());
        let replays = outcomes.iter().filter(|answer| answer.is_marked_replay()).count();
        Self {
            firsts: outcomes.len() - replays,
            replays,
            refused: refused.len(),
            odd,
            agree: outcomes.windows(2).all(|pair| pair[0].same_outcome(pair[1])),
            marked: outcomes.iter().all(|answer| answer.http().is_some()),
        }
    }

    /// A summary for the table. Only an HTTP response shows whether it's a replay.
    pub(crate) fn summary(&self) -> String {
        let parts = [
            (self.firsts, if self.marked { "first" } else { "done" }),
            (self.replays, "replayed"),
            (self.refused, if self.marked { "409" } else { "refused" }),
            (self.odd.len(), "other"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        parts.map(|(count, what)| format!("{count} × {what}")).collect::<Vec<_>>().join(", ")
    }
}

/// Formats a response with its error message or its body, for a fault.
fn in_full(answer: &Answer) -> String {
    match answer {
        Answer::Error { message, .. } => format!("{answer} ({message})"),
        Answer::Http(http) if http.status >= 400 && !http.body.is_empty() => {
            let body: String = http.body.chars().take(160).collect();
            format!("{answer} ({body})")
        }
        _ => answer.to_string(),
    }
}

fn times(count: usize) -> String {
    match count {
        1 => "once".into(),
        more => format!("{more} times"),
    }
}

fn several(count: usize, thing: &str) -> String {
    match count {
        0 => format!("no {thing} was"),
        1 => format!("1 {thing} was"),
        more => format!("{more} {thing}s were"),
    }
}

#[cfg(test)]
mod tests;
