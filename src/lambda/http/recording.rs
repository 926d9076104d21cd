//! Decides how a key is settled: which responses are recorded.

use ::http::{Response, StatusCode};
use lambda_http::Body;

use super::{
    HttpLayer,
    answer::{Answer, Delivery, Instead, Judged, Streamed},
    response,
};
use crate::{
    error::RecordedFailure,
    failure::{ErrorPolicy, OnError},
    run::response::Verdict,
    settings::{Execution, Recording},
};

/// The statuses below 500 that release the key under at-least-once. They mean that the operation didn't begin, or
/// that the same body may succeed with other headers, with other permissions, or after a deployment.
const RELEASED: [u16; 19] =
    [401, 403, 404, 405, 406, 407, 408, 409, 411, 412, 413, 415, 421, 423, 425, 426, 428, 429, 431];

/// Whether a response with this status is the operation's outcome under at-least-once.
pub(super) fn is_outcome(status: StatusCode) -> bool {
    !status.is_server_error() && !RELEASED.contains(&status.as_u16())
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Decides how the key is settled and what the caller gets. If a failure is recorded, or the front end can't
    /// deliver the outcome, the caller gets the response that its duplicates would get.
    pub(super) fn judged<E: 'static>(
        &self,
        result: Result<Answer, E>,
        policy: ErrorPolicy,
        delivery: Option<Delivery>,
    ) -> (Verdict, Judged<E>) {
        let (verdict, instead) = self.judgement(&result, policy, delivery);
        (verdict, Judged { result, instead })
    }

    /// Returns how the key is settled, and what the caller gets in place of the handler's answer, if anything.
    fn judgement<E: 'static>(
        &self,
        result: &Result<Answer, E>,
        policy: ErrorPolicy,
        delivery: Option<Delivery>,
    ) -> (Verdict, Option<Instead>) {
        let how = match result {
            Err(_) => "the handler returned an error",
            Ok(Answer::Streamed(_, Streamed::Broken)) => "the response broke off",
            // The handler failed after a step was refused that may succeed later. `record_when` isn't asked.
            Ok(answer) if policy.is_step_refused && !policy.records() && answer.is_undecided_failure() => {
                return (Verdict::Release { interrupted: false }, None);
            }
            Ok(answer) if !self.is_outcome(answer) => return (Verdict::Release { interrupted: false }, None),
            // The front end would replace this response, and each replay of it, with a 5xx until the record expires.
            Ok(answer) if delivery.is_some_and(|delivery| answer.refused_by(delivery).is_some()) => {
                return (Verdict::CompleteOmitted, Some(Instead::NotRetained));
            }
            Ok(Answer::Whole(response)) => {
                let recorded = response::encode(response, &self.config.headers);
                return (recorded.map_or(Verdict::CompleteOmitted, Verdict::complete), None);
            }
            Ok(Answer::Streamed(..)) => return (Verdict::CompleteOmitted, None),
        };
        let on_error = match result {
            Err(error) => policy.on(error),
            Ok(_) => policy.on(&()),
        };
        let said = match on_error {
            OnError::Record(said) => said,
            OnError::Release => return (Verdict::Release { interrupted: false }, None),
            OnError::Leave => return (Verdict::Unanswered { until: None }, None),
        };
        let failure = said.unwrap_or_else(|| RecordedFailure::new("HandlerError", how));
        (Verdict::failure(&failure), Some(Instead::OperationFailed(how)))
    }

    /// Whether the answer is the operation's outcome. Calls the API's closure, so it's called once for each answer.
    fn is_outcome(&self, answer: &Answer) -> bool {
        match answer {
            Answer::Whole(response) => self.is_recorded(response),
            Answer::Streamed(_, Streamed::Broken) => false,
            // A response that wasn't read, because idempotency isn't enforced, may be an outcome too.
            Answer::Streamed(response, _) => self.is_outcome_by_head(response),
        }
    }

    fn is_recorded(&self, response: &Response<Body>) -> bool {
        match (self.is_recorded_by_head(response), &self.config.record_when) {
            (Some(is_recorded), _) => is_recorded,
            (None, Some(is_outcome)) => is_outcome(response),
            (None, None) => true,
        }
    }

    /// Whether the response is recorded; `None` if its body is needed to decide that.
    pub(super) fn is_recorded_by_head<A>(&self, response: &Response<A>) -> Option<bool> {
        let is_said = response.extensions().get::<Recording>().is_some();
        if self.config.record_when.is_some() && !is_said && !self.is_at_most_once() {
            return None;
        }
        Some(self.is_outcome_by_head(response))
    }

    /// Whether the response is an outcome: its [`Recording`] decides, or else its status. Under at-most-once, every
    /// response without a [`Recording`] is an outcome, since it may have come after an effect: a timeout layer's 408,
    /// for example.
    fn is_outcome_by_head<A>(&self, response: &Response<A>) -> bool {
        match response.extensions().get::<Recording>() {
            Some(said) => *said == Recording::Record,
            None => self.is_at_most_once() || is_outcome(response.status()),
        }
    }

    pub(super) fn is_at_most_once(&self) -> bool {
        self.idempotency.settings().execution == Execution::AtMostOnce
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{idempotency::Idempotency, store::memory::MemoryStore};

    #[test]
    fn largest_deliverable_response_is_recorded() {
        let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build().unwrap();
        let policy = ErrorPolicy {
            on_error: Recording::Release,
            execution: Execution::AtLeastOnce,
            is_step_refused: false,
        };
        let judged = |short_of: usize| {
            let response = Response::new(Body::from("paid"));
            let most = response::delivered_bytes(&response) - short_of;
            let answer = Ok::<_, std::convert::Infallible>(Answer::Whole(response));
            let layer = idempotency.http();
            let (verdict, own) = layer.judged(answer, policy, Some(Delivery { most_bytes: Some(most) }));
            let Ok(Answer::Whole(response)) = layer.answered(own, true) else {
                panic!("the response was streamed")
            };
            (matches!(verdict, Verdict::Complete(..)), response.status().as_u16())
        };
        assert_eq!([0, 1].map(judged), [(true, 200), (false, 409)]);
    }

    #[test]
    fn only_final_statuses_are_outcomes() {
        for status in [200, 201, 204, 303, 400, 402, 410, 422] {
            assert!(is_outcome(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in RELEASED.into_iter().chain([500, 502, 503, 504]) {
            assert!(!is_outcome(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
