//! How a result is recorded, and what a duplicate reads.

use std::collections::HashMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::*;

/// Returns the results of a run and of its duplicate.
async fn twice<T>(bench: &Bench, key: &str, result: T) -> [Result<T, RunError<TestError>>; 2]
where
    T: Serialize + DeserializeOwned + Clone + 'static,
{
    let operation = bench.operation();
    let run = || operation.run(Key::new(key).unwrap(), &1, || async { Ok(result.clone()) });
    [run().await, run().await]
}

/// Random bits (Marsaglia, "Xorshift RNGs"): the same on every run.
fn random(state: &mut u64) -> u64 {
    for (left, by) in [(true, 13), (false, 7), (true, 17)] {
        *state ^= if left { *state << by } else { *state >> by };
    }
    *state
}

#[tokio::test(start_paused = true)]
async fn numbers_replay_bit_for_bit() {
    let (bench, mut state) = (Bench::new(), 0x2545_F491_4F6C_DD1D);
    let mut floats = vec![0.0, -0.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, f64::EPSILON, 0.1 + 0.2];
    let mut amounts = Vec::new();
    for _ in 0..20_000 {
        floats.extend(Some(f64::from_bits(random(&mut state))).filter(|float| float.is_finite()));
        let cents = u32::try_from(random(&mut state) >> 40).unwrap();
        amounts.push(f64::from(cents) * 1.19 / 3.0);
    }
    floats.extend(&amounts);
    let [first, again] = twice(&bench, "floats", floats).await;
    let bits = |floats: Vec<f64>| floats.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert!(bits(first.unwrap()) == bits(again.unwrap()), "a replayed float has different bits");

    let singles: Vec<f32> = (0..20_000_u32).map(|n| f32::from_bits(n.wrapping_mul(214_013))).collect();
    let singles: Vec<f32> = singles.into_iter().filter(|float| float.is_finite()).collect();
    let [first, again] = twice(&bench, "singles", singles).await;
    let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert!(bits(first.unwrap()) == bits(again.unwrap()), "a replayed float has different bits");

    let integers: Vec<i128> = (0..20_000)
        .map(|n| i128::from(random(&mut state)) << (n % 64))
        .chain([i128::MIN, i128::MAX])
        .collect();
    let [first, again] = twice(&bench, "integers", integers).await;
    assert_eq!(first.unwrap(), again.unwrap());
    let wide = (u128::MAX, u64::MAX, i64::MIN);
    let [first, again] = twice(&bench, "wide", wide).await;
    assert_eq!((first.unwrap(), again.unwrap()), (wide, wide));
}

/// Its JSON can't be read back: serializing leaves out the field, and deserializing needs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OneWay {
    #[serde(skip_serializing)]
    secret: u8,
}

#[tokio::test(start_paused = true)]
async fn unreadable_results_are_not_retained() {
    let bench = Bench::new();
    for (key, number) in [("nan", f64::NAN), ("infinite", f64::INFINITY)] {
        let [first, again] = twice(&bench, key, number).await;
        assert_eq!(first.unwrap().to_bits(), number.to_bits());
        assert_eq!(kind(again), ErrorKind::NotRetained);
    }
    // JSON stores `Some(NaN)` as `null`, which would be read back as `None`.
    let [first, again] = twice(&bench, "maybe", Some(f64::NAN)).await;
    assert!(first.unwrap().is_some_and(f64::is_nan));
    assert_eq!(kind(again), ErrorKind::NotRetained);
    let [first, again] = twice(&bench, "one way", OneWay { secret: 7 }).await;
    assert_eq!(first.unwrap().secret, 7);
    assert_eq!(kind(again), ErrorKind::NotRetained);
    let [first, again] = twice(&bench, "keys", HashMap::from([((1, 2), 3)])).await;
    assert_eq!(first.unwrap().len(), 1);
    assert_eq!(kind(again), ErrorKind::NotRetained);
    // `None` and `()` are read back unchanged.
    let [first, again] = twice(&bench, "none", (None::<f64>, ())).await;
    assert_eq!((first.unwrap(), again.unwrap()), ((None, ()), (None, ())));
}

/// Neither production nor a debug build refuses the result, since its effect has happened.
#[tokio::test(start_paused = true)]
async fn results_that_read_differently_are_reported() {
    let bench = Bench::new();
    let mut logged = Vec::new();
    for (key, done) in [("unit", Some(())), ("none", None)] {
        let events = bench.recorded(async {
            let [first, again] = twice(&bench, key, done).await;
            assert_eq!((first.unwrap(), again.unwrap()), (done, None));
        });
        logged.push(
            events.await.into_iter().filter(|event| event.contains("result_reads_differently")).count(),
        );
    }
    assert_eq!(logged, [1, 0]);
}

/// A deployment changes a result's type while its records live.
#[tokio::test(start_paused = true)]
async fn results_of_another_type_say_so() {
    let bench = Bench::new();
    assert!(twice(&bench, "k", "receipt 1".to_owned()).await.iter().all(Result::is_ok));
    let mut found = None;
    let events = bench.recorded(async {
        let [again, _] = twice(&bench, "k", 1_u32).await;
        found = Some(again.unwrap_err());
    });
    let events = events.await;
    let Some(RunError::Idempotency(error)) = found else { panic!("{found:?}") };
    let key = bench.operation().stored_key(&Key::new("k").unwrap());
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(text.contains(key.as_str()) && text.contains("doesn't fit u32"), "{text}");
    let event = events.iter().find(|event| event.contains("result_does_not_fit")).unwrap();
    assert!(event.contains(key.as_str()), "{event}");
}

#[tokio::test(start_paused = true)]
async fn nan_payloads_are_refused() {
    let bench = Bench::new();
    for payload in [Some(f64::NAN), Some(f64::NEG_INFINITY)] {
        let Err(RunError::Idempotency(error)) = bench.run("k", payload).await else { panic!("not refused") };
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("isn't finite"), "{error}");
    }
    assert_eq!(bench.run("k", None::<f64>).await.unwrap(), "run 1");
    assert!(bench.store.take_calls().len() == 2, "the refused payloads claimed nothing");
}

#[tokio::test(start_paused = true)]
async fn recorded_error_keeps_its_type() {
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        let bench = Bench::with(|builder| {
            builder.execution(execution).settings(|s| s.on_handler_error = Recording::Record)
        });
        let recorded = async || match bench.fail("k", 1).await {
            Err(RunError::Recorded(failure)) => failure,
            other => panic!("{other:?}"),
        };
        let (first, again) = (recorded().await, recorded().await);
        assert_eq!(first, again);
        assert_eq!(first.error_type, std::any::type_name::<TestError>());
    }
}

#[tokio::test(start_paused = true)]
async fn callers_never_share_outcomes() {
    let bench = Bench::new();
    let run = async |operation: &crate::Operation, answer: &'static str| {
        let result =
            operation.run(Key::new("k").unwrap(), &1, || async { Ok::<_, TestError>(answer.to_owned()) });
        result.await.unwrap()
    };
    let operation = bench.operation();
    let (anna, otto) = (operation.for_caller("anna").unwrap(), operation.for_caller("otto").unwrap());
    for (operation, answer) in [(&operation, "no caller's"), (&anna, "anna's"), (&otto, "otto's")] {
        assert_eq!(run(operation, answer).await, answer);
        assert_eq!(run(operation, "another").await, answer);
    }
    assert_eq!(operation.for_caller("").unwrap_err().kind(), ErrorKind::Invalid);
}

/// An operation outside of a layer, for example in a spawned task, has no invocation. The library logs this once.
#[tokio::test(start_paused = true)]
async fn missing_invocation_is_logged_once() {
    let bench = Bench::new();
    let logged = async |bench: &Bench, keys: [&'static str; 2]| {
        let events = bench.recorded(async {
            for key in keys {
                bench.run(key, 1).await.unwrap();
            }
        });
        events.await.iter().filter(|event| event.contains("no_invocation")).count()
    };
    let invocation =
        Invocation::entered(bench.now(), bench.now().saturating_add(Duration::from_secs(60)), "id");
    assert_eq!(logged(&bench.within(invocation), ["a", "b"]).await, 0);
    assert_eq!(logged(&bench, ["c", "d"]).await, 1);
}
