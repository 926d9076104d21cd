//! Checks that the simulation, or a named test, reaches every setting, kind of error and entry point.
//!
//! These tests compare the lists below with the sources. They fail on a new item until its author names the part of
//! the verification suite that reaches it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::{collections::BTreeSet, fs, path::Path};

use lambda_idempotency_verification::simulation::{campaign, reached::Item};

/// The part of the suite that reaches an item.
enum By {
    /// The simulation, which counts these items.
    Simulated(&'static [Item]),
    /// A test: its file and its name.
    Test(&'static str, &'static str),
}

use By::{Simulated, Test};

const ENGINE: &str = "src/idempotency/tests.rs";
const RECONCILE: &str = "src/idempotency/tests/reconcile.rs";
const FENCING: &str = "src/idempotency/tests/fencing.rs";
const BATCHES: &str = "tests/wrappers/batch.rs";
const KAFKA: &str = "tests/wrappers/batch/kafka.rs";
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
    ("skew_margin", Test(ENGINE, "retry_after_ends_when_key_is_claimable")),
    ("lease_grace", Test(ENGINE, "deadline_bounds_lease_and_handler")),
    ("lease_fallback", Test(ENGINE, "lease_bounds_handlers_without_a_deadline")),
    ("lease_extension", Simulated(&[Item::Extends, Item::T7])),
    ("answer_reserve", Test("verification/tests/simulation.rs", "campaigns_catch_each_removed_precaution")),
    ("settle_within", Test("verification/tests/simulation.rs", "short_outages_repeat_no_effect")),
    ("cut_off", Test("src/idempotency/tests/lease.rs", "late_result_is_recorded_without_cut_off")),
    ("effects_arrive_within", Test(RECONCILE, "questions_wait_until_effects_have_arrived")),
    ("rerun_when_absent", Test(RECONCILE, "at_most_once_settles_only_what_was_found")),
    ("execution", Simulated(&[Item::AtLeastOnce, Item::AtMostOnce])),
    ("on_handler_error", Simulated(&[Item::ReleasesErrors, Item::RecordsErrors, Item::RecordedError])),
    ("wait_in_progress", Simulated(&[Item::RefusesInProgress, Item::Waits])),
    ("fail_open", Simulated(&[Item::MayRunUnprotected, Item::RunsUnprotected])),
    ("max_response", Test(ENGINE, "oversized_response_is_not_retained")),
    ("local_cache", Simulated(&[Item::NoCache, Item::Caches])),
    ("local_cache_records", Test("src/idempotency/tests/stored.rs", "cache_evicts_beyond_its_record_limit")),
    ("mode", Test("src/idempotency/tests/switch.rs", "store_failures_never_change_a_shadowed_outcome")),
];

/// `ErrorKind`, variant by variant.
const KINDS: &[(&str, By)] = &[
    ("MissingKey", Test("tests/wrappers/event.rs", "keyless_events_are_refused_or_run_unprotected")),
    ("InvalidKey", Test("tests/wrappers/event.rs", "bad_keys_and_events_run_nothing")),
    ("Mismatch", Simulated(&[Item::Mismatch])),
    ("InProgress", Simulated(&[Item::InProgress])),
    ("OutcomeUnknown", Simulated(&[Item::OutcomeUnknown])),
    ("NotRetained", Simulated(&[Item::NotRetained])),
    ("Fenced", Test(FENCING, "fenced_and_unrecorded_are_distinct_errors")),
    ("Unavailable", Simulated(&[Item::Unavailable])),
    ("Unrecorded", Test(FENCING, "fenced_and_unrecorded_are_distinct_errors")),
    ("Declined", Simulated(&[Item::Declined])),
    ("AllFailed", Test("tests/wrappers/batch/all_failed.rs", "failed_batches_are_counted")),
    ("BatchFailed", Test(KAFKA, "one_failure_fails_the_invocation")),
    ("Corrupt", Test(ENGINE, "damaged_response_fails_without_a_rerun")),
    ("Invalid", Test(ENGINE, "rejected_request_reports_the_reason")),
];

/// The entry points: the public methods of `Idempotency` and `Operation`, except the `OTHERS` in
/// `every_entry_point_is_tested`.
const WAYS_IN: &[(&str, By)] = &[
    ("run", Simulated(&[Item::Claims, Item::Own, Item::Replayed])),
    ("run_with_replay", Test("src/idempotency/tests/settings.rs", "replay_reports_the_recorded_attempt")),
    ("with_settings", Test("src/idempotency/tests/settings.rs", "operations_have_their_own_settings")),
    (
        "begin",
        Simulated(&[Item::ClaimCompleted, Item::ClaimFailed, Item::ClaimReleased, Item::ClaimReplayed]),
    ),
    ("reconcile", Test(RECONCILE, "found_results_are_recorded")),
    ("reconcile_record", Test(RECONCILE, "records_are_reconciled_by_themselves")),
    ("resolve", Simulated(&[Item::OperatorReleases, Item::OperatorMeetsHandler])),
    ("optimistic", Simulated(&[Item::Mixed, Item::Conclusion])),
    ("optimistic_reading_first", Simulated(&[Item::Mixed])),
    ("run_in", Test("verification/real/tests/real/crash.rs", "interruptions_at_every_point_are_safe")),
    (
        "begin_in",
        Test("crates/postgres/tests/postgres/operations.rs", "operations_run_once_and_are_replayed"),
    ),
    ("http", Test("functions/tests/deploy/aws.rs", "the_http_contract_holds_on_managed_instances")),
    ("events", Test("tests/wrappers/event.rs", "repeated_events_run_once_and_replay")),
    ("events_by", Test("tests/wrappers/event.rs", "keys_come_from_fields_or_request_ids")),
    ("events_by_request_id", Test("tests/wrappers/event.rs", "keys_come_from_fields_or_request_ids")),
    ("sqs", Test(BATCHES, "redelivered_messages_run_once")),
    ("kinesis", Test(STREAMS, "ordering_per_partition_key_is_optional")),
    ("dynamodb_stream", Test(STREAMS, "ordering_per_item_is_optional")),
    ("kafka", Test(KAFKA, "partitions_keep_their_order")),
];

/// Platforms, stores and batches, which aren't settings.
const OTHERWISE: &[(&str, By)] = &[
    ("concurrent deliveries in one process", Simulated(&[Item::OneProcess])),
    ("both platforms, in virtual time", Simulated(&[Item::EndsProcesses, Item::LetsRun])),
    (
        "Managed Instances",
        Test("functions/tests/deploy/aws.rs", "functions_answer_every_event_on_managed_instances"),
    ),
    ("on demand", Test("functions/tests/deploy/aws.rs", "on_demand_functions_answer_every_event")),
    (
        "the outbox, with kills and refused requests",
        Test("functions/tests/deploy/outbox.rs", "every_outcome_is_published_despite_kills"),
    ),
    ("random batches", Test("tests/wrappers/batch/property.rs", "random_batches_have_no_violations")),
    (
        "the wire to PostgreSQL",
        Test("verification/real/tests/real/wire.rs", "postgres_wire_faults_are_survived_or_reported"),
    ),
    (
        "the wire to Redis",
        Test("verification/real/tests/real/wire.rs", "redis_wire_faults_are_survived_or_reported"),
    ),
    (
        "the wire to DynamoDB",
        Test("verification/real/tests/real/wire.rs", "dynamodb_wire_faults_are_survived_or_reported"),
    ),
    (
        "agreement of the stores",
        Test("verification/real/tests/real/main.rs", "every_store_agrees_with_the_model"),
    ),
];

fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks that `list` and `found` have the same names.
fn assert_listed(what: &str, list: &[(&str, By)], found: impl Iterator<Item = String>) {
    let (listed, found): (BTreeSet<_>, BTreeSet<_>) =
        (list.iter().map(|(name, _)| (*name).to_owned()).collect(), found.collect());
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(unlisted.is_empty(), "{what} {unlisted:?} ships, but no test is listed for it");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "{what} {gone:?} is listed, but no longer exists");
}

/// Takes the part of `text` between `from` and `to`. Returns the name that follows `begin` in each line that starts
/// with `begin`.
fn names<'t>(text: &'t str, from: &str, to: &str, begin: &'t str) -> impl Iterator<Item = String> + 't {
    let body = text.split_once(from).unwrap_or_else(|| panic!("no `{from}`")).1.to_owned();
    let body = body.split_once(to).unwrap_or_else(|| panic!("the end of `{from}` wasn't found")).0.to_owned();
    let lines: Vec<String> = body.lines().map(|line| line.trim().to_owned()).collect();
    lines.into_iter().filter_map(move |line| {
        let rest = line.strip_prefix(begin)?;
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (!name.is_empty() && !rest.starts_with(['/', '#'])).then_some(name)
    })
}

#[test]
fn every_setting_is_tested() {
    let policy = source("crates/core/src/settings.rs");
    assert_listed("the setting", SETTINGS, names(&policy, "pub struct Settings {", "\n}\n", "pub "));
}

#[test]
fn every_error_kind_is_tested() {
    let error = source("crates/core/src/error.rs");
    let named = names(&error, "pub const fn as_str(self) -> &'static str {", "\n    }\n", "Self::");
    assert_listed("the kind of error", KINDS, named);
}

#[test]
fn every_entry_point_is_tested() {
    // These methods configure or query, and run no handler.
    const OTHERS: &[&str] = &[
        "builder",
        "builder_from_env",
        "for_context",
        "operation",
        "for_invocation",
        "settings",
        "scope",
        "for_caller",
        "describe",
        "format",
        "stored_key",
        "outcome_of",
        "clear_local_cache",
        "warm_up",
        "from_env",
    ];
    let mut found = BTreeSet::new();
    for file in [
        "src/idempotency.rs",
        "src/idempotency/operation.rs",
        "src/idempotency/operator.rs",
        "src/store/named.rs",
        "src/idempotency/in_transaction.rs",
        "src/idempotency/reconcile.rs",
        "src/lambda.rs",
        "src/lambda/batch.rs",
        "src/lambda/event.rs",
        "src/lambda/http.rs",
    ] {
        let text = source(file);
        for block in text.split("\nimpl").skip(1) {
            let of = [" Idempotency {", " Operation {", "<F: Format> Operation<F> {"];
            if !of.iter().any(|of| block.starts_with(of)) {
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
    assert_listed("the entry point", WAYS_IN, found.into_iter());
}

#[test]
fn listed_items_are_reached_and_tests_exist() {
    let figures = campaign(0, 100_000, |config| config).unwrap_or_else(|report| panic!("{report}"));
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
                assert!(text.contains(&format!("fn {test}(")), "{name}: {file} has no test {test}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "the setting [\"new\"] ships")]
fn unlisted_settings_are_reported() {
    let policy =
        "pub struct Settings {\n    /// How long.\n    pub retention: Duration,\n    pub new: bool,\n}\n";
    let known = [("retention", Simulated(&[Item::RetentionDay]))];
    assert_listed("the setting", &known, names(policy, "pub struct Settings {", "\n}\n", "pub "));
}

#[test]
fn unreached_items_are_reported() {
    let figures = campaign(0, 5, |config| config).unwrap_or_else(|report| panic!("{report}"));
    assert!(figures.reached.missing().count() > 10);
    assert!(figures.reached.to_string().contains("**NEVER**"));
}
