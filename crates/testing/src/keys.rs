//! [`key_of`]: which fields of an event change its key, which its fingerprint, and which neither.

use std::{fmt, sync::Arc};

use lambda_idempotency_core::ErrorKind;

use super::{
    bench::{Bench, TIMEOUT},
    event::Event,
    fields::{Variant, variants},
    function::Function,
    survive::{Played, Subject, in_turn},
    world::outside_runtime,
};

/// The part of an operation that changes when a field of its event changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Changes {
    /// The key: the changed event is another operation.
    Key,
    /// The fingerprint: the changed event is refused under the same key.
    Fingerprint,
    /// Neither: the changed event gets the same outcome.
    Neither,
    /// The event's validity: the changed event is refused before any request to the store.
    Validity,
}

/// The fields of an event, and what each of them changes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "print it, or assert that it's sound"]
pub struct KeyReport {
    fields: Vec<(String, Changes)>,
    /// The part that the sender's retry changes. `None` if the retry equals the event.
    retry: Option<Changes>,
}

/// Words in the names of fields that differ in each delivery or attempt.
const OF_A_DELIVERY: [&str; 16] = [
    "timestamp",
    "sentat",
    "sent_at",
    "requestedat",
    "requested_at",
    "requesttime",
    "request_time",
    "timeepoch",
    "trace",
    "requestid",
    "request_id",
    "correlation",
    "nonce",
    "receipthandle",
    "receivecount",
    "attempt",
];
/// Words in the names of fields that hold an amount.
const OF_AN_AMOUNT: [&str; 8] = ["amount", "cents", "price", "total", "quantity", "sum", "currency", "value"];

/// Changes the fields of `event`, one at a time, and lists for each field whether the key or the fingerprint changes
/// with it. Changes at most 80 fields. Leaves out a field that's `null`, and a text without a letter or digit.
///
/// ```
/// use lambda_idempotency::Key;
/// use lambda_idempotency_testing::{Changes, Event, Function, key_of};
/// # use serde_json::Value;
///
/// let report = key_of(
///     |bench| {
///         let idempotency = bench.idempotency();
///         Function::new(move |order: Value| {
///             let idempotency = idempotency.clone();
///             async move {
///                 let key = Key::new(order["id"].as_str().unwrap_or_default())?;
///                 let pay = || async { Ok::<_, std::io::Error>("paid".to_owned()) };
///                 // The mistake: the amount isn't compared.
///                 idempotency.operation("pay")?.run(key, &"", pay).await
///             }
///         })
///     },
///     &Event::json(r#"{"id": "order-17", "cents": 1250}"#),
/// );
/// assert_eq!(report.changes("/id"), Some(Changes::Key));
/// assert_eq!(report.changes("/cents"), Some(Changes::Neither));
/// assert!(report.suspicions()[0].contains("`/cents`"));
/// ```
///
/// # Panics
///
/// If the operating system can't start a thread or a runtime.
pub fn key_of(make: impl Fn(&Bench) -> Function + Sync, event: &Event) -> KeyReport {
    let worked = outside_runtime(|| {
        let subject = Subject::new(&make, event, TIMEOUT);
        let json = event.shared();
        let changes = |other: &Arc<str>| -> std::io::Result<Changes> {
            let events = [(&json, "the event"), (other, "the changed event")];
            in_turn(&subject, &events, false, 0).map(|played| changed(&played))
        };
        let fields = variants(&json)
            .into_iter()
            .map(|Variant { field, json }| Ok((field, changes(&json)?)))
            .collect::<std::io::Result<_>>()?;
        let retried = event.retried(1).shared();
        let retry = if retried == json { None } else { Some(changes(&retried)?) };
        Ok::<_, std::io::Error>(KeyReport { fields, retry })
    });
    worked.unwrap_or_else(|error| panic!("`key_of` couldn't start a runtime: {error}"))
}

fn changed(played: &Played) -> Changes {
    let (first, second) = (played.turn(0).next(), played.turn(1).next());
    let (Some(first), Some(at)) = (first.and_then(|at| played.deliveries.get(at)), second) else {
        return Changes::Validity;
    };
    let Some(second) = played.deliveries.get(at) else { return Changes::Validity };
    if second.keys.is_empty() && !first.keys.is_empty() {
        return Changes::Validity;
    }
    if second.keys.iter().any(|key| !first.keys.contains(key)) {
        return Changes::Key;
    }
    let answer = played.answers.iter().find(|(delivery, _)| *delivery == at).map(|(_, answer)| answer);
    match answer {
        Some(answer) if answer.is_refused_as(ErrorKind::Mismatch) => Changes::Fingerprint,
        _ => Changes::Neither,
    }
}

impl KeyReport {
    /// Returns the JSON Pointer of each field, and the part that changes with the field.
    pub fn fields(&self) -> &[(String, Changes)] {
        &self.fields
    }

    /// Returns the part that changes with this field. `None` if the event has no such field.
    pub fn changes(&self, field: &str) -> Option<Changes> {
        self.fields.iter().find(|(name, _)| name == field).map(|(_, changes)| *changes)
    }

    /// Describes each suspicion in a sentence.
    ///
    /// Each of these is a suspicion: a retry whose key or fingerprint differs from the event's; a field that's in the
    /// key or compared, but looks like a time or a trace id; a field that isn't compared, but looks like an amount; and
    /// a key that no field changes.
    pub fn suspicions(&self) -> Vec<String> {
        let mut found = Vec::new();
        match self.retry {
            Some(Changes::Key) => found.push("the retry has another key, so it runs again".to_owned()),
            Some(Changes::Fingerprint) => {
                found.push("the retry has another fingerprint, so it's refused".to_owned());
            }
            _ => {}
        }
        for (field, changes) in &self.fields {
            let name = field.rsplit('/').next().unwrap_or_default().to_lowercase().replace('-', "_");
            let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
            match changes {
                Changes::Key | Changes::Fingerprint if has(&OF_A_DELIVERY) => {
                    let part = if *changes == Changes::Key { "in the key" } else { "compared" };
                    found.push(format!("`{field}` looks like it differs in each delivery, but is {part}"));
                }
                Changes::Neither if has(&OF_AN_AMOUNT) => {
                    found.push(format!("`{field}` looks like an amount, but isn't compared"));
                }
                _ => {}
            }
        }
        if !self.fields.iter().any(|(_, changes)| *changes == Changes::Key) {
            found.push("no field changes the key: all events share one key or have none".to_owned());
        }
        found
    }

    /// Checks that there are no suspicions.
    ///
    /// # Panics
    ///
    /// If there's a suspicion. The message lists the suspicions and all fields.
    #[track_caller]
    pub fn assert_sound(&self) {
        let suspicions = self.suspicions();
        assert!(suspicions.is_empty(), "{}\n{self}", suspicions.join("\n"));
    }
}

impl fmt::Display for KeyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.fields.iter().map(|(field, _)| field.len()).max().unwrap_or_default();
        for (field, changes) in &self.fields {
            let what = match changes {
                Changes::Key => "changes the key",
                Changes::Fingerprint => "changes the fingerprint",
                Changes::Neither => "changes neither",
                Changes::Validity => "isn't accepted",
            };
            writeln!(f, "{field:width$}  {what}")?;
        }
        Ok(())
    }
}
