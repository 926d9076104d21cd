//! Drawings: those of the guide's failure modes, and the page of a failed test.

use std::{env, fs, path::Path, process::Command, time::Duration};

use lambda_idempotency::{
    ClaimHandle, ErrorKind, Found, Idempotency, Key, current, settings::Execution, staging,
};
use lambda_idempotency_testing::{Bench, Call, Event, Function, Lookup, Point, Transaction, survive};
use serde_json::Value;

use super::{Error, ORDER, OTHER, function_of, safe, unsafe_one};

fn order() -> Event {
    Event::json(ORDER)
}

fn dies_after_the_effect(bench: &Bench) {
    bench.die_at(Point::AfterEffect).deliver(&mut safe(bench), &order()).assert_died();
    let next = bench.process();
    let mut function = safe(&next);
    next.deliver(&mut function, &order()).assert_refused(ErrorKind::InProgress);
    next.advance_past_leases();
    next.deliver(&mut function, &order()).assert_ran();
    next.deliver(&mut function, &order()).assert_replayed();
    bench.ledger().assert_count("charge", 1);
}

fn freezes_past_its_lease(bench: &Bench) {
    let mut frozen = safe(bench);
    let paused = bench.pause_at(Point::Before(Call::Complete)).deliver(&mut frozen, &order());
    let next = bench.process();
    next.advance_past_leases();
    next.deliver(&mut safe(&next), &order()).assert_ran();
    let late = bench.resume(&paused);
    assert!(late.answer().unwrap().is_done(), "{late}");
    bench.ledger().assert_count("charge", 1);
}

fn loses_the_answer_to_its_claim(bench: &Bench) {
    bench.lose_answer(Call::Claim).deliver(&mut safe(bench), &order()).assert_ran();
}

fn loses_the_answer_to_its_completion(bench: &Bench) {
    let mut function = safe(bench);
    bench.lose_answer(Call::Complete).deliver(&mut function, &order()).assert_ran();
    bench.deliver(&mut function, &order()).assert_replayed();
}

fn cannot_record_its_outcome(bench: &Bench) {
    let mut function = safe(bench);
    bench.outage_from(Call::Complete).deliver(&mut function, &order()).assert_ran();
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::InProgress);
    bench.advance_past_leases();
    bench.deliver(&mut function, &order()).assert_ran();
    bench.ledger().assert_count("charge", 1);
}

fn at_most_once(bench: &Bench) -> Function {
    let idempotency = bench.builder().settings(|s| s.execution = Execution::AtMostOnce).build().unwrap();
    function_of(idempotency, bench.ledger(), false)
}

fn has_an_unknown_outcome(bench: &Bench) {
    bench.die_at(Point::AfterEffect).deliver(&mut at_most_once(bench), &order()).assert_died();
    let next = bench.process();
    next.advance_past_leases();
    next.deliver(&mut at_most_once(&next), &order()).assert_refused(ErrorKind::OutcomeUnknown);
    bench.ledger().assert_count("charge", 1);
}

fn reconciled(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let question = async |claim: ClaimHandle| {
                Ok::<_, Error>(match ledger.find("charge", &claim.derive_key("charge")).await? {
                    Lookup::Found(charge) => Found::Happened(charge.receipt),
                    Lookup::OnItsWay => Found::NotKnownYet { ask_again_after: Duration::from_secs(60) },
                    Lookup::Nothing => Found::DidNotHappen,
                })
            };
            let charge = async || {
                let reference = current().ok_or("not protected")?.derive_key("charge");
                Ok::<_, Error>(ledger.send("charge", &reference, &order["cents"]).await?)
            };
            let key = Key::new(order["id"].as_str().unwrap_or_default())?;
            Ok::<String, Error>(
                idempotency.operation("pay")?.reconcile(question)?.run(key, &order, charge).await?,
            )
        }
    })
}

fn asks_what_happened(bench: &Bench) {
    bench.die_at(Point::AfterEffect).deliver(&mut reconciled(bench), &order()).assert_died();
    let next = bench.process();
    next.advance(Duration::from_secs(120));
    let found = next.deliver(&mut reconciled(&next), &order());
    assert!(found.answer().unwrap().is_done(), "{found}");
    bench.ledger().assert_count("charge", 1);
}

fn transacted(bench: &Bench) -> Function {
    let idempotency: Idempotency = bench.idempotency();
    Function::new(move |order: Value| {
        let idempotency = idempotency.clone();
        async move {
            let pay = async || {
                let put = Transaction::new().put("payments", "order-17", order["cents"].to_string());
                staging().ok_or("not protected")?.add(put)?;
                Ok::<_, Error>("paid".to_owned())
            };
            let key = Key::new(order["id"].as_str().unwrap_or_default())?;
            Ok::<String, Error>(idempotency.operation("pay")?.run(key, &order, pay).await?)
        }
    })
}

fn dies_before_its_transaction(bench: &Bench) {
    bench.die_at(Point::Before(Call::Complete)).deliver(&mut transacted(bench), &order()).assert_died();
    let next = bench.process();
    next.advance_past_leases();
    let mut function = transacted(&next);
    next.deliver(&mut function, &order()).assert_ran();
    next.deliver(&mut function, &order()).assert_replayed();
    bench.ledger().assert_count("put payments", 1);
}

type Play = fn(&Bench);

/// `ACCEPT=1` writes the drawings instead of comparing them.
#[test]
fn guide_draws_what_happens() {
    let all: [(&str, &str, Play); 8] = [
        ("dies", "The process dies after its effect", dies_after_the_effect),
        ("freezes", "The process freezes past its lease", freezes_past_its_lease),
        ("claim_lost", "The answer to a claim is lost", loses_the_answer_to_its_claim),
        ("completion_lost", "The answer to a completion is lost", loses_the_answer_to_its_completion),
        ("unrecorded", "The store is down when the outcome should be recorded", cannot_record_its_outcome),
        ("at_most_once", "The process dies after its effect, under at-most-once", has_an_unknown_outcome),
        (
            "reconciled",
            "The process dies after its effect, and the operation has a reconciler",
            asks_what_happened,
        ),
        (
            "transaction",
            "The process dies before a transaction of its effect and its outcome",
            dies_before_its_transaction,
        ),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/guide/drawn");
    let mut outdated = Vec::new();
    for (name, title, play) in all {
        let bench = Bench::new();
        play(&bench);
        let (file, drawing) = (folder.join(name).with_extension("svg"), bench.to_svg(title));
        if env::var("ACCEPT").as_deref() == Ok("1") {
            fs::write(&file, drawing).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != drawing {
            outdated.push(name);
        }
    }
    assert!(
        outdated.is_empty(),
        "src/guide/drawn has other drawings of {outdated:?}: look at them, and accept them with ACCEPT=1"
    );
}

#[test]
#[ignore = "not a test: failed_checks_are_drawn starts it, and it must fail"]
fn is_not_safe() {
    survive(unsafe_one, &order().other(OTHER)).assert_safe();
}

#[test]
#[ignore = "not a test: failed_checks_are_drawn starts it, and it must fail"]
fn did_not_replay() {
    let bench = Bench::new();
    bench.deliver(&mut safe(&bench), &order()).assert_replayed();
}

#[test]
fn failed_checks_are_drawn() {
    let folder = env::temp_dir().join(format!("drawn-{}", std::process::id()));
    let failed = |test: &str, folder: &Path| {
        let mut run = Command::new(env::current_exe().unwrap());
        let run = run.args(["--exact", test, "--ignored"]).env("DRAW_FAILURES", folder).output().unwrap();
        assert!(!run.status.success(), "{test} passed");
        String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned()
    };
    let page_of = |printed: &str| {
        let file = printed
            .lines()
            .find_map(|line| line.strip_prefix("Drawn in "))
            .unwrap_or_else(|| panic!("{printed}"));
        assert!(Path::new(file).starts_with(&folder), "{file}");
        fs::read_to_string(file).unwrap()
    };
    let page = page_of(&failed("drawn::is_not_safe", &folder));
    for part in [
        "This function isn&#39;t safe to retry",
        "effect repeated",
        "charge happened AGAIN: 1250",
        "its process died after charge",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<script") && !page.contains("src="), "{page}");
    let page = page_of(&failed("drawn::did_not_replay", &folder));
    assert!(page.contains("delivery 1 should be answered from the record"), "{page}");
    let printed = failed("drawn::did_not_replay", &env::current_exe().unwrap());
    assert!(printed.contains("DRAW_FAILURES must name a folder"), "{printed}");
    fs::remove_dir_all(folder).unwrap();
}
