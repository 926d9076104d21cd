//! Tests that the alarms and the dashboard of `template.yaml` and of the layer's example use existing metrics, and that
//! an alarm fires for each failure that needs an operator. The layer's metrics have the same namespace and dimension as
//! the functions' metrics, so the same tests check both templates.

use std::collections::BTreeSet;

use example_functions::{DIMENSION, NAMESPACE};
use lambda_idempotency::metrics::Metric;
use serde_json::{Value, json};

use super::redelivery::{Source, TEMPLATES, Template};

/// Each function has an alarm for each of these metrics.
const WATCHED: [Metric; 5] = [
    Metric::Fenced,
    Metric::Unrecorded,
    Metric::OutcomeUnknown,
    Metric::StoreUnavailable,
    Metric::NotEnforced,
];
/// Each function behind the layer has an alarm for each of the layer's own metrics too.
const WATCHED_BEHIND_THE_LAYER: [&str; 2] =
    ["idempotency_layer_internal_error", "idempotency_layer_late_answer"];

/// Metrics that a person should look at when there's time: the dashboard shows them, and no alarm fires.
const TO_LOOK_AT: [Metric; 13] = [
    Metric::CallerUnknown,
    Metric::NoTimeLeft,
    Metric::Corrupt,
    Metric::Invalid,
    Metric::ResponseOmitted,
    Metric::NotCommitted,
    Metric::Unresolved,
    Metric::LeaseNotExtended,
    Metric::Abandoned,
    Metric::CutOff,
    Metric::Panicked,
    Metric::Unprotected,
    Metric::Unanswered,
];
/// Metrics that grow without a fault of the function or of its store.
const ORDINARY: [Metric; 17] = [
    Metric::Executed,
    Metric::Takeover,
    Metric::Reconciled,
    Metric::ClaimRecovered,
    Metric::Replayed,
    Metric::LocalCacheHit,
    Metric::InProgress,
    Metric::Mismatch,
    Metric::NotRetained,
    Metric::MissingKey,
    Metric::InvalidKey,
    Metric::CallerMissing,
    Metric::Recorded,
    Metric::Released,
    Metric::Resolved,
    Metric::Declined,
    Metric::LeaseExtended,
];

/// The metrics that need an alarm for each function of the template.
fn watched_in(template: &Template) -> Vec<&'static str> {
    let behind: &[&str] = if template.name.starts_with("layer/") { &WATCHED_BEHIND_THE_LAYER } else { &[] };
    WATCHED.iter().map(|metric| metric.name()).chain(behind.iter().copied()).collect()
}

/// A metric of the library that an alarm watches.
struct Watched<'a> {
    metric: &'a str,
    function: &'a str,
    /// In seconds.
    period: u64,
    alarm: &'a Value,
}

/// The library's metrics that the template's alarms watch.
fn watched(template: &Template) -> Vec<Watched<'_>> {
    let mut all = Vec::new();
    for (_, alarm) in template.resources("AWS::CloudWatch::Alarm") {
        let several = alarm["Metrics"].as_array().into_iter().flatten();
        let several = several.filter_map(|metric| metric.get("MetricStat"));
        let several = several.map(|stat| (&stat["Metric"], &stat["Period"]));
        let one = alarm.get("MetricName").map(|_| (alarm, &alarm["Period"]));
        for (metric, period) in several.chain(one) {
            if metric["Namespace"].as_str().is_some_and(|namespace| namespace.starts_with("AWS/")) {
                continue;
            }
            assert_eq!(metric["Namespace"], NAMESPACE);
            assert_eq!(metric["Dimensions"][0]["Name"], DIMENSION);
            all.push(Watched {
                metric: metric["MetricName"].as_str().unwrap(),
                function: metric["Dimensions"][0]["Value"].as_str().unwrap(),
                period: period.as_u64().unwrap(),
                alarm,
            });
        }
    }
    all
}

/// The lines of the template's dashboard.
fn lines(template: &Template) -> Vec<Value> {
    let (_, dashboard) = template.resources("AWS::CloudWatch::Dashboard").next().expect("a dashboard");
    let body: Value = serde_json::from_str(dashboard["DashboardBody"].as_str().unwrap()).expect("JSON");
    let widgets = body["widgets"].as_array().unwrap().iter();
    widgets.flat_map(|widget| widget["properties"]["metrics"].as_array().unwrap().clone()).collect()
}

/// The metrics that the dashboard searches for, over all functions.
fn searched(template: &Template) -> BTreeSet<String> {
    let lines = lines(template);
    let searches = lines.iter().filter_map(|line| line[0]["expression"].as_str());
    let search = searches.collect::<String>();
    assert!(search.starts_with(&format!("SEARCH('{{{NAMESPACE},{DIMENSION}}} ")), "{search}");
    search.split("MetricName=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// The metrics on the template's dashboard, each with its function.
fn shown(template: &Template) -> BTreeSet<(String, String)> {
    let lines = lines(template);
    let shown = lines.iter().filter(|line| line[0].is_string()).map(|metric| {
        assert_eq!((&metric[0], &metric[2]), (&json!(NAMESPACE), &json!(DIMENSION)));
        let function = metric[3].as_str().unwrap().trim_matches(['$', '{', '}']);
        (metric[1].as_str().unwrap().to_owned(), function.to_owned())
    });
    shown.collect()
}

fn pair(metric: &str, function: &str) -> (String, String) {
    (metric.to_owned(), function.to_owned())
}

#[test]
fn alarms_and_dashboard_use_existing_metrics() {
    let known = Metric::ALL.iter().map(|metric| metric.name()).chain(WATCHED_BEHIND_THE_LAYER);
    let known: BTreeSet<_> = known.collect();
    let told = [Metric::Executed, Metric::Replayed, Metric::InProgress, Metric::Mismatch, Metric::Takeover];
    let told = told.map(Metric::name);
    for template in TEMPLATES.iter() {
        let name = template.name;
        let ids: BTreeSet<_> = template.idempotent_functions().map(|(id, _)| id).collect();
        let of_all = |metrics: &[&str]| -> BTreeSet<_> {
            metrics.iter().flat_map(|metric| ids.iter().map(|id| pair(metric, id))).collect()
        };
        // A function that handles batches can fail a whole batch, so it also needs an alarm for `AllFailed`.
        let batches: BTreeSet<_> = template
            .batch_sources()
            .filter(|(id, _)| ids.contains(id))
            .map(|(id, _)| pair(Metric::AllFailed.name(), id))
            .collect();
        assert!(!batches.is_empty(), "{name}");

        let alarmed: BTreeSet<_> = watched(template)
            .iter()
            .map(|watched| (watched.metric.to_owned(), watched.function.to_owned()))
            .collect();
        let shown = shown(template);
        for (metric, function) in alarmed.iter().chain(&shown) {
            assert!(known.contains(metric.as_str()), "{name}: {metric} isn't a metric of the library");
            assert!(ids.contains(function.as_str()), "{name}: {function} isn't a function with records");
        }
        for (metric, function) in of_all(&watched_in(template)).iter().chain(&batches) {
            let pair = (metric.clone(), function.clone());
            assert!(alarmed.contains(&pair), "{name}: no alarm for {metric} of {function}");
            assert!(shown.contains(&pair), "{name}: the dashboard lacks {metric} of {function}");
        }
        assert!(of_all(&told).is_subset(&shown), "{name}: {shown:?}");
    }
}

/// A new metric fails this test until one of the lists has it.
#[test]
fn every_metric_is_watched_or_ordinary() {
    // The shadow mode's metrics compare two designs.
    let is_of_shadow = |name: &str| name.starts_with("idempotency_shadow_");
    let alarmed = WATCHED.iter().chain(&[Metric::AllFailed]);
    let mut decided: Vec<_> =
        alarmed.chain(&TO_LOOK_AT).chain(&ORDINARY).map(|metric| metric.name()).collect();
    let all = Metric::ALL.iter().filter(|metric| !metric.is_latency()).map(|metric| metric.name());
    let mut all: Vec<_> = all.filter(|name| !is_of_shadow(name)).collect();
    decided.sort_unstable();
    all.sort_unstable();
    assert_eq!(decided, all);
    for template in TEMPLATES.iter() {
        let expected: BTreeSet<_> = TO_LOOK_AT.iter().map(|metric| metric.name().to_owned()).collect();
        assert_eq!(searched(template), expected, "{}", template.name);
    }
}

#[test]
fn alarms_fire_for_one_failing_message() {
    for template in TEMPLATES.iter() {
        for source in template.queues() {
            let alarms = watched(template).into_iter().filter(|watched| watched.function == source.function);
            let mut fired = 0;
            for watched in alarms {
                assert!(fires(&watched, &source), "{}: {}", template.name, watched.metric);
                fired += 1;
            }
            assert_eq!(fired, watched_in(template).len() + 1, "{}: {}", template.name, source.function);
        }
    }
}

/// Whether the alarm fires if every delivery of one message increments the metric, until SQS moves the message to the
/// dead-letter queue. Tries every second of a period as the time of the first delivery.
fn fires(watched: &Watched<'_>, source: &Source<'_>) -> bool {
    let (alarm, period) = (watched.alarm, watched.period);
    let between = source.queue["VisibilityTimeout"].as_u64().unwrap();
    let deliveries = source.queue["RedrivePolicy"]["maxReceiveCount"].as_u64().unwrap();
    let evaluated = alarm["EvaluationPeriods"].as_u64().unwrap();
    let needed = alarm["DatapointsToAlarm"].as_u64().unwrap_or(evaluated);
    assert_eq!(
        (&alarm["Threshold"], &alarm["ComparisonOperator"]),
        (&json!(0), &json!("GreaterThanThreshold"))
    );
    (0..period).all(|first| {
        let counted: BTreeSet<u64> = (0..deliveries).map(|nth| (first + nth * between) / period).collect();
        counted.iter().any(|last| {
            let breaching = counted.iter().filter(|at| *at <= last && last - *at < evaluated).count();
            u64::try_from(breaching).unwrap() >= needed
        })
    })
}

#[test]
fn every_dead_letter_queue_has_an_alarm() {
    for template in TEMPLATES.iter() {
        let queues = template.queues();
        let dead = template
            .resources("AWS::SQS::Queue")
            .filter(|(id, _)| queues.iter().all(|source| source.id != *id))
            .map(|(id, _)| format!("{id}.QueueName"));
        let dead: BTreeSet<_> = dead.collect();
        assert!(!dead.is_empty(), "{}", template.name);

        let alarms = template.resources("AWS::CloudWatch::Alarm").map(|(_, alarm)| alarm);
        let alarms = alarms.filter(|alarm| alarm["Namespace"] == "AWS/SQS");
        let alarmed: BTreeSet<_> = alarms
            .inspect(|alarm| {
                assert_eq!(alarm["MetricName"], "ApproximateNumberOfMessagesVisible");
                assert_eq!(alarm["Dimensions"][0]["Name"], "QueueName");
                assert_eq!((&alarm["Threshold"], &alarm["EvaluationPeriods"]), (&json!(0), &json!(1)));
            })
            .map(|alarm| alarm["Dimensions"][0]["Value"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(alarmed, dead, "{}", template.name);
    }
}
