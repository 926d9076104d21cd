//! The scenarios of the HTTP contract.

use super::*;

pub(super) fn http() -> Vec<Scenario> {
    FRONT_ENDS.into_iter().flat_map(http_at).collect()
}

/// The scenarios of the HTTP contract at one front end.
fn http_at(at: &'static str) -> Vec<Scenario> {
    let post = |steps| Http(at, Some("KEY"), "", steps);
    let refused: Settings = &[
        ("IDEMPOTENCY_EVENT", "http"),
        ("IDEMPOTENCY_KEY", "header"),
        ("IDEMPOTENCY_ON_MISSING_KEY", "refuse"),
    ];
    let passed: Settings = &[
        ("IDEMPOTENCY_EVENT", "http"),
        ("IDEMPOTENCY_KEY", "header"),
        ("IDEMPOTENCY_ON_MISSING_KEY", "pass"),
    ];
    let slow = post("effect first-sleep:8000");
    let all = vec![
        of(
            format!("{at}: replay"),
            [Send(post("effect"), Responds(201)), Send(post("effect"), RespondsAgain(201))],
            ONCE,
        )
        .with(HTTP),
        of(
            format!("{at}: text"),
            [Send(post("effect text"), Responds(201)), Send(post("effect text"), RespondsAgain(201))],
            ONCE,
        )
        .with(HTTP),
        of(
            format!("{at}: 402 is recorded"),
            [
                Send(post("effect status:402"), Responds(402)),
                Send(post("effect status:402"), RespondsAgain(402)),
            ],
            ONCE,
        )
        .with(HTTP)
        .long(),
        of(
            format!("{at}: 503 is retried"),
            [
                Send(post("first-status:503 effect"), Responds(503)),
                Send(post("first-status:503 effect"), Responds(201)),
            ],
            &[("", Exactly(2), Exactly(2))],
        )
        .with(HTTP),
        of(format!("{at}: no key, 400"), [Send(Http(at, None, "", "effect"), Declines(400, ""))], NEVER)
            .with(refused),
        of(format!("{at}: no key, passed on"), [Send(Http(at, None, "", "effect"), Responds(201))], ONCE)
            .with(passed)
            .long(),
        of(
            format!("{at}: malformed key, 400"),
            [Send(Http(at, Some("a b"), "", "effect"), Declines(400, ""))],
            NEVER,
        )
        .with(HTTP),
        of(
            format!("{at}: other body, 422"),
            [Send(post("effect"), Responds(201)), Send(post("effect effect"), Declines(422, ""))],
            ONCE,
        )
        .with(HTTP),
        of(
            format!("{at}: in progress, 409"),
            [
                Start(slow.clone()),
                Effect,
                Send(slow.clone(), Declines(409, "retry-after")),
                Finish(Responds(201)),
                Send(slow, RespondsAgain(201)),
            ],
            ONCE,
        )
        .with(HTTP)
        .concurrent(),
        of(
            format!("{at}: store down, 503"),
            [
                Break(Claim, ALL, HttpWay::ErrorBefore),
                Send(post("effect"), Declines(503, "retry-after")),
                Heal,
                Send(post("effect"), Responds(201)),
            ],
            ONCE,
        )
        .with(HTTP)
        .timeout(12),
    ];
    // The short form has all scenarios of one front end, and only the scenario `replay` of the other front ends.
    let keep = |scenario: Scenario| {
        if at == "http-api" || scenario.name.ends_with("replay") { scenario } else { scenario.long() }
    };
    all.into_iter().map(keep).collect()
}
