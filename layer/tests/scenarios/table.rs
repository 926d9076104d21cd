//! The scenarios.

mod batches;
mod broken;
mod http;

use lambda_idempotency_verification_real::wire::{
    HttpWay,
    Meaning::{Claim, Complete},
    When,
};
use testkit::front_ends::FRONT_ENDS;

use crate::{
    runtime::Runtime,
    sandbox::Mode,
    scenario::{
        Count::{self, Between, Exactly},
        Event::{self, Batch, Http, Identified, Padded, Plain, With},
        Only, Scenario,
        Source::{DynamoDb, Fifo, Kinesis, Sqs},
        Step::{
            self, Arrives, AtOnce, Break, Deliver, Effect, Finish, Heal, KillFunction, KillLayer, Pause,
            Restart, Send, Start, Until,
        },
        Then::{
            Answers, Anything, Declines, Dies, Fail, Fails, Refuses, Replays, Responds, RespondsAgain, Runs,
            RunsWith, Throws, TimesOut,
        },
    },
};

type Settings = &'static [(&'static str, &'static str)];

const BY_ID: Settings = &[("IDEMPOTENCY_KEY", "/id")];
const HTTP: Settings = &[("IDEMPOTENCY_EVENT", "http"), ("IDEMPOTENCY_KEY", "header")];
const SQS: Settings = &[("IDEMPOTENCY_EVENT", "sqs"), ("IDEMPOTENCY_KEY", "/id")];
const ONCE: &[(&str, Count, Count)] = &[("", Exactly(1), Exactly(1))];
const NEVER: &[(&str, Count, Count)] = &[("", Exactly(0), Exactly(0))];

/// How many requests to break if none may succeed: more than any call sends with its retries.
const ALL: usize = 10_000;

/// An event that makes the function have one effect.
const EFFECT: Event = Plain("", "effect");

/// Every scenario.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let whole = [runs(), errors(), settings(), shadow(), payloads(), batches::batches(), http::http()];
    let broken = [broken::kills(), broken::outages(), broken::faults()];
    whole.into_iter().chain(broken).flatten().collect()
}

/// The scenarios without the layer, which show what the emulator, the client and the function do alone.
pub(crate) fn baseline() -> Vec<Scenario> {
    vec![
        of("first run", [Send(EFFECT, Runs)], ONCE),
        of("duplicate runs again", [Send(EFFECT, Runs), Send(EFFECT, Runs)], &[("", Exactly(2), Exactly(2))]),
        of("error", [Send(Plain("", "effect error:Declined"), Throws("Declined"))], ONCE),
        of("exit", [Send(Plain("", "effect exit:3"), Dies)], ONCE).on_demand(),
        of("kill", [Send(Plain("", "effect kill"), Dies)], ONCE).on_demand(),
        // On Managed Instances, the emulator's limit for the function's start is the timeout, too.
        of("timeout", [Send(Plain("", "effect sleep:6500"), TimesOut)], ONCE).timeout(5).on_demand(),
        of("6 MB answer", [Send(Plain("", "effect big:5900000"), Runs)], ONCE),
        of("6 MB event", [Send(Padded("", "effect", 5_900_000), Runs)], ONCE),
        of("1 MiB error cause", [Send(Plain("", "effect error:Declined:900000"), Throws("Declined"))], ONCE)
            .except_node_managed(),
        of("streaming", [Send(Plain("", "effect big:200000"), Runs)], ONCE).streaming(),
        of("init error", [Send(EFFECT, Fails)], NEVER).with(&[("INIT", "error")]).on_demand(),
        of("context", [Send(Identified("", "context"), RunsWith("\"tenant\":\"tenant-7\""))], &[])
            .on_demand(),
        of("batch", [Send(Batch(Sqs, &[("a", "effect"), ("b", "error:Declined")]), Fail(&["b"]))], &[]),
        of("HTTP", [Send(Http("http-api", None, "", "effect"), Responds(201))], ONCE),
    ]
}

fn of(
    name: impl Into<String>,
    steps: impl Into<Vec<Step>>,
    totals: &[(&'static str, Count, Count)],
) -> Scenario {
    Scenario {
        name: name.into(),
        settings: BY_ID,
        handler: "handler",
        timeout: 20,
        steps: steps.into(),
        totals: totals.to_vec(),
        order: None,
        requests: None,
        writes: None,
        only: Only::default(),
        is_short: true,
    }
}

impl Scenario {
    fn with(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = seconds;
        self
    }

    fn on_demand(mut self) -> Self {
        self.only.mode = Some(Mode::OnDemand);
        self
    }

    fn managed(mut self) -> Self {
        self.only.mode = Some(Mode::ManagedInstances);
        self
    }

    fn streaming(mut self) -> Self {
        (self.handler, self.only.needs_streaming) = ("stream", true);
        self
    }

    /// Leaves out Managed Instances for clients that don't ask for several invocations at a time.
    fn concurrent(mut self) -> Self {
        self.only.needs_concurrency = true;
        self
    }

    /// Keeps only the runtimes whose client reports the error type that the event names, without changing it.
    fn plain_types(mut self) -> Self {
        self.only.runtimes = Some(&[Runtime::Python, Runtime::Node, Runtime::Go, Runtime::Rust]);
        self
    }

    /// Leaves out Node on Managed Instances, where the emulator refuses an error of more than 1 MiB. Node's client puts
    /// the message into the error twice.
    fn except_node_managed(mut self) -> Self {
        self.only.except = Some((Runtime::Node, Mode::ManagedInstances));
        self
    }

    fn requests(mut self, count: usize) -> Self {
        self.requests = Some(count);
        self
    }

    fn writes(mut self, text: &'static str) -> Self {
        self.writes = Some(text);
        self
    }

    fn order(mut self, keys: &'static [&'static str]) -> Self {
        self.order = Some(keys);
        self
    }

    /// Leaves the scenario out of the short form of the table.
    fn long(mut self) -> Self {
        self.is_short = false;
        self
    }
}

fn runs() -> Vec<Scenario> {
    let slow = Plain("", "sleep:400 effect");
    let other = With("", "effect", r#"{"at":"noon"}"#);
    vec![
        of("first run", [Send(EFFECT, Runs)], ONCE).requests(2),
        of("duplicate", [Send(EFFECT, Runs), Send(EFFECT, Replays), Send(EFFECT, Replays)], ONCE).requests(4),
        of("another key", [Send(EFFECT, Runs), Send(Plain("-b", "effect"), Runs)], ONCE),
        of("20 at once", [AtOnce(20, slow.clone()), Send(slow.clone(), Replays)], ONCE),
        of("20 at once, waiting", [AtOnce(20, slow.clone())], ONCE)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:15s")]),
        of(
            "in progress",
            [
                Start(Plain("", "effect first-sleep:8000")),
                Effect,
                Send(Plain("", "effect first-sleep:8000"), Refuses("InProgress")),
                Finish(Runs),
            ],
            ONCE,
        )
        .concurrent(),
        of(
            "mismatch",
            [Send(EFFECT, Runs), Send(other.clone(), Refuses("Mismatch")), Send(EFFECT, Replays)],
            ONCE,
        ),
        of("compare one field", [Send(EFFECT, Runs), Send(other.clone(), Replays)], ONCE)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_COMPARE", "/do")]),
        of(
            "key of two fields",
            [
                Send(With("", "effect", r#"{"at":"noon"}"#), Runs),
                Send(With("", "effect", r#"{"at":"night"}"#), Runs),
                Send(With("", "effect", r#"{"at":"night"}"#), Replays),
            ],
            &[("", Exactly(2), Exactly(2))],
        )
        .with(&[("IDEMPOTENCY_KEY", "/id,/at")]),
        of("key by JMESPath", [Send(EFFECT, Runs), Send(EFFECT, Replays)], ONCE)
            .with(&[("IDEMPOTENCY_KEY", "jmespath:[id, do]")]),
    ]
}

fn errors() -> Vec<Scenario> {
    let once = |steps| Plain("", steps);
    vec![
        of(
            "error, retried",
            [
                Send(once("first-error:Unavailable effect"), Throws("Unavailable")),
                Send(once("first-error:Unavailable effect"), Runs),
                Send(once("first-error:Unavailable effect"), Replays),
            ],
            &[("", Exactly(2), Exactly(1))],
        ),
        of(
            "error, recorded",
            [
                Send(once("effect error:Declined"), Throws("Declined")),
                Send(once("effect error:Declined"), Throws("Declined")),
            ],
            ONCE,
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_ERROR", "record")]),
        of(
            "error, recorded by type",
            [
                Send(once("effect error:Declined"), Throws("Declined")),
                Send(once("effect error:Declined"), Throws("Declined")),
            ],
            ONCE,
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_ERROR", "record:Declined,Refused")])
        .plain_types(),
        of(
            "error of another type",
            [
                Send(once("first-error:Unavailable effect"), Throws("Unavailable")),
                Send(once("first-error:Unavailable effect"), Runs),
            ],
            &[("", Exactly(2), Exactly(1))],
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_ERROR", "record:Declined,Refused")])
        .plain_types(),
        of(
            "error, released by type",
            [
                Send(once("first-error:Unavailable effect"), Throws("Unavailable")),
                Send(once("first-error:Unavailable effect"), Runs),
            ],
            &[("", Exactly(2), Exactly(1))],
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_ERROR", "release:Unavailable")])
        .plain_types(),
        of(
            "1 MiB error cause",
            [
                Send(once("effect error:Declined:900000"), Throws("Declined")),
                Send(once("effect error:Declined:900000"), Throws("Declined")),
            ],
            &[("", Exactly(2), Exactly(2))],
        )
        .except_node_managed(),
        of("init error", [Send(EFFECT, Fails)], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("INIT", "error")])
            .requests(0)
            .on_demand(),
        of("exit during init", [Send(EFFECT, Fails)], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("INIT", "exit")])
            .requests(0)
            .on_demand(),
        of(
            "timeout",
            [Send(once("first-sleep:6500 effect"), TimesOut), Until(once("first-sleep:6500 effect"), Runs)],
            &[("", Exactly(2), Exactly(1))],
        )
        .timeout(5)
        .on_demand(),
        of(
            "late response",
            [
                Send(once("effect sleep:17000"), TimesOut),
                // The function's answer comes 2 s after the timeout, and the layer records it.
                Arrives(Complete),
                Pause(500),
                // The same process runs this event: on Managed Instances, a process survives a timeout.
                Send(Plain("b", "effect"), Runs),
                Restart,
                Send(once("effect sleep:17000"), Answers),
            ],
            &[("", Exactly(1), Exactly(1)), ("b", Exactly(1), Exactly(1))],
        )
        // This is also the emulator's limit for the function's start.
        .timeout(15)
        .managed(),
    ]
}

fn settings() -> Vec<Scenario> {
    let config: Settings = &[
        ("IDEMPOTENCY_CONFIG", "config.json"),
        ("LAMBDA_TASK_ROOT", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios")),
    ];
    vec![
        of("no key, refused", [Send(EFFECT, Refuses("MissingKey"))], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "/order"), ("IDEMPOTENCY_ON_MISSING_KEY", "refuse")]),
        of("no key, by default", [Send(EFFECT, Refuses("MissingKey"))], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "/order")]),
        of("no key, passed on", [Send(EFFECT, Runs), Send(EFFECT, Runs)], &[("", Exactly(2), Exactly(2))])
            .with(&[("IDEMPOTENCY_KEY", "/order"), ("IDEMPOTENCY_ON_MISSING_KEY", "pass")])
            .requests(0),
        of("mode off", [Send(EFFECT, Runs), Send(EFFECT, Runs)], &[("", Exactly(2), Exactly(2))])
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_MODE", "off")])
            .requests(0),
        of("settings in a file", [Send(EFFECT, Runs), Send(EFFECT, Replays)], ONCE).with(config),
        of("invalid key setting", [Send(EFFECT, Fails)], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "id")])
            .writes("IDEMPOTENCY_KEY: `id` isn't valid")
            .on_demand(),
        of("unknown setting", [Send(EFFECT, Fails)], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_KEYS", "/id")])
            .writes("IDEMPOTENCY_KEYS isn't a setting")
            .on_demand(),
        of("no table", [Send(EFFECT, Fails)], NEVER)
            .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_TABLE", "")])
            .writes("IDEMPOTENCY_TABLE or IDEMPOTENCY_STORE")
            .on_demand(),
        of(
            "claim in the event",
            [
                Send(Plain("", "first-error:Unavailable effect see:claim"), Throws("Unavailable")),
                Send(Plain("", "first-error:Unavailable effect see:claim"), RunsWith("\"see\":{")),
            ],
            &[("", Exactly(2), Exactly(1))],
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_CLAIM_FIELD", "claim")]),
        of(
            "claim in the client context",
            [
                Send(Identified("", "context"), RunsWith("\"shop\":\"north\"")),
                Send(Identified("", "context"), Replays),
            ],
            &[("", Exactly(1), Exactly(0))],
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_CLAIM_FIELD", "context:claim")])
        .on_demand(),
        of(
            "at most once, killed",
            [
                Send(Plain("", "effect first-kill"), Dies),
                Until(Plain("", "effect first-kill"), Refuses("OutcomeUnknown")),
            ],
            ONCE,
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_EXECUTION", "at-most-once")])
        .timeout(5)
        .on_demand(),
    ]
}

/// Shadow mode claims and records, but changes nothing that the caller or the function sees.
fn shadow() -> Vec<Scenario> {
    let plain: Settings = &[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_MODE", "shadow")];
    let http: Settings =
        &[("IDEMPOTENCY_EVENT", "http"), ("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_MODE", "shadow")];
    let twice: &[(&str, Count, Count)] = &[("", Exactly(2), Exactly(2))];
    let slow = Plain("", "sleep:1500 effect");
    let post = Http("http-api", Some("KEY"), "", "effect");
    let abc = Batch(Sqs, &[("a", "effect"), ("b", "effect")]);
    vec![
        of("shadow never replays", [Send(EFFECT, Runs), Send(EFFECT, Runs)], twice).with(plain),
        of(
            "shadow never refuses",
            [Send(EFFECT, Runs), Send(With("", "effect", r#"{"at":"noon"}"#), Runs)],
            twice,
        )
        .with(plain),
        of(
            "shadow never delays",
            [Start(slow.clone()), Arrives(Claim), Send(slow, Runs), Finish(Runs)],
            twice,
        )
        .with(plain)
        .concurrent(),
        of("shadow without a key", [Send(EFFECT, Runs), Send(EFFECT, Runs)], twice)
            .with(&[("IDEMPOTENCY_KEY", "/order"), ("IDEMPOTENCY_MODE", "shadow")]),
        of("shadow, store down", [Break(Claim, ALL, HttpWay::ErrorBefore), Send(EFFECT, Runs)], ONCE)
            .with(plain)
            .timeout(8)
            .on_demand(),
        of("shadow over HTTP", [Send(post.clone(), Responds(201)), Send(post, Responds(201))], twice)
            .with(http),
        of(
            "shadow of a batch",
            [Send(abc.clone(), Fail(&[])), Send(abc, Fail(&[]))],
            &[("a", Exactly(2), Exactly(2)), ("b", Exactly(2), Exactly(2))],
        )
        .with(&[
            ("IDEMPOTENCY_EVENT", "sqs"),
            ("IDEMPOTENCY_KEY", "/id"),
            ("IDEMPOTENCY_MODE", "shadow"),
        ]),
    ]
}

fn payloads() -> Vec<Scenario> {
    let large = Plain("", "effect big:5900000");
    let padded = Padded("", "effect", 5_900_000);
    let both = Padded("", "effect big:5900000", 5_900_000);
    let streamed = |steps| Plain("", steps);
    let streaming: Settings = &[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_STREAMING", "true")];
    vec![
        of("6 MB answer", [Send(large.clone(), Runs), Send(large, Replays)], ONCE).long(),
        of("6 MB event", [Send(padded.clone(), Runs), Send(padded, Replays)], ONCE).long(),
        of(
            "answer too large to keep",
            [
                Send(Plain("", "effect big:5000"), Runs),
                Send(Plain("", "effect big:5000"), Refuses("NotRetained")),
            ],
            ONCE,
        )
        .with(&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_MAX_RESPONSE", "1024")]),
        of("6 MB each way", [Send(both.clone(), Runs), Send(both, Replays)], ONCE),
        of(
            "tenant and client context",
            [Send(Identified("", "context"), RunsWith("\"tenant\":\"tenant-7\""))],
            &[],
        )
        .on_demand(),
        of(
            "client context",
            [Send(Identified("", "context"), RunsWith("\"client\":{\"shop\":\"north\"}"))],
            &[],
        )
        .on_demand(),
        of("Cognito identity", [Send(Identified("", "context"), RunsWith("\"identity\":\"person-9\""))], &[])
            .on_demand(),
        of("deadline", [Send(Identified("", "context"), RunsWith("\"has_time_left\":true"))], &[])
            .on_demand(),
        of("streaming", [Send(streamed("effect"), Runs), Send(streamed("effect"), Replays)], ONCE)
            .with(streaming)
            .streaming(),
        of(
            "streaming 200 kB",
            [Send(streamed("effect big:200000"), Runs), Send(streamed("effect big:200000"), Replays)],
            ONCE,
        )
        .with(streaming)
        .streaming(),
        of(
            "streaming, too large to keep",
            [
                Send(streamed("effect big:200000"), Runs),
                Send(streamed("effect big:200000"), Refuses("NotRetained")),
            ],
            ONCE,
        )
        .with(&[
            ("IDEMPOTENCY_KEY", "/id"),
            ("IDEMPOTENCY_STREAMING", "true"),
            ("IDEMPOTENCY_MAX_RESPONSE", "4096"),
        ])
        .streaming(),
        of(
            "streaming, switched off",
            [Send(streamed("effect big:200000"), Runs), Send(streamed("effect big:200000"), Replays)],
            ONCE,
        )
        .streaming(),
        of(
            "streaming, error first",
            [
                Send(streamed("first-error:Unavailable effect"), Anything),
                Send(streamed("first-error:Unavailable effect"), Runs),
            ],
            &[("", Exactly(2), Exactly(1))],
        )
        .with(streaming)
        .streaming(),
    ]
}
