use std::collections::BTreeMap;

use super::*;
use crate::{
    answer::HttpAnswer,
    wire::{Exchange, Meaning},
};

fn http(status: u64, headers: &[(&str, &str)], body: &str) -> Answer {
    let headers: BTreeMap<_, _> =
        headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Answer::Http(HttpAnswer { status, headers, body: body.into() })
}

fn replay(body: &str) -> Answer {
    http(201, &[("idempotent-replayed", "true")], body)
}

fn request(meaning: Meaning, status: u16, first_attempt: bool) -> Exchange {
    Exchange { first_attempt, ..Exchange::answered_with(meaning, status) }
}

fn judged(judge: impl FnOnce(&mut Verdict) -> &mut Verdict) -> String {
    let mut verdict = Verdict::default();
    judge(&mut verdict);
    verdict.faults().join("; ")
}

#[test]
fn only_wrong_counts_are_reported() {
    let ok = 200;
    let passed = vec![
        request(Meaning::Claim, ok, true),
        request(Meaning::Claim, 400, false),
        request(Meaning::Complete, ok, true),
    ];
    let measured = Measured { runs: Some(2), payments: Some(0), passed };
    let right = |verdict: &mut Verdict| {
        verdict.runs(&measured, 2).payments(&measured, 0).requests(&measured, 2);
        verdict.claims(&measured, 1).settled(&measured, 1);
    };
    let mut verdict = Verdict::default();
    right(&mut verdict);
    assert_eq!(verdict.faults(), Vec::<String>::new());

    assert_eq!(judged(|verdict| verdict.runs(&measured, 1)), "the handler ran 2 times (expected 1)");
    assert_eq!(judged(|verdict| verdict.payments(&measured, 1)), "no payment was made (expected 1)");
    assert_eq!(
        judged(|verdict| verdict.requests(&measured, 1)),
        "2 requests were sent to the store (expected 1)"
    );
    assert_eq!(judged(|verdict| verdict.claims(&measured, 2)), "1 claim was won (expected 2)");
    assert_eq!(judged(|verdict| verdict.settled(&measured, 0)), "1 claim was settled (expected 0)");
}

#[test]
fn missing_counts_are_not_judged() {
    let measured = Measured::default();
    assert_eq!(judged(|verdict| verdict.runs(&measured, 1).payments(&measured, 1)), "");
}

#[test]
fn missing_claims_are_explained() {
    let words = judged(|verdict| verdict.claims(&Measured::default(), 1));
    assert_eq!(
        words,
        "no request to DynamoDB: the function isn't wrapped, finds no key in the event, or has another store"
    );
}

#[test]
fn first_answer_is_not_a_replay() {
    assert_eq!(judged(|verdict| verdict.fresh(&http(201, &[], ""), Some(201))), "");
    assert_eq!(judged(|verdict| verdict.fresh(&Answer::Payload(vec![1]), None)), "");
    let wrong = judged(|verdict| verdict.fresh(&http(500, &[], "boom"), Some(201)));
    assert_eq!(wrong, "expected 201, got 500 (boom)");
    let replayed = judged(|verdict| verdict.fresh(&replay(""), Some(201)));
    assert_eq!(replayed, "the answer is marked as a replay, but isn't one");
    let error = Answer::Error { kind: "Oops".into(), message: "it broke".into() };
    let failed = judged(|verdict| verdict.fresh(&error, None));
    assert_eq!(failed, "expected success, got function error Oops (it broke)");
}

#[test]
fn replay_repeats_outcome_and_is_marked() {
    let first = http(201, &[], "a");
    assert_eq!(judged(|verdict| verdict.replay(&first, &replay("a"))), "");
    let unmarked = judged(|verdict| verdict.replay(&first, &http(201, &[], "a")));
    assert_eq!(unmarked, "the replay isn't marked `Idempotent-Replayed: true`");
    let other = judged(|verdict| verdict.replay(&first, &replay("b")));
    assert_eq!(other, "expected the recorded answer, got 201, replayed");
}

#[test]
fn each_refusal_kind_is_recognised() {
    let conflict = http(409, &[("retry-after", "3")], "");
    assert_eq!(judged(|verdict| verdict.in_progress(&conflict)), "");
    let vague = judged(|verdict| verdict.in_progress(&http(409, &[], "")));
    assert_eq!(vague, "expected the refusal InProgress (HTTP: 409 with Retry-After), got 409");

    let problem = [("content-type", "application/problem+json")];
    assert_eq!(judged(|verdict| verdict.mismatch(&http(422, &problem, "{\"code\":\"key-reused\"}"))), "");
    let replayed = judged(|verdict| verdict.mismatch(&replay("")));
    assert_eq!(replayed, "expected 422 key-reused, got 201, replayed");
}

#[test]
fn concurrent_deliveries_have_one_winner() {
    let refused = http(409, &[("retry-after", "3")], "");
    let fine = [http(201, &[], "a"), replay("a"), refused.clone(), refused.clone()];
    assert_eq!(judged(|verdict| verdict.one_of_many(&fine)), "");
    assert_eq!(Crowd::of(&fine).summary(), "1 × first, 1 × replayed, 2 × 409");

    let twice = [http(201, &[], "a"), http(201, &[], "b"), refused.clone()];
    let words = judged(|verdict| verdict.one_of_many(&twice));
    assert_eq!(
        words,
        "2 answers were from a first run (expected 1); the successful answers have different outcomes"
    );

    let broken = [http(201, &[], "a"), http(500, &[], "boom")];
    let words = judged(|verdict| verdict.one_of_many(&broken));
    assert_eq!(words, "1 answer was neither the outcome nor the refusal InProgress, for example 500 (boom)");

    let nobody = [refused.clone(), refused];
    assert_eq!(judged(|verdict| verdict.one_of_many(&nobody)), "no answer was from a first run (expected 1)");
}

/// The answer to a batch doesn't show whether its records were run or replayed.
#[test]
fn batch_answers_are_done_or_refused() {
    let answers = [Answer::Batch(Vec::new()), Answer::Batch(Vec::new()), Answer::Batch(vec!["m-1".into()])];
    assert_eq!(Crowd::of(&answers).summary(), "2 × done, 1 × refused");
}

#[test]
fn resent_transaction_counts_as_one_settlement() {
    let with = |token: &str| Exchange { token: Some(token.into()), ..request(Meaning::Complete, 200, true) };
    let again = Measured { passed: vec![with("a"), with("a")], ..Measured::default() };
    assert_eq!(again.settled(), 1);
    let another = Measured { passed: vec![with("a"), with("b")], ..Measured::default() };
    assert_eq!(another.settled(), 2);
}
