//! Runs functions with the attribute `#[idempotent]` on the memory store, and compares one function with its
//! handwritten form.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::{
    cell::{Cell, RefCell},
    error::Error,
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use lambda_idempotency::{
    ClaimHandle, ErrorKind, Failure, Found, Idempotency, Key, RunError, StoredKey, idempotent,
    store::{
        BoxFuture, Put, PutOutcome, Record, Status, Store, StoreError, StoreErrorKind, memory::MemoryStore,
    },
};
use serde::Serialize;

#[derive(Clone, Serialize)]
struct Order {
    id: String,
    cents: u64,
}

fn order(id: &str, cents: u64) -> Order {
    Order { id: id.into(), cents }
}

fn memory() -> (MemoryStore, Idempotency) {
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store.clone()).function("orders").build().unwrap();
    (store, idempotency)
}

fn kind<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RunError<E>>) -> ErrorKind {
    match result {
        Err(RunError::Idempotency(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

/// Charges an order, and counts the runs. The parameters are borrowed, and the future isn't `Send`.
#[idempotent(key = order.id, compare = order)]
async fn charge(
    order: &Order,
    runs: &Rc<Cell<u32>>,
    log: &mut Vec<String>,
    idempotency: &Idempotency,
) -> Result<String, io::Error> {
    runs.set(runs.get() + 1);
    tokio::task::yield_now().await;
    log.push(order.id.clone());
    if order.cents == 0 {
        return Err(io::Error::other("nothing to charge"));
    }
    let cents: i64 = order.cents.try_into().map_err(io::Error::other)?;
    Ok(format!("receipt {} for {cents}", runs.get()))
}

#[tokio::test]
async fn second_calls_replay_the_first_result() {
    let (_, idempotency) = memory();
    let (runs, mut log) = (Rc::default(), Vec::new());
    for _ in 0..2 {
        let receipt = charge(&order("17", 1250), &runs, &mut log, &idempotency).await.unwrap();
        assert_eq!(receipt, "receipt 1 for 1250");
    }
    assert_eq!((runs.get(), log.len()), (1, 1));
    let other = charge(&order("18", 1250), &runs, &mut log, &idempotency).await.unwrap();
    assert_eq!(other, "receipt 2 for 1250");
}

#[tokio::test]
async fn another_payload_is_a_mismatch() {
    let (_, idempotency) = memory();
    let (runs, mut log) = (Rc::default(), Vec::new());
    charge(&order("17", 1250), &runs, &mut log, &idempotency).await.unwrap();
    let other = charge(&order("17", 1), &runs, &mut log, &idempotency).await;
    assert_eq!(kind(other), ErrorKind::Mismatch);
    assert_eq!(runs.get(), 1);
}

#[tokio::test]
async fn handler_errors_release_the_key() {
    let (_, idempotency) = memory();
    let (runs, mut log) = (Rc::default(), Vec::new());
    for _ in 0..2 {
        let failed = charge(&order("17", 0), &runs, &mut log, &idempotency).await;
        assert!(matches!(failed, Err(RunError::Handler(error)) if error.to_string() == "nothing to charge"));
    }
    assert_eq!(runs.get(), 2);
}

#[tokio::test]
async fn handler_never_runs_with_invalid_key() {
    let (_, idempotency) = memory();
    let (runs, mut log) = (Rc::default(), Vec::new());
    let failed = charge(&order("", 1250), &runs, &mut log, &idempotency).await;
    assert_eq!((kind(failed), runs.get()), (ErrorKind::InvalidKey, 0));
}

/// The handwritten form replays the record of a call of `charge`, and `charge` replays the record of the handwritten
/// form. So both forms have the same operation name, stored key and fingerprint.
#[tokio::test]
async fn expansion_equals_the_handwritten_form() {
    let (store, idempotency) = memory();
    let (runs, mut log) = (Rc::default(), Vec::new());
    let (first, second) = (order("17", 1250), order("18", 900));
    let by_hand = idempotency.operation("idempotent.charge").unwrap();

    let receipt = charge(&first, &runs, &mut log, &idempotency).await.unwrap();
    let key = Key::new("17").unwrap();
    let record = store.read(&by_hand.stored_key(&key)).await.unwrap();
    assert!(record.is_some(), "`charge` and its handwritten form have different stored keys");
    let replayed: Result<String, RunError<io::Error>> =
        by_hand.run(key, &first, || async { panic!("the operation ran again") }).await;
    assert_eq!(replayed.unwrap(), receipt);

    let key = Key::new("18").unwrap();
    let said = async || Ok::<_, io::Error>("by hand".to_owned());
    by_hand.run(key, &second, said).await.unwrap();
    assert_eq!(charge(&second, &runs, &mut log, &idempotency).await.unwrap(), "by hand");
    assert_eq!(runs.get(), 1);
}

/// Says whether the charge happened.
async fn find_charge(
    claim: ClaimHandle,
    order: &Order,
) -> Result<Found<String>, Box<dyn Error + Send + Sync>> {
    assert!(claim.is_takeover());
    Ok(Found::Happened(format!("found {}", order.cents)))
}

#[idempotent(key = order.id, compare = order, reconcile = |claim| find_charge(claim, order))]
async fn charge_once(order: &Order, runs: &Cell<u32>, idempotency: &Idempotency) -> Result<String, Failure> {
    runs.set(runs.get() + 1);
    Err(Failure::unknown("the gateway didn't answer"))
}

#[tokio::test]
async fn unanswered_calls_are_asked_for() {
    let clock = testkit::clock::SetClock::system();
    let idempotency =
        Idempotency::builder(MemoryStore::new()).function("orders").clock(clock.clone()).build().unwrap();
    let (order, runs) = (order("17", 1250), Cell::new(0));
    charge_once(&order, &runs, &idempotency).await.unwrap_err();
    clock.forward(Duration::from_secs(40));
    assert_eq!(charge_once(&order, &runs, &idempotency).await.unwrap(), "found 1250");
    assert_eq!(runs.get(), 1);
}

struct Payments {
    idempotency: Arc<Idempotency>,
    refunded: RefCell<Vec<u64>>,
}

impl Payments {
    /// Compares both parameters, since `compare` is missing. Consumes neither.
    #[idempotent(operation = "refund", key = Key::new(format!("{order}/{line}"))?)]
    async fn refund(&self, order: &str, line: u64) -> Result<usize, io::Error> {
        self.refunded.borrow_mut().push(line);
        Ok(self.refunded.borrow().len())
    }

    /// Consumes `order`, so it compares a clone.
    #[idempotent(operation = "keep", key = order.id, compare = order.clone(), with = app.0)]
    async fn keep(order: Order, app: (&Idempotency, u8)) -> Result<u8, io::Error> {
        drop(order);
        Ok(app.1)
    }
}

#[tokio::test]
async fn methods_run_once_per_key() {
    let (store, idempotency) = memory();
    let payments = Payments { idempotency: Arc::new(idempotency.clone()), refunded: RefCell::default() };
    assert_eq!(payments.refund("17", 1).await.unwrap(), 1);
    assert_eq!(payments.refund("17", 2).await.unwrap(), 2);
    assert_eq!(payments.refund("17", 1).await.unwrap(), 1);
    let key = idempotency.operation("refund").unwrap().stored_key(&Key::new("17/2").unwrap());
    assert!(store.read(&key).await.unwrap().is_some());
}

#[tokio::test]
async fn all_parameters_are_compared_by_default() {
    #[idempotent(operation = "order", key = id)]
    async fn place(id: &str, cents: u64, idempotency: &Idempotency) -> Result<u64, io::Error> {
        Ok(cents)
    }
    let (_, idempotency) = memory();
    assert_eq!(place("17", 1250, &idempotency).await.unwrap(), 1250);
    assert_eq!(place("17", 1250, &idempotency).await.unwrap(), 1250);
    assert_eq!(kind(place("17", 1, &idempotency).await), ErrorKind::Mismatch);
}

#[tokio::test]
async fn consumed_parameters_are_compared_by_clone() {
    let (_, idempotency) = memory();
    assert_eq!(Payments::keep(order("17", 1250), (&idempotency, 1)).await.unwrap(), 1);
    assert_eq!(Payments::keep(order("17", 1250), (&idempotency, 2)).await.unwrap(), 1);
    assert_eq!(kind(Payments::keep(order("17", 1), (&idempotency, 1)).await), ErrorKind::Mismatch);
}

#[tokio::test]
async fn handlers_may_change_compared_parameters() {
    #[idempotent(operation = "order", key = order.id, compare = order.clone())]
    async fn place(mut order: Order, idempotency: &Idempotency) -> Result<String, io::Error> {
        order.id.push_str(", changed");
        order.cents = 0;
        Ok(order.id)
    }
    let (_, idempotency) = memory();
    assert_eq!(place(order("17", 1250), &idempotency).await.unwrap(), "17, changed");
    assert_eq!(place(order("17", 1250), &idempotency).await.unwrap(), "17, changed");
    assert_eq!(kind(place(order("17", 0), &idempotency).await), ErrorKind::Mismatch);
}

/// A memory store that fails every release.
#[derive(Debug)]
struct WithoutReleases(MemoryStore);

impl Store for WithoutReleases {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        if put.record().status() == Status::Released {
            let error = StoreError::new(StoreErrorKind::Unavailable, "the store is down");
            return Box::pin(std::future::ready(Err(error)));
        }
        self.0.put(key, put)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.0.read(key)
    }
}

#[tokio::test]
async fn failed_releases_return_the_handlers_error() {
    let store = WithoutReleases(MemoryStore::new());
    let builder =
        Idempotency::builder(store).function("orders").settings(|s| s.settle_within = Duration::ZERO);
    let idempotency = builder.build().unwrap();
    let (runs, mut log) = (Rc::default(), Vec::new());
    let failed = charge(&order("order-17", 0), &runs, &mut log, &idempotency).await;
    assert!(matches!(failed, Err(RunError::Handler(error)) if error.to_string() == "nothing to charge"));
    // Until the lease expires, the key is in progress. The error has the stored key, and not the caller's key.
    let again = charge(&order("order-17", 0), &runs, &mut log, &idempotency).await.unwrap_err().to_string();
    let key = idempotency.operation("idempotent.charge").unwrap().stored_key(&Key::new("order-17").unwrap());
    assert!(again.contains(key.as_str()) && !again.contains("order-17"), "{again}");
    assert!(again.contains("still running"), "{again}");
    assert_eq!(runs.get(), 1);
}

/// The name below has 124 characters, the most that the attribute accepts. The library has the same limit.
#[tokio::test]
async fn longest_operation_names_are_valid() {
    #[rustfmt::skip]
    #[idempotent(
        operation = "aaaaaaaaa.bbbbbbbbb.ccccccccc.ddddddddd.eeeeeeeee.fffffffff.\
                     ggggggggg.hhhhhhhhh.iiiiiiiii.jjjjjjjjj.kkkkkkkkk.lllllllll.mmmm",
        key = id
    )]
    async fn place(id: &str, idempotency: &Idempotency) -> Result<u64, io::Error> {
        Ok(1)
    }
    let (_, idempotency) = memory();
    assert_eq!(place("17", &idempotency).await.unwrap(), 1);
    assert!(idempotency.operation("n".repeat(124)).is_ok());
    assert!(idempotency.operation("n".repeat(125)).is_err());
}

mod re_exported {
    pub(super) mod payments {
        pub(crate) use lambda_idempotency as idempotency;
    }
    // A name that hides the library, so that the attribute can only use the path.
    #[allow(dead_code, reason = "it only hides the library's name")]
    mod lambda_idempotency {}

    use super::{Idempotency, io};

    #[super::idempotent(key = id, crate = payments::idempotency)]
    pub(super) async fn by_path(id: &str, idempotency: &Idempotency) -> Result<usize, io::Error> {
        Ok(id.len())
    }

    #[super::idempotent(key = id, crate = "payments::idempotency")]
    pub(super) async fn quoted(id: &str, idempotency: &Idempotency) -> Result<usize, io::Error> {
        Ok(id.len())
    }
}

#[tokio::test]
async fn library_is_found_under_the_given_path() {
    let (store, idempotency) = memory();
    for _ in 0..2 {
        assert_eq!(re_exported::by_path("order-17", &idempotency).await.unwrap(), 8);
        assert_eq!(re_exported::quoted("order-17", &idempotency).await.unwrap(), 8);
    }
    drop(store);
}
