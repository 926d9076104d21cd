//! `run_in` and `begin_in` on a third party's store, which keeps the record in the caller's transaction.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use lambda_idempotency::{
    Begun, ErrorKind, Fingerprint, Idempotency, Key, Operation, RunError, Settled, StoredKey,
    settings::Mode,
    store::{
        BoxFuture, CallerTransactions, Put, PutOutcome, Record, Store, StoreError, StoreErrorKind,
        memory::MemoryStore,
    },
};
use lambda_idempotency_testing::Fault;
use testkit::logged::logged;

use crate::recording;

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A database in memory: the records and their locks, and the amount that callers have deposited.
#[derive(Clone, Debug, Default)]
struct Bank(Arc<Tables>);

#[derive(Debug, Default)]
struct Tables {
    records: MemoryStore,
    locks: Mutex<HashSet<StoredKey>>,
    deposited: AtomicU32,
    /// The next commit's fault, and a commit that arrives during the second look.
    fault: Mutex<(Option<Fault>, Option<Deposit>)>,
    looks: AtomicU32,
}

/// A transaction.
#[derive(Debug)]
struct Deposit {
    bank: Bank,
    amount: AtomicU32,
    locked: Mutex<Option<StoredKey>>,
    put: Mutex<Option<Put>>,
}

impl Deposit {
    async fn apply(self) {
        let (key, put) = (self.locked.lock().unwrap().clone(), self.put.lock().unwrap().take());
        if let (Some(key), Some(put)) = (key, put) {
            assert_eq!(self.bank.put(&key, &put).await.unwrap(), PutOutcome::Applied);
        }
        self.bank.0.deposited.fetch_add(self.amount.load(SeqCst), SeqCst);
    }
}

impl Drop for Deposit {
    fn drop(&mut self) {
        self.locked.lock().unwrap().take().map(|key| self.bank.0.locks.lock().unwrap().remove(&key));
    }
}

fn locked() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "another transaction holds the key")
}

impl Store for Bank {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> Answer<'a, PutOutcome> {
        self.0.records.put(key, put)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> Answer<'a, Option<Record>> {
        self.0.records.read(key)
    }
}

impl CallerTransactions for Bank {
    type Connection = ();
    type Transaction<'c> = Deposit;

    fn begin<'c>(&'c self, (): &'c mut ()) -> Answer<'c, Deposit> {
        let (amount, locked, put) = Default::default();
        Box::pin(async { Ok(Deposit { bank: self.clone(), amount, locked, put }) })
    }

    fn lock_and_read_in<'a>(
        &'a self,
        deposit: &'a Deposit,
        key: &'a StoredKey,
    ) -> Answer<'a, (Option<Record>, i64)> {
        Box::pin(async {
            if !self.0.locks.lock().unwrap().insert(key.clone()) {
                return Err(locked());
            }
            *deposit.locked.lock().unwrap() = Some(key.clone());
            Ok((self.read(key).await?, 0))
        })
    }

    fn put_in<'a>(
        &'a self,
        deposit: &'a Deposit,
        key: &'a StoredKey,
        put: &'a Put,
        _: Option<i64>,
    ) -> Answer<'a, Option<PutOutcome>> {
        Box::pin(async {
            let current = self.read(key).await?;
            if put.apply_to(current.as_ref()).is_none() {
                return Ok(Some(PutOutcome::Refused(current)));
            }
            *deposit.put.lock().unwrap() = Some(put.clone());
            Ok(Some(PutOutcome::Applied))
        })
    }

    fn commit<'c>(&'c self, deposit: Deposit, _: bool) -> Answer<'c, ()> {
        Box::pin(async {
            let fault = self.0.fault.lock().unwrap().0.take();
            match fault {
                Some(Fault::Late) => self.0.fault.lock().unwrap().1 = Some(deposit),
                Some(Fault::LoseRequest) => drop(deposit),
                _ => deposit.apply().await,
            }
            let lost = StoreError::new(StoreErrorKind::Unavailable, "no answer").maybe_applied(true);
            fault.map_or(Ok(()), |_| Err(lost))
        })
    }

    fn roll_back<'c>(&'c self, deposit: Deposit) -> Answer<'c, ()> {
        drop(deposit);
        Box::pin(async { Ok(()) })
    }

    fn look<'a>(&'a self, key: &'a StoredKey) -> Answer<'a, Option<Record>> {
        Box::pin(async {
            let record = self.read(key).await?;
            let is_second = self.0.looks.fetch_add(1, SeqCst) == 1;
            let late = self.0.fault.lock().unwrap().1.take_if(|_| is_second);
            if let Some(late) = late {
                late.apply().await;
            }
            if self.0.locks.lock().unwrap().contains(key) { Err(locked()) } else { Ok(record) }
        })
    }
}

impl Bank {
    fn operation(&self, mode: Mode) -> Operation {
        let idempotency = Idempotency::builder(self.clone()).function("bank").mode(mode).build().unwrap();
        recording::shown(&idempotency);
        idempotency.operation("deposit").unwrap()
    }

    /// Deposits one coin under `key`, in one transaction with the record.
    async fn deposit(&self, mode: Mode, key: &str) -> Result<u32, RunError<String>> {
        let coin = async |deposit: &Deposit| Ok(deposit.amount.fetch_add(1, SeqCst) + 1);
        let (operation, key, mut connection) = (self.operation(mode), Key::new(key).unwrap(), ());
        let depositing = operation.run_in(self, &mut connection, &key, "a coin", coin);
        is_send(&depositing);
        depositing.await
    }

    fn deposited(&self) -> u32 {
        self.0.deposited.load(SeqCst)
    }
}

/// Compiles only if a task on another thread may run the operation.
fn is_send(_: &impl Send) {}

fn kind<T>(result: Result<T, RunError<String>>) -> ErrorKind {
    match result {
        Err(RunError::Idempotency(error)) => error.kind(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the operation succeeded"),
    }
}

#[tokio::test]
async fn third_party_transactions_commit_once() {
    recording::begin();
    let bank = Bank::default();
    for _ in 0..2 {
        assert_eq!(bank.deposit(Mode::Enforce, "a").await.unwrap(), 1);
    }
    assert_eq!(bank.deposited(), 1);
    // A failed or panicking operation is rolled back, and runs again.
    let (operation, key) = (bank.operation(Mode::Enforce), Key::new("b").unwrap());
    let failing = async |deposit: &Deposit| {
        deposit.amount.fetch_add(1, SeqCst);
        Err::<u32, _>("no coin".to_owned())
    };
    let failed = operation.run_in(&bank, &mut (), &key, "a coin", failing).await;
    assert!(matches!(failed, Err(RunError::Handler(_))), "{failed:?}");
    let panicking = tokio::spawn({
        let (bank, key) = (bank.clone(), key.clone());
        async move {
            let panicking = async |_: &Deposit| -> Result<u32, String> { panic!("a coin fell") };
            bank.operation(Mode::Enforce).run_in(&bank, &mut (), &key, "a coin", panicking).await
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    // A duplicate doesn't wait for a transaction of the caller's own.
    let transaction = bank.begin(&mut ()).await.unwrap();
    let begun = operation.begin_in(&bank, &transaction, &key, Fingerprint::of("a coin").unwrap()).await;
    let Begun::Claimed(begun) = begun.unwrap() else { panic!("there's an outcome") };
    assert_eq!(kind(bank.deposit(Mode::Enforce, "b").await), ErrorKind::InProgress);
    assert!(matches!(begun.complete("7").await.unwrap(), Settled::Recorded));
    transaction.apply().await;
    assert_eq!((bank.deposit(Mode::Enforce, "b").await.unwrap(), bank.deposited()), (7, 1));
}

/// If a commit's answer is lost, the library looks until the transaction has ended, and once more if the first look that
/// finds the key free shows no outcome.
#[tokio::test]
async fn third_party_commits_in_doubt_are_resolved() {
    recording::begin();
    for (fault, looks, is_committed) in
        [(Fault::LoseAnswer, 1, true), (Fault::LoseRequest, 2, false), (Fault::Late, 3, true)]
    {
        let bank = Bank::default();
        bank.0.fault.lock().unwrap().0 = Some(fault);
        let first = bank.deposit(Mode::Enforce, "a").await;
        assert_eq!(bank.0.looks.load(SeqCst), looks, "{fault:?}");
        match is_committed {
            true => assert_eq!(first.unwrap(), 1, "{fault:?}"),
            false => assert_eq!(kind(first), ErrorKind::Unavailable, "{fault:?}"),
        }
        assert_eq!(bank.deposited(), u32::from(is_committed), "{fault:?}");
        assert_eq!((bank.deposit(Mode::Enforce, "a").await.unwrap(), bank.deposited()), (1, 1), "{fault:?}");
    }
}

#[tokio::test]
async fn third_party_transactions_commit_without_enforcement() {
    recording::begin();
    for mode in [Mode::Off, Mode::Shadow] {
        let bank = Bank::default();
        for deposited in 1..=2 {
            assert_eq!(bank.deposit(mode, "a").await.unwrap(), 1);
            assert_eq!(bank.deposited(), deposited, "{mode:?}");
        }
        for (fault, deposited) in [(Fault::LoseAnswer, 3), (Fault::LoseRequest, 3)] {
            bank.0.fault.lock().unwrap().0 = Some(fault);
            assert_eq!(kind(bank.deposit(mode, "a").await), ErrorKind::Unrecorded, "{mode:?}, {fault:?}");
            assert_eq!((bank.deposited(), bank.0.looks.load(SeqCst)), (deposited, 0), "{mode:?}, {fault:?}");
        }
    }
}

/// The parts of one operation share its span, which says how the operation ended.
#[tokio::test]
async fn third_party_transactions_have_spans() {
    recording::begin();
    let bank = Bank::default();
    let (operation, key) = (bank.operation(Mode::Enforce), Key::new("a").unwrap());
    let coin = Fingerprint::of("a coin").unwrap();
    let deposits = async {
        for _ in 0..2 {
            let transaction = bank.begin(&mut ()).await.unwrap();
            let Begun::Claimed(begun) = operation.begin_in(&bank, &transaction, &key, coin).await.unwrap()
            else {
                return;
            };
            assert!(matches!(begun.complete("7").await.unwrap(), Settled::Recorded));
            transaction.apply().await;
        }
        panic!("the second deposit was claimed");
    };
    let ((), told) = logged(deposits).await;
    let found: Vec<_> = told.spans.iter().filter(|fields| fields.starts_with("outcome")).collect();
    assert_eq!(found, [r#"outcome="completed" "#, r#"outcome="replayed" "#], "{told:?}");
    let other = Fingerprint::of("two coins").unwrap();
    let transaction = bank.begin(&mut ()).await.unwrap();
    let (refused, told) = logged(operation.begin_in(&bank, &transaction, &key, other)).await;
    assert_eq!(refused.map(|_| ()).unwrap_err().kind(), ErrorKind::Mismatch);
    assert!(told.spans.contains(&r#"outcome="refused" "#.to_owned()), "{told:?}");
}
