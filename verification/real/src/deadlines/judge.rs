//! Judges an invocation from outside: when it was answered, what the answer says, and what its handler did.

use std::time::Duration;

/// The answer that the caller got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

/// The facts about an invocation and about the later delivery of the same request.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// The answer that the caller got. `None` if there was none by the deadline: Lambda would have killed the
    /// invocation.
    pub(super) answer: Option<Answer>,
    /// The handler's response, if this invocation runs the handler.
    pub(super) response: String,
    pub(super) took: Duration,
    /// How often the handler had run before the later delivery.
    pub(super) effects: u64,
    /// Whether the outcome was recorded before the later delivery. The harness reads the record after the server has
    /// received the requests that the proxy held until the answer.
    pub(super) is_recorded: bool,
    /// Whether the wire recovered long before the deadline. If so, the handler's outcome must be recorded.
    pub(super) must_be_recorded: bool,
    /// Whether "in progress" is a valid answer. It is if the fault is a conflict with another transaction.
    pub(super) may_be_in_progress: bool,
    /// The answer to the later delivery, which comes after all leases have ended.
    pub(super) again: Option<Answer>,
    /// How often the handler had run after the later delivery.
    pub(super) effects_in_the_end: u64,
}

/// The judge's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Answered in time and truthfully.
    True,
    /// Not answered by the deadline.
    Killed,
    /// Answered in time but wrongly, with the reason.
    False(String),
}

impl Evidence {
    pub(super) fn judge(&self) -> Verdict {
        let Some(answer) = &self.answer else { return Verdict::Killed };
        let Self { effects, effects_in_the_end, again, .. } = self;
        let is_success = *answer == Answer { status: 201, body: self.response.clone() };
        let says_nothing_ran = answer.status == 503 || answer.status == 409 && self.may_be_in_progress;
        let problem = if is_success && *effects != 1 {
            format!("the caller got the handler's response, but the handler ran {effects} times")
        } else if says_nothing_ran && *effects != 0 {
            format!("the answer is {}, but the handler ran {effects} times", answer.status)
        } else if !is_success && !says_nothing_ran {
            format!("the answer is neither the handler's response nor a refusal: {answer:?}")
        } else if *effects == 1 && self.must_be_recorded && !self.is_recorded {
            "the outcome isn't recorded, but the wire recovered in time".to_owned()
        } else if again.as_ref().is_none_or(|again| again.status != 201) {
            format!("the next delivery must succeed, but its answer was {again:?}")
        } else if self.is_recorded && (again.as_ref() != Some(answer) || *effects_in_the_end != 1) {
            format!(
                "the outcome is recorded, but the next delivery's answer was {again:?}, and the handler ran \
                 {effects_in_the_end} times in total"
            )
        } else if *effects_in_the_end != effects + u64::from(!self.is_recorded) {
            format!("the next delivery raised the handler's runs from {effects} to {effects_in_the_end}")
        } else {
            return Verdict::True;
        };
        Verdict::False(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Option<Answer> {
        Some(Answer { status: 201, body: "run 1".into() })
    }

    fn refused(status: u16) -> Option<Answer> {
        Some(Answer { status, body: "problem".into() })
    }

    /// The handler ran, its outcome was recorded, and the caller got it.
    fn recorded() -> Evidence {
        Evidence {
            answer: own(),
            response: "run 1".into(),
            took: Duration::from_millis(5),
            effects: 1,
            is_recorded: true,
            must_be_recorded: true,
            may_be_in_progress: false,
            again: own(),
            effects_in_the_end: 1,
        }
    }

    /// The handler didn't run, and the answer said so.
    fn unavailable() -> Evidence {
        let again = Some(Answer { status: 201, body: "run 2".into() });
        Evidence { answer: refused(503), effects: 0, is_recorded: false, again, ..recorded() }
    }

    #[test]
    fn correct_answers_pass() {
        let again = unavailable().again;
        for evidence in [
            recorded(),
            unavailable(),
            Evidence { answer: refused(409), may_be_in_progress: true, ..unavailable() },
            // The store was unreachable until the end. The caller got the response, and the next delivery ran the
            // handler again.
            Evidence {
                is_recorded: false,
                must_be_recorded: false,
                again,
                effects_in_the_end: 2,
                ..recorded()
            },
        ] {
            assert_eq!(evidence.judge(), Verdict::True, "{evidence:?}");
        }
    }

    #[test]
    fn wrong_answers_are_found() {
        let again = unavailable().again;
        for evidence in [
            Evidence { is_recorded: false, again, effects_in_the_end: 2, ..recorded() },
            Evidence { answer: refused(503), ..recorded() },
            Evidence { answer: refused(500), ..recorded() },
            Evidence { answer: own(), ..unavailable() },
            Evidence { answer: refused(409), ..unavailable() },
            Evidence { answer: refused(500), ..unavailable() },
            Evidence { effects: 2, ..recorded() },
            Evidence { again: refused(409), ..recorded() },
            Evidence { again: None, ..unavailable() },
            Evidence { effects_in_the_end: 2, ..recorded() },
            Evidence { effects_in_the_end: 2, ..unavailable() },
            Evidence { answer: Some(Answer { status: 201, body: "run 7".into() }), ..recorded() },
        ] {
            assert!(matches!(evidence.judge(), Verdict::False(_)), "{evidence:?}");
        }
        assert_eq!(Evidence { answer: None, ..recorded() }.judge(), Verdict::Killed);
    }
}
