//! `survive` and `key_of`: what they find, how they report it, and how fast they are.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lambda_idempotency::{
    Begun, ErrorKind, Failure, Fingerprint, Idempotency, Key, RunError, Settled, current,
    lambda::batch::SqsMessage,
    settings::{Execution, Recording},
};
use lambda_idempotency_testing::{
    Bench, Changes, Event, Function, Ledger, Mistake, Survival, key_of, survive,
};
use lambda_runtime::{LambdaEvent, service_fn, tower::ServiceBuilder};
use serde_json::Value;

use super::{DEARER, ORDER, OTHER, charge_with_key, safe, unsafe_one};

fn order() -> Event {
    Event::json(ORDER).other(OTHER).conflicting(DEARER)
}

#[test]
fn safe_handler_survives() {
    let report = survive(safe, &order());
    report.assert_safe();
    assert!(report.schedules() > 300, "{}", report.schedules());
    assert!(report.to_string().contains("every operation happened once"));
}

/// Returns a function with three steps. Each one is an operation that charges under its own key.
fn in_three_steps(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            for step in ["order", "shipping", "tax"] {
                let key = Key::new(order["id"].as_str().unwrap_or_default())?;
                let charge = || charge_with_key(&ledger, &order);
                idempotency.operation(step)?.run(key, &order, charge).await?;
            }
            Ok::<_, super::Error>("charged")
        }
    })
}

/// Each unprotected run charges with the order's id as the key, and answers with another number.
#[test]
fn unprotected_runs_may_answer_differently() {
    let answers = Arc::new(AtomicU64::new(0));
    let open = |bench: &Bench| {
        let idempotency = bench.builder().settings(|s| s.fail_open = true).build().unwrap();
        let (ledger, answers) = (bench.ledger(), Arc::clone(&answers));
        Function::new(move |order: Value| {
            let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
            let answers = Arc::clone(&answers);
            async move {
                let id = order["id"].as_str().unwrap_or_default().to_owned();
                let charge = || async {
                    ledger.call("charge", Some(&id), &order["cents"]).await?;
                    Ok::<_, super::Error>(answers.fetch_add(1, Ordering::Relaxed).to_string())
                };
                Ok::<_, super::Error>(
                    idempotency.operation("pay")?.run(Key::new(&id)?, &order, charge).await?,
                )
            }
        })
    };
    survive(open, &Event::json(ORDER)).assert_safe();
}

/// A function with three steps has more than 300 schedules with a single fault, so a limit of 300 leaves some out.
#[test]
fn default_plays_every_schedule_with_one_fault() {
    let not_played = "schedules with at most one fault weren't played";
    let limited = Survival::new().schedules(300).play(in_three_steps, &Event::json(ORDER));
    limited.assert_safe();
    assert!(limited.to_string().contains(not_played), "{limited}");
    let whole = survive(in_three_steps, &Event::json(ORDER));
    whole.assert_safe();
    assert!(!whole.to_string().contains(not_played), "{whole}");
    assert!(whole.schedules() >= limited.schedules() + 100, "{whole}\n{limited}");
}

/// No fault happens, so each schedule has one process, except those that have a process for each of two events: one with
/// the event of another operation, and two (both orders) for each pair of operations. The pairs are the event with the
/// event of another operation, and with its variant that has another id.
#[test]
fn report_counts_every_schedule() {
    for (event, more) in [(Event::json(ORDER), 2), (Event::json(ORDER).other(OTHER), 5)] {
        let processes = AtomicU64::new(0);
        let counted = |bench: &Bench| {
            processes.fetch_add(1, Ordering::Relaxed);
            safe(bench)
        };
        let report = Survival::new().schedules(0).play(counted, &event);
        assert_eq!(report.schedules() + more, processes.load(Ordering::Relaxed), "{report}");
    }
}

#[test]
fn repeated_effect_is_reported_with_advice() {
    let report = survive(unsafe_one, &order());
    let finding = &report.findings()[0];
    assert_eq!(finding.mistake, Mistake::Repeated);
    let story = report.to_string();
    for line in [
        "`charge` (1250) happened twice, expected once",
        "delivery 1: the event, to process 1",
        "  2 took over the stale claim",
        "  2 `charge` happened AGAIN: 1250, without a key",
        "Pass `current()…derive_key(\"charge\")` to the remote system, or stage the write",
    ] {
        assert!(story.contains(line), "{line} isn't in\n{story}");
    }
}

#[test]
fn seed_replays_its_schedule() {
    let first = survive(unsafe_one, &order()).findings()[0].clone();
    let again = Survival::new().seed(first.seed.unwrap()).play(unsafe_one, &order());
    assert_eq!(again.findings(), [first]);
    let drawn = |seed| Survival::new().seed(seed).play(unsafe_one, &order()).findings().to_vec();
    assert_eq!(drawn(100_003), drawn(100_003));
}

#[test]
fn survive_works_inside_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { Survival::new().schedules(5).play(safe, &order()).assert_safe() });
}

#[test]
fn failed_first_delivery_is_the_only_finding() {
    let fails = |_: &Bench| Function::new(|_: Value| async { Err::<(), super::Error>("no database".into()) });
    let report = survive(fails, &order());
    assert_eq!(report.findings().len(), 1);
    assert_eq!(report.findings()[0].mistake, Mistake::FirstFailed);
}

/// The guide's first example of a test that fails.
#[test]
#[should_panic(expected = "this function isn't safe to retry")]
fn guides_first_example_is_found_unsafe() {
    survive(
        |bench| {
            let ledger = bench.ledger();
            Function::new(move |order: Value| {
                let ledger = ledger.clone();
                async move { ledger.call("charge", None, &order["cents"]).await }
            })
        },
        &Event::json(r#"{"id":"order-17","cents":1250}"#),
    )
    .assert_safe();
}

fn keyed_by_everything(bench: &Bench) -> Function {
    let idempotency = bench.idempotency();
    Function::new(move |order: Value| {
        let idempotency = idempotency.clone();
        async move {
            let key = Key::new(format!("{} {}", order["id"], order["sent_at"]))?;
            let pay = || async { Ok::<_, std::io::Error>("paid".to_owned()) };
            Ok::<String, super::Error>(idempotency.operation("pay")?.run(key, &order["cents"], pay).await?)
        }
    })
}

#[test]
fn key_report_names_suspicious_fields() {
    let event = Event::json(r#"{"id":"order-17","cents":1250,"sent_at":"09:15:44","quantity":1}"#);
    let report = key_of(keyed_by_everything, &event);
    assert_eq!(report.changes("/id"), Some(Changes::Key));
    assert_eq!(report.changes("/sent_at"), Some(Changes::Key));
    assert_eq!(report.changes("/cents"), Some(Changes::Fingerprint));
    assert_eq!(report.changes("/quantity"), Some(Changes::Neither));
    assert_eq!(
        report.suspicions(),
        [
            "`/quantity` looks like an amount, but isn't compared",
            "`/sent_at` looks like it differs in each delivery, but is in the key",
        ]
    );
    assert!(report.to_string().contains("/cents     changes the fingerprint\n"), "{report}");
}

#[test]
fn safe_keys_are_sound() {
    key_of(safe, &Event::json(ORDER)).assert_sound();
}

/// Prints how long 10,000 schedules take. Only an optimised build has to meet the limit.
#[test]
#[ignore = "a measurement: run it alone, with --profile verification"]
fn ten_thousand_schedules_take_two_seconds() {
    let started = std::time::Instant::now();
    let report = Survival::new().schedules(10_000).play(safe, &order());
    let took = started.elapsed();
    println!("{} schedules in {took:?}", report.schedules());
    report.assert_safe();
    assert!(cfg!(debug_assertions) || took.as_secs_f32() <= 2.0, "{took:?}");
}

/// Calls `begin`, and leaves the claim behind, unsettled, if the charge fails.
async fn forget(idempotency: &Idempotency, ledger: &Ledger, order: &Value) -> Result<String, super::Error> {
    let key = Key::new(order["id"].as_str().unwrap_or_default())?;
    let claim = match idempotency.operation("pay")?.begin(key, Fingerprint::of(order)?).await? {
        Begun::Claimed(claim) => claim,
        Begun::Replay(replay) => return Ok(String::from_utf8_lossy(replay.response()).into_owned()),
    };
    let derived = claim.handle().derive_key("charge");
    let receipt = ledger.call("charge", Some(&derived), &order["cents"]).await?;
    match claim.complete(receipt.clone()).await? {
        Settled::Recorded => Ok(receipt),
        Settled::Superseded(replay) => Ok(String::from_utf8_lossy(replay.response()).into_owned()),
    }
}

fn forgetful(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move { forget(&idempotency, &ledger, &order).await }
    })
}

/// Returns a function whose first step is an at-most-once operation without an effect. Its second step may leave a
/// claim behind.
fn forgetful_after_at_most_once(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let once = idempotency.with_settings(|settings| settings.execution = Execution::AtMostOnce)?;
            let key = Key::new(order["id"].as_str().unwrap_or_default())?;
            let print = || async { Ok::<_, super::Error>("printed".to_owned()) };
            once.operation("print")?.run(key, &order, print).await?;
            forget(&idempotency, &ledger, &order).await
        }
    })
}

#[test]
fn claim_that_is_left_behind_is_found() {
    let report = survive(forgetful, &order());
    assert_eq!(report.findings().len(), 1, "{report}");
    assert_eq!(report.findings()[0].mistake, Mistake::RetryRefused);
    assert!(report.to_string().contains("kept its claim"), "{report}");
}

#[test]
fn at_most_once_claims_hide_no_finding() {
    let report = survive(forgetful_after_at_most_once, &Event::json(ORDER));
    assert_eq!(report.findings().len(), 1, "{report}");
    assert!(report.to_string().contains("kept its claim"), "{report}");
}

#[test]
fn fixed_remote_key_is_found() {
    for has_id in [false, true] {
        let fixed = |bench: &Bench| {
            let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
            Function::new(move |order: Value| {
                let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
                async move {
                    let id = order["id"].as_str().unwrap_or_default().to_owned();
                    let charge = || async {
                        let receipt = ledger.call("charge", Some("charge"), &order["cents"]).await?;
                        Ok::<_, super::Error>(if has_id { format!("{receipt} for {id}") } else { receipt })
                    };
                    let key = Key::new(&id)?;
                    Ok::<_, super::Error>(idempotency.operation("pay")?.run(key, &order, charge).await?)
                }
            })
        };
        let report = survive(fixed, &Event::json(ORDER));
        assert_eq!(report.findings().len(), 1, "{report}");
        assert_eq!(report.findings()[0].mistake, Mistake::Shared);
        assert!(report.to_string().contains("no field of the event changes the effect's key"), "{report}");
        // No schedule's number would show it again.
        assert_eq!(report.findings()[0].seed, None);
        assert!(!report.to_string().contains("seed"), "{report}");
    }
}

/// The first run charges 1250. A retry charges 1300 under the same key.
#[test]
fn retry_with_another_amount_is_found() {
    let dearer = |bench: &Bench| {
        let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
        Function::new(move |order: Value| {
            let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
            async move {
                let charge = || async {
                    let cents = if ledger.effects().is_empty() { 1250 } else { 1300 };
                    let key = current().ok_or("not protected")?.derive_key("charge");
                    ledger.call("charge", Some(&key), cents).await?;
                    Ok::<_, super::Error>(format!("charged {cents}"))
                };
                let key = Key::new(order["id"].as_str().unwrap_or_default())?;
                Ok::<_, super::Error>(idempotency.operation("pay")?.run(key, &order, charge).await?)
            }
        })
    };
    let report = survive(dearer, &Event::json(ORDER));
    let finding = report.findings().iter().find(|finding| finding.mistake == Mistake::Missing);
    let finding = finding.unwrap_or_else(|| panic!("{report}"));
    assert!(finding.what.contains("with other details: 1300"), "{finding}");
    assert!(finding.to_string().contains("same key, but with other details: 1300"), "{finding}");
}

/// The handler computes the date from its invocation's deadline, which follows the kit's clock.
#[test]
fn key_with_todays_date_is_found() {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let dated = |bench: &Bench| {
        let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
        Function::lambda(service_fn(move |event: LambdaEvent<Value>| {
            let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
            async move {
                let (order, day) = (event.payload, event.context.deadline / DAY);
                let key = Key::new(format!("{} {day}", order["id"]))?;
                let charge = || charge_with_key(&ledger, &order);
                Ok::<String, super::Error>(idempotency.operation("pay")?.run(key, &order, charge).await?)
            }
        }))
    };
    let report = survive(dated, &order());
    let is_found = report.findings().iter().any(|finding| {
        finding.mistake == Mistake::Repeated && finding.advice.contains("had another idempotency key")
    });
    assert!(is_found, "{report}");
}

#[test]
fn report_lists_what_it_left_out() {
    let report_of = |event: &Event| Survival::new().schedules(1).play(safe, event).to_string();
    let without_other = report_of(&Event::json(ORDER));
    assert!(without_other.contains("no event of another operation was delivered"), "{without_other}");
    let with_other = report_of(&order());
    assert!(!with_other.contains("no event of another operation"), "{with_other}");
    assert!(!with_other.contains("fields weren't changed"), "{with_other}");
    let mut large: Value = serde_json::from_str(ORDER).unwrap();
    for nth in 0..90 {
        large[format!("field{nth}")] = nth.into();
    }
    let of_large = report_of(&Event::of(&large));
    assert!(of_large.contains("12 of the event's fields weren't changed"), "{of_large}");
}

#[test]
fn random_keys_and_events_are_accepted() {
    use lambda_idempotency_testing::strategies;
    use proptest::{prelude::*, test_runner::Config};

    let sample = Event::json(ORDER);
    let strategy = (strategies::key(), strategies::event(&sample), strategies::schedule());
    proptest!(Config::with_cases(30), |((key, event, schedule) in strategy)| {
        prop_assert!(Key::new(&key).is_ok());
        schedule.play(safe, &event).assert_safe();
    });
    proptest!(Config::with_cases(30), |(event in strategies::orders("orders"))| {
        prop_assert!(event.text().contains("aws:sqs"));
    });
}

/// Returns a function whose handler makes a text of each step's error, and whose failures are recorded.
fn with_errors_as_text(bench: &Bench) -> Function {
    let idempotency = bench.builder().settings(|s| s.on_handler_error = Recording::Record).build().unwrap();
    let (steps, ledger) = (bench.idempotency(), bench.ledger());
    let handler = move |event: LambdaEvent<Value>| {
        let (steps, ledger) = (steps.clone(), ledger.clone());
        async move {
            let order = event.payload;
            let charge = || charge_with_key(&ledger, &order);
            let step = steps.operation("charge")?;
            let key = Key::new(order["id"].as_str().unwrap_or_default())?;
            step.run(key, &order, charge).await.map_err(|error| match error {
                RunError::Handler(error) => Failure::transient(error),
                // An unreadable record isn't a refusal: only an operator can change it.
                RunError::Idempotency(error) if error.kind() == ErrorKind::Corrupt => {
                    Failure::transient(error)
                }
                refused => format!("charge failed: {refused}").into(),
            })
        }
    };
    let key = |order: &Value| Key::new(order["id"].as_str().unwrap_or_default());
    Function::lambda::<_, Box<serde_json::value::RawValue>>(
        ServiceBuilder::new().layer(idempotency.events(key)).service(service_fn(handler)),
    )
}

/// A step that's refused because of a fault never makes the handler's failure permanent.
#[test]
fn errors_of_steps_as_text_are_survived() {
    let report = survive(with_errors_as_text, &order());
    assert!(report.findings().is_empty(), "{report}");
}

/// A duplicate gets `None`, and the run gets `Some(())`.
#[test]
fn results_that_read_differently_are_found() {
    let vague = |bench: &Bench| {
        let idempotency = bench.idempotency();
        Function::new(move |order: Value| {
            let idempotency = idempotency.clone();
            async move {
                let key = Key::new(order["id"].as_str().unwrap_or_default())?;
                let step = idempotency.operation("print")?;
                step.run(key, &order, || async { Ok::<_, super::Error>(Some(())) }).await?;
                Ok::<_, super::Error>("printed")
            }
        })
    };
    let report = survive(vague, &Event::json(ORDER));
    let found = report.findings().iter().find(|found| found.mistake == Mistake::AnswersDiffer);
    assert!(found.is_some_and(|found| found.what.contains("Option<()>")), "{report}");
}

/// Returns a worker that charges, and may delete its message by hand.
fn worker(bench: &Bench, deletes: bool) -> Function {
    let ledger = bench.ledger();
    let handle = move |message: SqsMessage| {
        let ledger = ledger.clone();
        async move {
            let order: Value = message.json()?;
            if order["cents"] == 0 {
                return Err("there's nothing to pay".into());
            }
            let receipt = charge_with_key(&ledger, &order).await.map_err(Failure::transient)?;
            if deletes {
                ledger.record("delete message", message.receipt_handle());
            }
            Ok(receipt)
        }
    };
    Function::lambda::<_, Box<serde_json::value::RawValue>>(
        bench.idempotency().sqs(|message| Key::from_json(message, "/id"), handle),
    )
}

#[test]
fn story_repeats_only_the_same_effect() {
    let dearer = r#"{"id":"order-18","cents":990}"#;
    let event = Event::sqs("orders", [ORDER, dearer]);
    let bench = Bench::new();
    let panic = std::panic::catch_unwind(|| {
        bench.deliver(&mut worker(&bench, false), &event).assert_replayed();
    });
    let story = *panic.unwrap_err().downcast::<String>().unwrap();
    assert!(story.contains("`charge` happened: 990") && !story.contains("AGAIN"), "{story}");
    let again = survive(unsafe_one, &order()).to_string();
    assert!(again.contains("`charge` happened AGAIN: 1250"), "{again}");
}

#[test]
fn failing_records_are_poison() {
    let free = r#"{"id":"order-20","cents":0}"#;
    let make = |bench: &Bench| worker(bench, false);
    let report = survive(make, &Event::sqs("orders", [free, ORDER]));
    report.assert_safe();
    assert!(report.to_string().contains("1 of the batch's records failed in every delivery"), "{report}");
    let only = Event::sqs("orders", [free]);
    survive(make, &only.clone().poison(0)).assert_safe();
    let report = survive(make, &only).to_string();
    assert!(report.contains("needs an event that this function can handle"), "{report}");
    assert!(report.contains("`Event::poison`") && !report.contains("isn't safe to retry"), "{report}");
}

/// Returns a function that charges only in its first attempt.
fn only_at_first(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let charge = || async {
                if current().ok_or("not protected")?.attempt() == 1 {
                    charge_with_key(&ledger, &order).await?;
                }
                Ok::<_, super::Error>("paid".to_owned())
            };
            let key = Key::new(order["id"].as_str().unwrap_or_default())?;
            Ok::<String, super::Error>(idempotency.operation("pay")?.run(key, &order, charge).await?)
        }
    })
}

/// Returns a function that records its effect, and doesn't call a remote system.
fn recording(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let write = || async {
                ledger.record("write a row", &order["cents"]);
                Ok::<_, super::Error>("written".to_owned())
            };
            let key = Key::new(order["id"].as_str().unwrap_or_default())?;
            Ok::<String, super::Error>(idempotency.operation("write")?.run(key, &order, write).await?)
        }
    })
}

#[test]
fn advice_fits_the_mistake() {
    let advice = |report: &lambda_idempotency_testing::Report, mistake: Mistake| {
        let found = report.findings().iter().find(|found| found.mistake == mistake);
        found.unwrap_or_else(|| panic!("{report}")).advice.clone()
    };
    let by_hand = survive(|bench| worker(bench, true), &Event::sqs("orders", [ORDER]));
    for mistake in [Mistake::Repeated, Mistake::Missing] {
        assert!(advice(&by_hand, mistake).contains("Don't delete a message in the handler"), "{by_hand}");
    }
    let at_first = advice(&survive(only_at_first, &order()), Mistake::Missing);
    assert!(
        at_first.contains("neither `attempt() == 1`") && at_first.contains("in every attempt"),
        "{at_first}"
    );
    let shared = r#"{"id":"order-17","cents":990}"#;
    let shared = survive(|bench| worker(bench, false), &Event::sqs("orders", [ORDER, shared]));
    assert!(advice(&shared, Mistake::Shared).contains("tells the records apart"), "{shared}");
    let recorded = advice(&survive(recording, &order()), Mistake::Repeated);
    assert!(
        recorded.starts_with("An attempt may end between an effect and its record")
            && recorded.contains("Stage the write")
    );
}
