//! A bank for the tests: handlers stage deposits, and the store commits the deposits in one transaction with the
//! outcome.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use super::support::{Script::Meets, ScriptedStore, after, silent_if};
use crate::{
    StoredKey,
    future::BoxFuture,
    store::{CommitOutcome, OwnWrites, Put, PutOutcome, StoreError, StoreErrorKind, Transactions},
};
use lambda_idempotency_testing::Fault;

/// A deposit to one account, on the condition that the account's balance is at least `at_least`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Deposit {
    account: &'static str,
    cents: i64,
    at_least: i64,
}

/// Deposits, as a handler stages them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Deposits(Vec<Deposit>);

impl Deposits {
    pub(super) fn of(account: &'static str, cents: i64) -> Self {
        Self(vec![Deposit { account, cents, at_least: i64::MIN }])
    }

    /// Adds a condition to the deposits: each balance must be at least `at_least`.
    pub(super) fn if_balance_is_at_least(mut self, at_least: i64) -> Self {
        self.0.iter_mut().for_each(|deposit| deposit.at_least = at_least);
        self
    }
}

impl std::ops::AddAssign for Deposits {
    fn add_assign(&mut self, more: Self) {
        self.0.extend(more.0);
    }
}

/// The bank's details about a failed condition.
#[derive(Debug, PartialEq)]
pub(super) struct Short {
    pub(super) account: &'static str,
    pub(super) has: i64,
}

#[derive(Clone, Debug, PartialEq)]
struct Order {
    key: StoredKey,
    put: Put,
    deposits: Deposits,
    token: String,
}

#[derive(Debug, Default)]
struct Books {
    balances: BTreeMap<&'static str, i64>,
    /// The first request that was sent with each token.
    sent: HashMap<String, Order>,
    /// The tokens of all requests, in the order of the requests.
    tokens: Vec<String>,
    applied: Vec<String>,
    late: Option<Order>,
    ignores_tokens: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Bank(Arc<Mutex<Books>>);

impl Bank {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap()
    }

    pub(super) fn balance(&self, account: &str) -> i64 {
        self.books().balances.get(account).copied().unwrap_or_default()
    }

    pub(super) fn pay_in(&self, account: &'static str, cents: i64) {
        *self.books().balances.entry(account).or_default() += cents;
    }

    /// The tokens of all requests, in the order of the requests.
    pub(super) fn tokens(&self) -> Vec<String> {
        self.books().tokens.clone()
    }

    /// Simulates a server that doesn't recognise a repeated transaction by its token.
    pub(super) fn ignore_tokens(&self) {
        self.books().ignores_tokens = true;
    }
}

impl ScriptedStore {
    /// Applies the transaction that `Fault::Late` held back.
    pub(super) fn apply_late(&self) -> CommitOutcome {
        let order = self.bank.books().late.take().unwrap();
        self.apply_order(&order)
    }

    /// Applies the whole transaction in one atomic step: there's no `await` in this function.
    fn apply_order(&self, order: &Order) -> CommitOutcome {
        let mut books = self.bank.books();
        if !books.ignores_tokens && books.applied.contains(&order.token) {
            return CommitOutcome::Answered(PutOutcome::Applied);
        }
        let there = self.inner.get(&order.key);
        let Some(record) = order.put.apply_to(there.as_ref()) else {
            return CommitOutcome::Answered(PutOutcome::Refused(there));
        };
        let committed = books.deposit(&order.deposits, &order.token);
        if let CommitOutcome::Answered(_) = committed {
            self.inner.set(&order.key, Some(record));
        }
        committed
    }
}

impl Books {
    fn deposit(&mut self, deposits: &Deposits, token: &str) -> CommitOutcome {
        if !self.ignores_tokens && self.applied.iter().any(|applied| applied == token) {
            return CommitOutcome::Answered(PutOutcome::Applied);
        }
        for deposit in &deposits.0 {
            let has = self.balances.get(deposit.account).copied().unwrap_or_default();
            if has < deposit.at_least {
                return CommitOutcome::Declined(Box::new(Short { account: deposit.account, has }));
            }
        }
        for deposit in &deposits.0 {
            *self.balances.entry(deposit.account).or_default() += deposit.cents;
        }
        self.applied.push(token.to_owned());
        CommitOutcome::Answered(PutOutcome::Applied)
    }
}

impl Transactions for ScriptedStore {
    fn check(&self, _: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        let writes: &dyn Any = writes;
        let rejected = |why| Err(StoreError::new(StoreErrorKind::Rejected, why));
        match writes.downcast_ref::<Deposits>() {
            None => rejected("the bank takes only deposits"),
            Some(deposits) if deposits.0.len() > 3 => {
                rejected("the bank takes at most three deposits at once")
            }
            Some(_) => Ok(()),
        }
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let writes: &dyn Any = writes;
        let deposits = writes.downcast_ref::<Deposits>().unwrap().clone();
        let order = Order { key: key.clone(), put: put.clone(), deposits, token: token.to_owned() };
        assert!((1..=36).contains(&token.len()), "{token}");
        {
            let mut books = self.bank.books();
            let first = books.sent.entry(token.to_owned()).or_insert_with(|| order.clone());
            assert_eq!(*first, order, "a repeated token must come with the same request");
            books.tokens.push(token.to_owned());
        }
        Box::pin(async move {
            let script = self.next("commit")?;
            silent_if(script, Fault::Silence).await;
            if script == Meets(Fault::Late) {
                self.bank.books().late = Some(order);
                return after(Meets(Fault::LoseAnswer), CommitOutcome::Answered(PutOutcome::Applied));
            }
            let committed = self.apply_order(&order);
            silent_if(script, Fault::SilenceAfter).await;
            // Yields once, so that other calls can run before this answer.
            tokio::task::yield_now().await;
            after(script, committed)
        })
    }

    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let writes: &dyn Any = writes;
        let deposits = writes.downcast_ref::<Deposits>().unwrap().clone();
        assert!((1..=36).contains(&token.len()), "{token}");
        self.bank.books().tokens.push(token.to_owned());
        Box::pin(async move {
            let script = self.next("commit alone")?;
            silent_if(script, Fault::Silence).await;
            let committed = self.bank.books().deposit(&deposits, token);
            silent_if(script, Fault::SilenceAfter).await;
            after(script, committed)
        })
    }
}
