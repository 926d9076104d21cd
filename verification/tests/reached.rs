//! Checks that the simulation, or a named test, reaches every setting, kind of error and way in.
//!
//! The lists are compared with the sources, so that a new one fails here until its author names the part of the
//! verification suite that reaches it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::{collections::BTreeSet, fs, path::Path};

use lambda_idempotency_verification::simulation::{campaign, reached::Item};

/// The part of the suite that reaches an item.
enum By {
    /// The simulation, as these items.
    Simulated(&'static [Item]),
    /// This test, in this file.
    Test(&'static str, &'static str),
}

use By::{Simulated, Test};

const ENGINE: &str = "src/idempotency/tests.rs";
const FENCING: &str = "src/idempotency/tests/fencing.rs";
const BATCHES: &str = "tests/wrappers/batch.rs";
const STREAMS: &str = "tests/wrappers/batch/streams.rs";

/// `Settings`, field by field.
const SETTINGS: &[(&str, By)] = &[
    (
        "retention",
        Simulated(&[
            Item::RetentionShortest,
            Item::RetentionShort,
            Item::RetentionHour,
            Item::RetentionDay,
            Item::RetentionLong,
        ]),
    ),
    ("skew_margin", Test(ENGINE, "retry_after_ends_when_the_key_can_be_claimed")),
    ("lease_grace", Test(ENGINE, "a_known_deadline_bounds_lease_and_handler")),
    ("lease_fallback", Test(ENGINE, "a_handler_is_cut_off_before_its_lease_ends_where_no_deadline_is_known")),
    ("lease_extension", Simulated(&[Item::Extends, Item::T7])),
    (
        "answer_reserve",
        Test("verification/tests/simulation.rs", "each_undone_precaution_is_caught_by_a_campaign"),
    ),
    (
        "settle_within",
        Test("verification/tests/simulation.rs", "outages_shorter_than_the_time_left_repeat_nothing"),
    ),
    ("execution", Simulated(&[Item::AtLeastOnce, Item::AtMostOnce])),
    ("on_handler_error", Simulated(&[Item::ReleasesErrors, Item::RecordsErrors, Item::RecordedError])),
    ("on_in_progress", Simulated(&[Item::RefusesInProgress, Item::Waits])),
    ("on_store_failure", Simulated(&[Item::MayRunUnprotected, Item::RunsUnprotected])),
    ("max_response", Test(ENGINE, "a_response_over_the_limit_is_done_and_not_retained")),
    ("local_cache", Simulated(&[Item::NoCache, Item::Caches])),
];

/// `ErrorKind`, variant by variant.
const KINDS: &[(&str, By)] = &[
    (
        "MissingKey",
        Test("tests/wrappers/event.rs", "an_event_without_a_key_is_refused_or_runs_each_time_by_choice"),
    ),
    ("InvalidKey", Test("tests/wrappers/event.rs", "a_bad_key_or_event_is_refused_before_anything_runs")),
    ("Mismatch", Simulated(&[Item::Mismatch])),
    ("InProgress", Simulated(&[Item::InProgress])),
    ("OutcomeUnknown", Simulated(&[Item::OutcomeUnknown])),
    ("NotRetained", Simulated(&[Item::NotRetained])),
    ("Fenced", Test(FENCING, "the_low_level_tells_fenced_from_unrecorded")),
    ("Unavailable", Simulated(&[Item::Unavailable])),
    ("Unrecorded", Test(FENCING, "the_low_level_tells_fenced_from_unrecorded")),
    ("Declined", Simulated(&[Item::Declined])),
    ("AllFailed", Test("tests/wrappers/batch/all_failed.rs", "a_batch_that_failed_is_counted")),
    ("Corrupt", Test(ENGINE, "damaged_bytes_are_corrupt_and_nothing_runs")),
    ("Invalid", Test(ENGINE, "a_rejected_request_says_why")),
];

/// The ways in: the methods of `Idempotency`, `Operation` and the claims that run something, and the layers.
const WAYS_IN: &[(&str, By)] = &[
    ("run", Simulated(&[Item::Claims, Item::Own, Item::Replayed])),
    (
        "begin",
        Simulated(&[Item::ClaimCompleted, Item::ClaimFailed, Item::ClaimReleased, Item::ClaimReplayed]),
    ),
    ("resolve", Simulated(&[Item::OperatorReleases, Item::OperatorMeetsHandler])),
    ("optimistic", Simulated(&[Item::Mixed, Item::Conclusion])),
    ("optimistic_reading_first", Simulated(&[Item::Mixed])),
    (
        "run_in",
        Test("verification/real/tests/real/crash.rs", "a_process_may_die_or_stand_still_at_every_point"),
    ),
    ("begin_in", Test("tests/postgres/operations.rs", "an_operation_happens_once_and_is_replayed")),
    ("http", Test("functions/tests/deploy/aws.rs", "the_http_contract_holds_on_managed_instances")),
    (
        "events",
        Test("tests/wrappers/event.rs", "the_same_event_twice_runs_once_and_is_answered_byte_for_byte"),
    ),
    ("events_by", Test("tests/wrappers/event.rs", "a_key_is_named_by_fields_or_by_the_request_id")),
    ("sqs", Test(BATCHES, "every_message_runs_once_however_often_it_is_delivered")),
    ("kinesis", Test(STREAMS, "a_partition_keys_order_is_kept_where_it_is_asked_for")),
    ("dynamodb_stream", Test(STREAMS, "an_items_changes_keep_their_order_where_it_is_asked_for")),
];

/// Platforms, stores and batches, which aren't settings.
const OTHERWISE: &[(&str, By)] = &[
    ("several deliveries at once in one process", Simulated(&[Item::OneProcess])),
    ("both platforms, in the engine", Simulated(&[Item::EndsProcesses, Item::LetsRun])),
    (
        "Managed Instances",
        Test("functions/tests/deploy/aws.rs", "functions_answer_every_event_on_managed_instances"),
    ),
    ("on demand", Test("functions/tests/deploy/aws.rs", "functions_answer_every_event_on_demand")),
    ("random batches", Test("tests/wrappers/batch/property.rs", "random_batches_keep_every_promise")),
    (
        "the wire to PostgreSQL",
        Test("verification/real/tests/real/wire.rs", "postgres_wire_faults_are_survived_or_told"),
    ),
    (
        "the wire to Redis",
        Test("verification/real/tests/real/wire.rs", "redis_wire_faults_are_survived_or_told"),
    ),
    (
        "the wire to DynamoDB",
        Test("verification/real/tests/real/wire.rs", "whatever_breaks_on_the_wire_is_got_over_or_told"),
    ),
    ("agreement of the stores", Test("verification/real/tests/real/main.rs", "every_store_is_the_model")),
];

fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks that both have the same names.
fn assert_listed(what: &str, list: &[(&str, By)], found: impl Iterator<Item = String>) {
    let (listed, found): (BTreeSet<_>, BTreeSet<_>) =
        (list.iter().map(|(name, _)| (*name).to_owned()).collect(), found.collect());
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(
        unlisted.is_empty(),
        "{what} {unlisted:?} ships, and no part of the suite is named that reaches it"
    );
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "{what} {gone:?} is listed, and isn't there any more");
}

/// The names at the beginning of a line of `text`, between these marks.
fn names<'t>(text: &'t str, from: &str, to: &str, begin: &'t str) -> impl Iterator<Item = String> + 't {
    let body = text.split_once(from).unwrap_or_else(|| panic!("no {from}")).1.to_owned();
    let body = body.split_once(to).unwrap_or_else(|| panic!("no end of {from}")).0.to_owned();
    let lines: Vec<String> = body.lines().map(|line| line.trim().to_owned()).collect();
    lines.into_iter().filter_map(move |line| {
        let rest = line.strip_prefix(begin)?;
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (!name.is_empty() && !rest.starts_with(['/', '#'])).then_some(name)
    })
}

#[test]
fn each_setting_is_reached_by_a_part() {
    let policy = source("src/settings.rs");
    assert_listed("the setting", SETTINGS, names(&policy, "pub struct Settings {", "\n}\n", "pub "));
}

#[test]
fn each_kind_of_error_is_reached() {
    let error = source("src/error.rs");
    let named = names(&error, "pub const fn as_str(self) -> &'static str {", "\n    }\n", "Self::");
    assert_listed("the kind of error", KINDS, named);
}

#[test]
fn each_way_in_is_reached() {
    // These configure or query, and run nothing.
    const OTHERS: &[&str] = &[
        "builder",
        "builder_from_env",
        "for_context",
        "operation",
        "for_invocation",
        "settings",
        "scope",
        "for_caller",
        "stored_key",
        "outcome_of",
        "clear_local_cache",
        "from_env",
    ];
    let mut found = BTreeSet::new();
    for file in [
        "src/idempotency.rs",
        "src/idempotency/operation.rs",
        "src/idempotency/operator.rs",
        "src/run/cache.rs",
        "src/store/named.rs",
        "src/run/postgres.rs",
        "src/lambda.rs",
        "src/lambda/batch.rs",
        "src/lambda/event.rs",
        "src/lambda/http.rs",
    ] {
        let text = source(file);
        for block in text.split("\nimpl ").skip(1) {
            if !block.starts_with("Idempotency {") && !block.starts_with("Operation {") {
                continue;
            }
            let body = block.split("\n}\n").next().unwrap();
            for line in body.lines().map(str::trim) {
                let rest = line.strip_prefix("pub fn ").or_else(|| line.strip_prefix("pub async fn "));
                let Some(rest) = rest else { continue };
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                found.extend((!OTHERS.contains(&name.as_str())).then_some(name));
            }
        }
    }
    assert_listed("the way in", WAYS_IN, found.into_iter());
}

#[test]
fn what_is_said_to_reach_does() {
    let figures = campaign(0, 20_000, |config| config).unwrap_or_else(|report| panic!("{report}"));
    let missing: Vec<_> = figures.reached.missing().collect();
    assert!(missing.is_empty(), "the simulation never reached {missing:?}");
    for (name, by) in SETTINGS.iter().chain(KINDS).chain(WAYS_IN).chain(OTHERWISE) {
        match by {
            Simulated(items) => {
                for item in *items {
                    assert!(figures.reached.of(*item) > 0, "{name}: {item:?} is never reached");
                }
            }
            Test(file, test) => {
                let text = source(file);
                assert!(text.contains(&format!("fn {test}(")), "{name}: {file} has no {test}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "the setting [\"new\"] ships")]
fn an_unlisted_setting_fails() {
    let policy =
        "pub struct Settings {\n    /// How long.\n    pub retention: Duration,\n    pub new: bool,\n}\n";
    let known = [("retention", Simulated(&[Item::RetentionDay]))];
    assert_listed("the setting", &known, names(policy, "pub struct Settings {", "\n}\n", "pub "));
}

#[test]
fn few_schedules_leave_items_missing() {
    let figures = campaign(0, 5, |config| config).unwrap_or_else(|report| panic!("{report}"));
    assert!(figures.reached.missing().count() > 10);
    assert!(figures.reached.to_string().contains("**NEVER**"));
}
