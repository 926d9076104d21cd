//! Kills and freezes processes.

use lambda_idempotency_rehearsal::function::Function;
use lambda_idempotency_verification_real::{
    crash::{
        backend::Backend,
        form::Form,
        judge::Promise,
        kills::{self, Figures, Numbers},
        point::{Call, Point, of_form},
        sabotage::Sabotage,
        scenario,
    },
    servers::Server,
};
use testkit::random::fresh_seed;

fn function() -> Function {
    Function::at(env!("CARGO_BIN_EXE_verification-function"))
}

/// The forms that this machine's servers can test, with or without a gateway.
fn forms(at_gateway: bool) -> impl Iterator<Item = Form> {
    Form::ALL
        .into_iter()
        .filter(move |form| form.kind().is_installed() && form.gateway().is_some() == at_gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn interruptions_at_every_point_are_safe() {
    for form in forms(false).chain([Form::Reconciled]) {
        let backends = Backend::all(form).await.unwrap();
        let rows = scenario::check(&function(), backends, of_form(form), 1, None, form).await.unwrap();
        for row in rows {
            eprintln!("{}: {row}", form.name());
            assert!(row.violations.is_empty(), "{:#?}", row.violations);
            let in_the_gap = form.promise() == Promise::AtLeastOnce && row.point.is_in_the_gap();
            assert!(row.crashes_in_the_gap >= u64::from(in_the_gap), "{row}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_kills_and_freezes_are_safe() {
    let numbers = Numbers { kills: 100, seed: fresh_seed() };
    for form in forms(false) {
        let backends = Backend::all(form).await.unwrap();
        for figures in kills::check(&function(), backends, numbers, None, form).await.unwrap() {
            eprintln!("{figures}");
            assert!(figures.violations.is_empty(), "seed {}: {}", figures.seed, figures.violations[0]);
        }
    }
}

async fn kill(form: Form, kills: u64, sabotage: Option<Sabotage>) -> Figures {
    let numbers = Numbers { kills, seed: fresh_seed() };
    let backends = Backend::all(form).await.unwrap();
    let mut all = kills::check(&function(), backends, numbers, sabotage, form).await.unwrap();
    let figures = all.remove(0);
    eprintln!("{figures}");
    figures
}

#[tokio::test(flavor = "multi_thread")]
async fn reconcilers_prevent_second_charges() {
    let checks: Vec<_> = forms(true).map(|form| tokio::spawn(kill(form, 30, None))).collect();
    for check in checks {
        let figures = check.await.unwrap();
        let Figures { form, keys, found, violations, .. } = &figures;
        assert!(violations.is_empty(), "{}", violations[0]);
        match form {
            Form::Unreconciled => assert_eq!(found.happened, 0),
            Form::ReconciledLate => {}
            _ => assert_eq!((found.late, found.effects - found.slow), (0, *keys)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_reconcilers_are_caught() {
    for (sabotage, words) in [
        (Sabotage::AsksOtherKey, "had charged before the question"),
        (Sabotage::TakesUnknownForAbsent, "no question was told that there's no charge"),
        (Sabotage::AsksTooSoon, "the question came too soon"),
    ] {
        let mut violations: Vec<String> = Vec::new();
        // Which moments the kills meet depends on the machine.
        while !violations.iter().any(|violation| violation.contains(words)) {
            assert!(violations.len() < 20, "{sabotage:?} wasn't caught: {violations:#?}");
            let figures = kill(Form::Reconciled, 100, Some(sabotage)).await;
            assert!(!figures.violations.is_empty(), "{sabotage:?} did no harm");
            violations.extend(figures.violations.iter().map(ToString::to_string));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_that_protects_nothing_is_caught() {
    let backends = vec![Backend::dynamodb(Server::embedded().await.unwrap()).await.unwrap()];
    let numbers = Numbers { kills: 5, seed: fresh_seed() };
    let broken = Some(Sabotage::Unclaimed);
    let all = kills::check(&function(), backends, numbers, broken, Form::Layer).await.unwrap();
    assert!(all.iter().all(|figures| !figures.violations.is_empty()), "{all:?}");
}

/// Asserts that the check, which kills and freezes a process at `point`, catches this sabotage with a violation that
/// contains `words`.
async fn assert_caught(sabotage: Sabotage, point: Point, words: &str) {
    assert_caught_in(Form::Ledger, sabotage, point, words).await;
}

async fn assert_caught_in(form: Form, sabotage: Sabotage, point: Point, words: &str) {
    let mut violations: Vec<String> = Vec::new();
    // On a slow machine, the sabotaged function may be too late to break the rule, or may break another rule first.
    for _ in 0..3 {
        let backends = vec![Backend::dynamodb(Server::embedded().await.unwrap()).await.unwrap()];
        let rows = scenario::check(&function(), backends, &[point], 1, Some(sabotage), form).await.unwrap();
        violations.extend(rows.iter().flat_map(|row| &row.violations).map(ToString::to_string));
        if violations.iter().any(|violation| violation.contains(words)) {
            return;
        }
    }
    panic!("{sabotage:?} wasn't caught: {violations:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn function_that_ignores_fencing_is_caught() {
    let held = Point::Before(Call::Complete);
    tokio::join!(
        assert_caught(Sabotage::Unfenced, held, "answered with a response that isn't the record's"),
        assert_caught(Sabotage::Overwriting, held, "answered with a response that isn't the record's"),
        assert_caught(Sabotage::Unsettled, Point::Entered, "its record is STARTED, not COMPLETED"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn function_that_ignores_its_claim_is_caught() {
    tokio::join!(
        assert_caught(Sabotage::Unclaimed, Point::Answered, "claimed the key during the lease"),
        assert_caught(Sabotage::Impatient, Point::AfterEffect, "claimed the key during the lease"),
        assert_caught(Sabotage::EffectFirst, Point::Entered, "generation 0 had two effects"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn non_atomic_transaction_is_caught() {
    let (entered, applied) = (Point::Entered, Point::After(Call::Complete));
    tokio::join!(
        assert_caught_in(Form::Transaction, Sabotage::Torn, applied, "transaction, but happened 0 times"),
        assert_caught_in(Form::Transaction, Sabotage::Repeated, entered, "transaction, but happened 2 times"),
        assert_caught_in(Form::Optimistic, Sabotage::Torn, entered, "transaction, but happened 0 times"),
    );
}
