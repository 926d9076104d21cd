//! Runs a handler in the testing kit, with events made for that handler. The kit's ledger stands in for the systems
//! that the handler calls.

use std::fmt::Write as _;

use lambda_idempotency_testing::{Bench, Event, Function, Ledger, NoAnswer, Report, survive};

use crate::world::{Effect, GatewayError, World};

/// One handler, and its events.
pub(crate) struct Handler {
    pub(crate) name: &'static str,
    pub(crate) make: fn(&Bench) -> Function,
    pub(crate) event: Event,
}

/// Makes the [`Handler`] of a module.
macro_rules! handler {
    (@function http, $made:expr) => { lambda_idempotency_testing::Function::http($made) };
    (@function $kind:ident, $made:expr) => {
        lambda_idempotency_testing::Function::lambda::<_, Box<serde_json::value::RawValue>>($made)
    };
    ($($part:ident)::+, $kind:ident) => {{
        use $crate::$($part)::+::{AGAIN, OTHER, SAMPLE};
        let name = stringify!($($part)::+);
        let event = lambda_idempotency_testing::Event::json(SAMPLE).again(AGAIN);
        $crate::drive::Handler {
            name: name.rsplit("::").next().unwrap().trim(),
            make: |bench| {
                let world = std::sync::Arc::new($crate::drive::Systems(bench.ledger()));
                let made = $crate::$($part)::+::$kind(bench.idempotency(), world).unwrap();
                handler!(@function $kind, made)
            },
            event: $crate::drive::with_other(name, event, OTHER),
        }
    }};
}
pub(crate) use handler;

/// Gives the kit a second event, `other`, to deliver beside the first. For handlers 12 and 13, `other` is the same order
/// with another amount, so it conflicts with the first event. For the other handlers, it's another operation.
pub(crate) fn with_other(name: &str, event: Event, other: &str) -> Event {
    let is_same_order = name.contains("w12_") || name.contains("w13_");
    if is_same_order { event.conflicting(other) } else { event.other(other) }
}

/// The systems that the handlers call, implemented by the kit's ledger.
pub(crate) struct Systems(pub(crate) Ledger);

impl Systems {
    fn call<'a>(&'a self, effect: String, key: Option<&'a str>, detail: String) -> Effect<'a, String> {
        Box::pin(async move {
            let receipt = self.0.call(&effect, key, detail).await;
            receipt.map_err(|NoAnswer| GatewayError::Unavailable)
        })
    }

    fn tell<'a>(&'a self, effect: String, key: Option<&'a str>, detail: String) -> Effect<'a, ()> {
        Box::pin(async move { self.call(effect, key, detail).await.map(drop) })
    }
}

impl World for Systems {
    fn charge<'a>(&'a self, key: Option<&'a str>, account: &'a str, cents: u64) -> Effect<'a, String> {
        self.call("charge".to_owned(), key, format!("{account} {cents}"))
    }

    fn refund<'a>(&'a self, charge: &'a str) -> Effect<'a, ()> {
        self.tell("refund".to_owned(), Some(charge), charge.to_owned())
    }

    fn send_mail<'a>(&'a self, dedup: Option<&'a str>, to: &'a str, text: &'a str) -> Effect<'a, ()> {
        self.tell("mail".to_owned(), dedup, format!("{to}: {text}"))
    }

    fn publish<'a>(&'a self, queue: &'a str, dedup: Option<&'a str>, message: &'a str) -> Effect<'a, ()> {
        self.tell(format!("publish to {queue}"), dedup, message.to_owned())
    }

    fn put_item<'a>(&'a self, table: &'a str, id: &'a str, item: &'a str) -> Effect<'a, ()> {
        self.tell(format!("put into {table}"), Some(id), format!("{id}: {item}"))
    }

    fn add<'a>(&'a self, table: &'a str, id: &'a str, number: i64) -> Effect<'a, ()> {
        self.tell(format!("add to {table}"), None, format!("{id}: {number}"))
    }
}

/// A handler, and the kit's report about it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) report: Report,
}

impl Row {
    pub(crate) fn is_caught(&self) -> bool {
        !self.report.findings().is_empty()
    }
}

pub(crate) fn tried(handler: Handler) -> Row {
    Row { name: handler.name, report: survive(handler.make, &handler.event) }
}

/// One line per handler: the kinds of mistakes that the kit found, and the first finding.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let kinds: Vec<&str> = row.report.findings().iter().map(|finding| finding.mistake.name()).collect();
        let first = row.report.findings().first().map_or("", |finding| finding.what.as_str());
        let _ = writeln!(text, "| {} | {} | {first} |", row.name, kinds.join(", "));
    }
    text
}
