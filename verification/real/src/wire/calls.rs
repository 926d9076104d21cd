//! Logs the library's calls to a store that talks to its server over plain TCP.
//!
//! The TCP proxy doesn't parse requests. So the log has one entry for each call of the library, and a plan says by
//! number which call each fault hits. Right after each call, the check reads the record without the proxy, to learn
//! whether the server applied the write.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Debug},
    sync::{Arc, Mutex},
    time::Instant,
};

use lambda_idempotency::{
    StoredKey,
    store::{Owner, Status, Store},
};
use lambda_idempotency_rehearsal::{
    clock,
    wire::{Exchange, HttpWay, Log, Meaning, Served},
};
use lambda_idempotency_testing::Fault;

use super::{
    case::Case,
    lock,
    told::{Brief, Told},
    way::OverTcp as _,
};
use crate::tcp::TcpProxy;

/// The calls of one run, each with its fault.
pub(super) struct Calls {
    proxy: TcpProxy,
    plan: BTreeMap<usize, HttpWay>,
    /// The calls in which the fault hits the request and all of its retries.
    whole: BTreeSet<usize>,
    begun: Instant,
    direct: Arc<dyn Store>,
    key: StoredKey,
    log: Mutex<Vec<Exchange>>,
    /// The writes that the proxy holds, by the call's number. Each has the owner and status that the record has after
    /// it. The proxy forwards the writes when it closes, or earlier.
    held: Mutex<BTreeMap<usize, Left>>,
}

impl Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("proxy", &self.proxy).field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The owner and status that the record has after a write.
pub(super) type Left = (Owner, Status);

impl Calls {
    /// Creates the log of the calls through `proxy`. The calls get the faults of `case`. `direct` reads the record
    /// without the proxy.
    pub(super) fn new(proxy: TcpProxy, case: &Case, direct: Arc<dyn Store>, key: StoredKey) -> Self {
        Self {
            proxy,
            plan: case.plan(),
            whole: case.scenario.lead.iter().map(|(at, _)| *at).collect(),
            begun: clock::start(),
            direct,
            key,
            log: Mutex::default(),
            held: Mutex::default(),
        }
    }

    /// Closes the proxy, which then forwards the held writes. Notes which of them the server applied.
    pub(super) async fn close(&self) {
        self.proxy.close().await;
        let found = self.found().await;
        let held = std::mem::take(&mut *lock(&self.held));
        for (nth, left) in held {
            if found == Some(Some(left))
                && let Some(exchange) = lock(&self.log).get_mut(nth)
            {
                exchange.served = Some(self.served(None));
            }
        }
    }

    /// Reads the record's owner and status. The outer `None` means that the record couldn't be read.
    async fn found(&self) -> Option<Option<Left>> {
        let record = self.direct.read(&self.key).await.ok()?;
        Some(record.map(|record| (record.owner, record.status())))
    }

    fn served(&self, refused: Option<&str>) -> Served {
        let status = if refused.is_some() { 400 } else { 200 };
        Served { at: self.begun.elapsed(), status, error: refused.map(str::to_owned) }
    }

    /// Begins a call and arms its fault. Returns how many requests the proxy broke before this call.
    fn begin(&self, meaning: Meaning) -> usize {
        let nth = {
            let mut log = lock(&self.log);
            let at = self.begun.elapsed();
            log.push(Exchange { at, meaning, ..Exchange::default() });
            log.len() - 1
        };
        if let Some(fault) = self.plan.get(&nth).and_then(|fault| fault.over_tcp()) {
            // The Redis store retries a request whose connection was cut, so one broken request doesn't fail the call.
            // The scenario's own faults must make the library read the record, so they break the retries too.
            let is_whole = self.whole.contains(&nth);
            self.proxy.break_next(if is_whole { usize::MAX } else { 1 }, fault);
        }
        self.proxy.struck()
    }

    /// Ends a call: notes the fault that hit the call, and what the server did.
    async fn end(&self, struck_before: usize, left: Option<Left>, told: &Told) {
        self.proxy.heal();
        let found = self.found().await;
        let mut log = lock(&self.log);
        let nth = log.len() - 1;
        let struck = self.proxy.struck() > struck_before;
        let fault = self.plan.get(&nth).copied().filter(|_| struck);
        let is_late = |way: Option<HttpWay>| way.is_some_and(|way| way.amounts_to() == Fault::Late);
        let may_change = log.iter().any(|exchange| is_late(exchange.fault)) || is_late(fault);
        let Some(exchange) = log.last_mut() else { return };
        exchange.fault = fault;
        let is_so =
            |said: &Option<Brief>| may_change || found == Some(said.map(|brief| (brief.owner, brief.status)));
        let is_made = left.is_some() && found.flatten() == left;
        exchange.served = match told {
            Told::Refused(said) if is_so(said) => Some(self.served(Some("ConditionalCheckFailedException"))),
            Told::Found(said) if is_so(said) => Some(self.served(None)),
            _ if is_made => Some(self.served(None)),
            _ => None,
        };
        let mut held = lock(&self.held);
        // Two held writes may leave the same record, which then can't show which one was applied. Forget the earlier
        // write.
        held.retain(|_, earlier| Some(*earlier) != left);
        if let (true, Some(left)) = (is_late(fault), left) {
            held.insert(nth, left);
        }
        exchange.answered = (!told.is_failure()).then(|| self.begun.elapsed());
    }
}

/// The log of the wire.
#[derive(Clone, Debug)]
pub(super) enum Notes {
    /// Every request, from a proxy that parses them.
    Requests(Log),
    /// Every call of the library, if the proxy doesn't parse requests.
    Calls(Arc<Calls>),
}

impl Notes {
    /// Returns the number of requests, or of calls.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Requests(log) => log.len(),
            Self::Calls(calls) => lock(&calls.log).len(),
        }
    }

    /// Returns the requests, or the calls, in order.
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        match self {
            Self::Requests(log) => log.exchanges(),
            Self::Calls(calls) => lock(&calls.log).clone(),
        }
    }

    /// Begins a call. Returns the value to pass to [`end`](Self::end) as `begun`.
    pub(super) fn begin(&self, meaning: Meaning) -> usize {
        match self {
            Self::Requests(_) => 0,
            Self::Calls(calls) => calls.begin(meaning),
        }
    }

    /// Ends a call with the result `told`. If the call is a write, `left` is the owner and status that the record has
    /// after it.
    pub(super) async fn end(&self, begun: usize, left: Option<Left>, told: &Told) {
        if let Self::Calls(calls) = self {
            calls.end(begun, left, told).await;
        }
    }
}
