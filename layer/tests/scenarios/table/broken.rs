//! The scenarios of killed processes and of a broken store.

use super::*;

/// Kills the layer or the function at ten points. The timeout is short, because the next delivery can't take over
/// before the claim is stale, 4 s after the deadline.
pub(super) fn kills() -> Vec<Scenario> {
    let slow = || Plain("", "effect first-sleep:4000");
    let twice: &[(&str, Count, Count)] = &[("", Exactly(2), Exactly(2))];
    let killed = |name: &str, steps: Vec<Step>, totals| of(name, steps, totals).timeout(5).on_demand();
    vec![
        killed(
            "layer killed before the claim",
            vec![
                Break(Claim, ALL, HttpWay::HangBefore),
                Start(EFFECT),
                Arrives(Claim),
                KillLayer,
                Finish(Dies),
                Heal,
                Until(EFFECT, Runs),
                Send(EFFECT, Replays),
            ],
            ONCE,
        ),
        killed(
            "layer killed after the claim",
            vec![
                Break(Claim, ALL, HttpWay::HangAfter),
                Start(EFFECT),
                Arrives(Claim),
                Pause(150),
                KillLayer,
                Finish(Dies),
                Heal,
                Until(EFFECT, Runs),
            ],
            ONCE,
        ),
        killed(
            "function killed before the effect",
            vec![Send(Plain("", "first-kill effect"), Dies), Until(Plain("", "first-kill effect"), Runs)],
            &[("", Exactly(2), Exactly(1))],
        ),
        killed(
            "function killed after the effect",
            vec![Send(Plain("", "effect first-kill"), Dies), Until(Plain("", "effect first-kill"), Runs)],
            twice,
        ),
        killed(
            "function killed from outside",
            vec![Start(slow()), Effect, KillFunction, Finish(Dies), Until(slow(), Runs)],
            twice,
        ),
        killed(
            "layer killed after the effect",
            vec![Start(slow()), Effect, KillLayer, Finish(Dies), Until(slow(), Runs)],
            twice,
        ),
        killed(
            "layer killed before recording",
            vec![
                Break(Complete, ALL, HttpWay::HangBefore),
                Start(EFFECT),
                Arrives(Complete),
                KillLayer,
                Finish(Dies),
                // The layer may have sent its second attempt just before its end. The wire must lose that one too.
                Pause(250),
                Heal,
                Until(EFFECT, Runs),
            ],
            twice,
        ),
        killed(
            "layer killed after recording",
            vec![
                Break(Complete, ALL, HttpWay::HangAfter),
                Start(EFFECT),
                Arrives(Complete),
                Pause(150),
                KillLayer,
                Finish(Dies),
                Heal,
                Until(EFFECT, Answers),
                Send(EFFECT, Replays),
            ],
            ONCE,
        ),
        killed(
            "layer killed after its answer",
            vec![
                Send(EFFECT, Runs),
                KillLayer,
                Pause(100),
                Send(EFFECT, Anything),
                Until(EFFECT, Replays),
                Send(EFFECT, Replays),
            ],
            ONCE,
        ),
        killed(
            "function killed after its answer",
            vec![
                Send(EFFECT, Runs),
                KillFunction,
                Pause(100),
                Send(EFFECT, Anything),
                Until(EFFECT, Replays),
                Send(EFFECT, Replays),
            ],
            ONCE,
        ),
    ]
}

/// The layer's answer at the last moment must come before the emulator ends the function, also on a busy machine.
const EARLY: Settings = &[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ANSWER_RESERVE", "2s")];

pub(super) fn outages() -> Vec<Scenario> {
    let down = |name: &str, fault| {
        of(
            format!("store down: {name}"),
            [
                Break(Claim, ALL, fault),
                Send(EFFECT, Refuses("Unavailable")),
                Heal,
                Until(EFFECT, Runs),
                Send(EFFECT, Replays),
            ],
            ONCE,
        )
        .timeout(20)
    };
    let recording = |name: &str, fault| {
        of(
            format!("store down while recording: {name}"),
            [
                Break(Complete, ALL, fault),
                Send(EFFECT, Runs),
                Heal,
                Until(EFFECT, Answers),
                Send(EFFECT, Replays),
            ],
            &[("", Between(1, 2), Between(1, 2))],
        )
        .with(EARLY)
        .timeout(8)
        .on_demand()
    };
    vec![
        down("refused", HttpWay::CutBefore).with(EARLY).timeout(8).on_demand(),
        down("500", HttpWay::ErrorBefore),
        down("throttled", HttpWay::Throttle),
        down("silent", HttpWay::HangBefore).with(EARLY).timeout(8).on_demand(),
        of("store down, passed on", [Break(Claim, ALL, HttpWay::ErrorBefore), Send(EFFECT, Runs)], ONCE)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_STORE_FAILURE", "pass")])
            .timeout(6)
            .on_demand(),
        recording("refused", HttpWay::CutBefore),
        recording("500", HttpWay::ErrorBefore).long(),
        recording("throttled", HttpWay::Throttle).long(),
        recording("silent", HttpWay::HangBefore).long(),
    ]
}

/// Causes each fault of the wire twice: once at the claim, and once at the recording.
pub(super) fn faults() -> Vec<Scenario> {
    let at = |place: &str, meaning, fault: HttpWay| {
        let steps = vec![
            Break(meaning, 1, fault),
            Send(EFFECT, Anything),
            Heal,
            Deliver(When::AfterAnswer),
            Until(EFFECT, Answers),
            Deliver(When::AfterRedelivery),
            Send(EFFECT, Replays),
        ];
        let short = matches!(fault, HttpWay::CutAfter | HttpWay::Throttle | HttpWay::Late(When::Soon));
        // If the claim's response is lost, the layer may refuse the first delivery. In any case, the function must run
        // exactly once.
        let scenario = of(format!("{place}: {fault}"), steps, ONCE).timeout(8).on_demand();
        if short { scenario } else { scenario.long() }
    };
    let claim = HttpWay::ALL.into_iter().map(|fault| at("claim", Claim, fault));
    let record = HttpWay::ALL.into_iter().map(|fault| at("record", Complete, fault));
    claim.chain(record).collect()
}
