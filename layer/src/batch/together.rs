//! Hands records to the function: several in one event, or one at a time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use lambda_idempotency::{
    Failure,
    settings::Mode,
    time::{Clock as _, system_clock},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::{
    sync::{Notify, OnceCell, oneshot},
    task::AbortHandle,
};
use tracing::Instrument as _;

use super::{Handed, identifier, listed, mode, partitions, records};
use crate::{
    answer::accept,
    config::BatchMode,
    event::{ClaimField, Event, Kind},
    function::{NoAnswer, Payload, Posted},
    turn::{self, Protection},
    upstream::MAX_BUFFERED,
};

/// The longest time that the layer holds back the function's answer in shadow mode, while the library compares the
/// batch's records with the store and stores their outcomes. Without this limit, a store that doesn't respond would
/// delay the answer once for each record of a FIFO group, because those records take turns.
const COMPARED_WITHIN: Duration = Duration::from_millis(100);

/// The outcome for one record.
#[derive(Clone, Debug)]
enum Fate {
    Done,
    /// The function reported this record, or an earlier one of the same stream, as failed.
    Failed,
    /// An earlier record of the same stream will be redelivered, so the function mustn't get this one before it.
    Behind,
    /// The function gave no answer.
    Missing(NoAnswer),
    /// The function reported an error for the whole event.
    Error {
        error_type: String,
        message: String,
        is_recorded: bool,
    },
}

/// A record that waits for the function.
struct Waiting {
    record: Handed,
    fate: oneshot::Sender<Fate>,
}

#[derive(Default)]
struct State {
    /// The number of records that the library is claiming, running or settling.
    in_flight: usize,
    /// The identifiers of the records that may run when they're redelivered.
    returned: HashSet<String>,
    waiting: Vec<Waiting>,
    /// The function's last error for a whole event.
    error: Option<(HeaderMap, Bytes)>,
    /// The function's own answer to the original event.
    own: Option<Posted>,
    /// The tasks that call the function.
    calls: Vec<AbortHandle>,
}

/// The records of one batch that the function runs.
pub(super) struct Together {
    protection: Arc<Protection>,
    event: Arc<Event>,
    state: Mutex<State>,
    /// The event's contents, once they were asked for: reading them takes a parse of the event, and each record needs them.
    contents: OnceLock<Contents>,
    /// The outcome for each identifier, if the function gets the original event.
    original: OnceCell<HashMap<String, Fate>>,
    /// Notified once the function has answered the original event.
    has_own: Notify,
}

/// The contents of a batch's event.
struct Contents {
    /// The records' identifiers, in the event's order.
    order: Vec<String>,
    kafka: Option<KafkaContents>,
}

struct KafkaContents {
    /// The event's fields other than `records`.
    fields: BTreeMap<String, Box<RawValue>>,
    /// The name under which the event lists each record, by the record's identifier.
    partition_of: HashMap<String, String>,
}

/// When dropped, aborts the batch's calls of the function, so that the function gets no records of a batch that has
/// ended.
pub(super) struct Ends(pub(super) Arc<Together>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.state().calls.iter().for_each(AbortHandle::abort);
    }
}

impl Together {
    pub(super) fn new(protection: &Arc<Protection>, event: &Arc<Event>) -> Arc<Self> {
        Arc::new(Self {
            protection: Arc::clone(protection),
            event: Arc::clone(event),
            state: Mutex::default(),
            contents: OnceLock::new(),
            original: OnceCell::new(),
            has_own: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code between two related changes can panic, so a poisoned lock's state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn claim_field(&self) -> Option<&ClaimField> {
        self.protection.rules.claim_field.as_ref()
    }

    /// The error that the function reported for a whole event, if it did.
    pub(super) fn error(&self) -> Option<(HeaderMap, Bytes)> {
        self.state().error.clone()
    }

    /// Takes the function's own answer to the original event, if the function got that event.
    pub(super) fn take_own(&self) -> Option<Posted> {
        self.state().own.take()
    }

    /// Waits until the function has answered the original event. Then gives the library the time `COMPARED_WITHIN` for
    /// its comparison.
    pub(super) async fn compared(&self) {
        self.has_own.notified().await;
        system_clock().sleep(COMPARED_WITHIN).await;
    }

    /// Notes how many records are in flight, and which others may run when they're redelivered.
    pub(super) fn in_flight(self: &Arc<Self>, records: usize, returned: &[&str]) {
        if mode(&self.protection) == BatchMode::Each {
            self.event.in_flight(records);
            // A worker may have become idle.
            return self.protection.pump();
        }
        {
            let mut state = self.state();
            state.in_flight = records;
            state.returned.extend(returned.iter().map(|&identifier| identifier.to_owned()));
        }
        self.run_if_all_wait();
    }

    /// Hands the record to the function, and waits for its outcome.
    ///
    /// # Errors
    ///
    /// If the function failed for this record, or never got it.
    pub(super) async fn run(self: Arc<Self>, record: Handed) -> Result<(), Failure> {
        let fate = match mode(&self.protection) {
            BatchMode::Whole if self.gives_original() => {
                let fates = self.original.get_or_init(|| self.call_original()).await;
                fates.get(&record.identifier).cloned()
            }
            BatchMode::Each => self.call(&[record]).await.pop(),
            BatchMode::Whole => {
                let (fate, ended) = oneshot::channel();
                self.state().waiting.push(Waiting { record, fate });
                self.run_if_all_wait();
                ended.await.ok()
            }
        };
        match fate {
            Some(Fate::Done) => Ok(()),
            Some(Fate::Failed) => Err(Failure::transient("the function reported the record as failed")),
            Some(Fate::Behind) => Err(Failure::not_begun("an earlier record of its stream isn't done")),
            Some(Fate::Error { error_type, message, is_recorded: true }) => {
                Err(Failure::permanent(error_type, message))
            }
            Some(Fate::Error { message, .. }) => Err(Failure::transient(message)),
            Some(Fate::Missing(why)) => Err(why.into()),
            None => Err(NoAnswer::NeverBegun.into()),
        }
    }

    /// Calls the function if every record in flight is waiting for it.
    fn run_if_all_wait(self: &Arc<Self>) {
        let (waiting, behind) = {
            let mut state = self.state();
            // Drop records whose time is up: nothing waits for their outcome any more.
            state.waiting.retain(|waiting| !waiting.fate.is_closed());
            if state.waiting.is_empty() || state.waiting.len() < state.in_flight {
                return;
            }
            let waiting = std::mem::take(&mut state.waiting);
            self.split(waiting, &state.returned)
        };
        for waiting in behind {
            let _ = waiting.fate.send(Fate::Behind);
        }
        if waiting.is_empty() {
            return;
        }
        let together = Arc::clone(self);
        let calling = async move {
            let (records, senders): (Vec<_>, Vec<_>) =
                waiting.into_iter().map(|waiting| (waiting.record, waiting.fate)).unzip();
            let fates = together.call(&records).await;
            for (sender, fate) in senders.into_iter().zip(fates) {
                // The receiver is gone if the batch's time is up.
                let _ = sender.send(fate);
            }
        };
        let calling = tokio::spawn(calling.in_current_span());
        self.state().calls.push(calling.abort_handle());
    }

    /// Splits the records into those that the function gets, in the event's order, and those of a stream that are
    /// behind a `returned` one.
    fn split(&self, waiting: Vec<Waiting>, returned: &HashSet<String>) -> (Vec<Waiting>, Vec<Waiting>) {
        let order = &self.contents().order;
        let places: HashMap<&str, usize> = order.iter().map(String::as_str).zip(0..).collect();
        let place = |waiting: &Waiting| places.get(waiting.record.identifier.as_str()).copied();
        let mut waiting = waiting;
        waiting.sort_by_key(place);
        if !self.is_stream() || self.protection.rules.settings.mode != Mode::Enforce {
            return (waiting, Vec::new());
        }
        // The first of each shard.
        let mut first_returned = HashMap::new();
        for (identifier, place) in
            order.iter().zip(0..).filter(|(identifier, _)| returned.contains(*identifier))
        {
            first_returned.entry(shard(identifier)).or_insert(place);
        }
        waiting.into_iter().partition(|waiting| {
            let first = first_returned.get(&shard(&waiting.record.identifier)).copied();
            first.is_none_or(|first| place(waiting) < Some(first))
        })
    }

    /// Whether the function gets the original event once, for all its records. In shadow mode it does, since the
    /// function runs as without the layer. The exception is a claim field in the event: then each record must carry the
    /// facts of its claim.
    fn gives_original(&self) -> bool {
        let has_field = matches!(self.claim_field(), Some(ClaimField::Event(_)));
        self.protection.rules.settings.mode != Mode::Enforce && !has_field
    }

    /// Calls the function with the original event, and keeps its answer. Returns the outcome for each identifier, or
    /// none if the function gave no answer.
    async fn call_original(&self) -> HashMap<String, Fate> {
        let identifiers = &self.contents().order;
        let Ok(posted) = self.post(self.event.body.clone()).await else { return HashMap::new() };
        let fates = self.fates(identifiers, &posted);
        self.state().own = Some(posted);
        self.has_own.notify_one();
        identifiers.iter().cloned().zip(fates).collect()
    }

    fn contents(&self) -> &Contents {
        self.contents.get_or_init(|| {
            let is_piped = self.is_piped();
            let order = records(&self.event).iter().map(|record| identifier(record, is_piped)).collect();
            let kafka = if is_piped { None } else { self.of_kafka() };
            Contents { order, kafka }
        })
    }

    /// `None` if the event is of another source.
    fn of_kafka(&self) -> Option<KafkaContents> {
        let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&self.event.body).ok()?;
        let partitions = partitions(&self.event.body)?;
        let listed = partitions.into_iter().flat_map(|(partition, records)| {
            records.into_iter().map(move |record| (identifier(record, false), partition.clone()))
        });
        fields.remove("records");
        Some(KafkaContents { fields, partition_of: listed.collect() })
    }

    /// Whether a pipe of EventBridge Pipes delivered the batch: as an array, and without a stream's checkpoint.
    pub(super) fn is_piped(&self) -> bool {
        self.event.is_piped()
    }

    /// Calls the function with these records. Returns one outcome per record.
    async fn call(&self, records: &[Handed]) -> Vec<Fate> {
        let posted = match self.post(self.body(records)).await {
            Ok(posted) => posted,
            Err(why) => return vec![Fate::Missing(why); records.len()],
        };
        let identifiers: Vec<_> = records.iter().map(|record| record.identifier.clone()).collect();
        let fates = self.fates(&identifiers, &posted);
        accept(posted.reply);
        fates
    }

    /// Hands this event to the function, and waits for its answer.
    ///
    /// # Errors
    ///
    /// As [`Function::run`](crate::function::Function::run).
    async fn post(&self, body: Bytes) -> Result<Posted, NoAnswer> {
        self.event.begins();
        // A batch's answer isn't recorded, so the limit for recorded answers doesn't apply. Even a streamed answer is
        // read up to Lambda's own limit.
        let headers = self.event.headers.clone();
        self.protection.function.run(&self.event, headers, body, MAX_BUFFERED).await
    }

    /// The event with these records. If all records are there, unchanged, it's the original event.
    fn body(&self, handed: &[Handed]) -> Bytes {
        let is_original = handed.iter().all(|record| record.is_original);
        let Contents { order, kafka } = self.contents();
        if is_original && handed.len() == order.len() {
            return self.event.body.clone();
        }
        if let Some(body) = kafka.as_ref().and_then(|kafka| kafka.body(handed)) {
            return body.into();
        }
        let records: Vec<&str> = handed.iter().map(|record| record.json.as_str()).collect();
        match self.is_piped() {
            true => format!("[{}]", records.join(",")).into(),
            false => format!("{{\"Records\":[{}]}}", records.join(",")).into(),
        }
    }

    fn fates(&self, identifiers: &[String], posted: &Posted) -> Vec<Fate> {
        let all = |fate: Fate| vec![fate; identifiers.len()];
        let body = match &posted.body {
            Payload::Whole(bytes) | Payload::Broken(bytes, _) => bytes.clone(),
            // If a batch's answer exceeds Lambda's limit, Lambda doesn't read the answer, and redelivers the batch.
            Payload::Endless(..) => return all(Fate::Failed),
        };
        if posted.is_error || matches!(posted.body, Payload::Broken(..)) {
            self.state().error = Some((posted.headers.clone(), body));
            let (error_type, message, is_recorded) = turn::reported(posted, &self.protection.rules);
            return all(Fate::Error { error_type, message, is_recorded });
        }
        let Some(failed) = failed(&body, identifiers, mode(&self.protection)) else {
            tracing::warn!(
                request_id = self.event.request_id(),
                records = identifiers.len(),
                "all records count as failed: the function's answer isn't JSON, or its list of failures can't be read"
            );
            return all(Fate::Failed);
        };
        let (is_stream, mut behind) = (self.is_stream(), HashSet::new());
        let fates = identifiers.iter().map(|id| {
            let is_failed = failed.contains(id);
            if is_failed && is_stream {
                behind.insert(shard(id));
            }
            if is_failed || behind.contains(&shard(id)) { Fate::Failed } else { Fate::Done }
        });
        fates.collect()
    }

    /// Whether Lambda reads the batch from a stream. If so, it redelivers the first failed record and all later ones.
    fn is_stream(&self) -> bool {
        let rules = &self.protection.rules;
        !self.is_piped() && !rules.is_kafka_queue && self.event.kind_or(rules.kind) != Kind::Sqs
    }
}

impl KafkaContents {
    /// The event with these records, and with all its other fields.
    fn body(&self, handed: &[Handed]) -> Option<String> {
        let mut lists: BTreeMap<&str, Vec<&RawValue>> = BTreeMap::new();
        for record in handed {
            let partition = self.partition_of.get(&record.identifier)?;
            lists.entry(partition).or_default().push(serde_json::from_str(&record.json).ok()?);
        }
        let records = serde_json::value::to_raw_value(&lists).ok()?;
        let mut fields: BTreeMap<&str, &RawValue> =
            self.fields.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
        fields.insert("records", &records);
        serde_json::to_string(&fields).ok()
    }
}

/// The part of the batch whose order counts: for Kafka the record's partition. A stream's batch is of one shard.
fn shard(identifier: &str) -> Option<&str> {
    identifier.rsplit_once('@').map(|(partition, _)| partition)
}

/// The records that the function's response reports as failed. `None` if all records count as failed.
///
/// Lambda's lists ("Handling errors for an SQS event source", "Configuring partial batch response with Kinesis" and
/// "… with DynamoDB", AWS Lambda developer guide):
///
/// - Success: an empty or null list of failures, and an empty or null response.
/// - Everything failed: a response that isn't JSON (for SQS), an identifier that's empty, null or missing, and an
///   identifier that isn't in the event (for SQS). The layer applies this list to each source.
///
/// A response without a list of failures is a success, since most functions that don't report failures answer anything.
/// So does a function that gets each record in its own event. There, only an answer that names the record is a failure.
fn failed(response: &[u8], identifiers: &[String], mode: BatchMode) -> Option<HashSet<String>> {
    #[derive(Deserialize)]
    struct Report<'r> {
        // `RawValue` accepts any JSON. `Value` refuses deep nesting, large numbers, and half of a surrogate pair.
        #[serde(rename = "batchItemFailures", borrow)]
        failures: Option<&'r RawValue>,
    }
    let all_done = Some(HashSet::new());
    if response.is_empty() {
        return all_done;
    }
    let json: &RawValue = serde_json::from_slice(response).ok()?;
    if !json.get().trim_ascii_start().starts_with('{') {
        return all_done;
    }
    let known: HashSet<&str> = identifiers.iter().map(String::as_str).collect();
    let named = |items: Vec<Value>| -> Option<HashSet<String>> {
        let name = |item: &Value| {
            let identifier = listed(item.get("itemIdentifier")?)?;
            known.contains(identifier.as_str()).then_some(identifier)
        };
        match mode {
            BatchMode::Whole => items.iter().map(name).collect(),
            BatchMode::Each => Some(items.iter().filter_map(name).collect()),
        }
    };
    let list = match serde_json::from_str::<Report<'_>>(json.get()) {
        Ok(Report { failures: None }) => return all_done,
        Ok(Report { failures: Some(failures) }) => serde_json::from_str(failures.get()).ok(),
        // The list appears twice, so it's unclear which one counts.
        Err(_) => None,
    };
    match mode {
        BatchMode::Whole => named(list?),
        BatchMode::Each => named(list.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the records `a` and `b` failed, by an answer to the whole batch, and by an answer to `a` alone.
    #[test]
    fn answers_are_read_like_lambda_reads_them() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let in_object = format!("{{\"deep\":{deep},\"batchItemFailures\":[{{\"itemIdentifier\":\"a\"}}]}}");
        let nested = format!("{{\"batchItemFailures\":{deep}}}");
        let list = |items: &str| format!("{{\"batchItemFailures\":{items}}}");
        let item = |identifier: &str| list(&format!("[{{\"itemIdentifier\":{identifier}}}]"));
        let (none, all, one) = ((0, 0), (2, 1), (1, 1));
        // In its own event, only the record's own name is a failure.
        let whole = (2, 0);
        let a_and = |item: &str| list(&format!("[{{\"itemIdentifier\":\"a\"}},{item}]"));
        let table: Vec<(Vec<u8>, (usize, usize))> = [
            // An empty or null response, and JSON that isn't an object.
            ("", none),
            ("null", none),
            (" null\n", none),
            ("{}", none),
            ("true", none),
            ("0", none),
            ("1e999", none),
            ("\"done\"", none),
            ("\"{\"", none),
            (r#""\ud800""#, none),
            ("[]", none),
            (r#"["batchItemFailures"]"#, none),
            (r#"[{"itemIdentifier":"a"}]"#, none),
            (&deep, none),
            // An object without a list, or with an empty one.
            (r#"{"statusCode":200}"#, none),
            (r#"{"BatchItemFailures":[{"itemIdentifier":"a"}]}"#, none),
            (r#"{"ok":{"batchItemFailures":[{"itemIdentifier":"a"}]}}"#, none),
            (&list("[]"), none),
            (&list("null"), none),
            // Failures.
            (&item("\"a\""), one),
            (&in_object, one),
            (r#"{"batchItem\u0046ailures":[{"itemIdentifier":"\u0061"}]}"#, one),
            (&a_and(r#"{"itemIdentifier":"a"}"#), one),
            (&a_and(r#"{"itemIdentifier":"b"}"#), (2, 1)),
            // Identifiers that aren't in the event, are empty, null or missing, or aren't text.
            (&item("\"c\""), whole),
            (&item("\"A\""), whole),
            (&item("\"\""), whole),
            (&item("null"), whole),
            (&item("1"), whole),
            (&item("[\"a\"]"), whole),
            (r#"{"batchItemFailures":[{"itemidentifier":"a"}]}"#, whole),
            (&list("[{}]"), whole),
            (&list("[\"a\"]"), whole),
            (&list("[null]"), whole),
            (&list("[[\"a\"]]"), whole),
            (&a_and(r#"{"itemIdentifier":"c"}"#), (2, 1)),
            (&a_and("{}"), (2, 1)),
            // A list of another type, or two lists.
            (&list("\"a\""), whole),
            (&list("{}"), whole),
            (&list("0"), whole),
            (&list("false"), whole),
            (&nested, whole),
            (r#"{"batchItemFailures":[],"batchItemFailures":[]}"#, whole),
            // No JSON.
            (r#"{"batchItemFailures":[{"itemI"#, all),
            (r#"{"batchItemFailures":[]"#, all),
            (r#"{"batchItemFailures":[],}"#, all),
            (r#"{'batchItemFailures':[]}"#, all),
            (r#"{"batchItemFailures":[]}{"#, all),
            ("{} x", all),
            ("{", all),
            ("\"", all),
            (" ", all),
            ("\n", all),
            ("done", all),
            ("None", all),
            ("NaN", all),
            ("True", all),
            ("undefined", all),
            ("<html>Bad gateway</html>", all),
            ("\u{feff}{}", all),
            ("null null", all),
            ("\"a\nb\"", all),
            ("01", all),
        ]
        .into_iter()
        .map(|(text, failed)| (text.as_bytes().to_vec(), failed))
        .chain([
            (vec![0xff], all),
            (b"\"\xff\"".to_vec(), all),
            (b"{\"note\":\"\xc3\"}".to_vec(), all),
            (vec![0x1f, 0x8b, 8, 0], all),
            (vec![0], all),
        ])
        .collect();
        let known = ["a", "b"].map(str::to_owned);
        let of = |answer: &[u8], known: &[String], mode| {
            failed(answer, known, mode).map_or(known.len(), |failed| failed.len())
        };
        for (answer, expected) in table {
            let found = (of(&answer, &known, BatchMode::Whole), of(&answer, &known[..1], BatchMode::Each));
            assert_eq!(found, expected, "{}", answer.escape_ascii());
        }
    }
}
