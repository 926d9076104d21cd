//! Finds the records of an event by a [`Description`], as the described wrapper would find them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ::http::Method;
use lambda_runtime::Context;
use serde_json::{Value, value::RawValue};

use super::describe::{CLOSURE, Description, Located, Part};
use crate::{
    error::{Error, ErrorKind},
    format::Format,
    idempotency::{Idempotency, Operation},
    internal::KeyFieldsExt as _,
    invocation::Invocation,
    key::Key,
    key_fields::KeyFields,
    lambda::{
        batch::{Batch, DynamoDbRecord, KafkaRecord, KinesisRecord, Record, SqsMessage},
        http::{self, HttpLayer},
        keys, tenant,
    },
    settings::Mode,
    store::memory::MemoryStore,
};

const OF_CLOSURE: &str = "the function's key comes from a closure; name the fields that the key is built from, or pass \
                          the key itself";

const OF_FIRST_LATTICE: &str = "the event has VPC Lattice's first event structure, which `lambda_http` and so the HTTP \
                                layer can't read. Set the target group's `LambdaEventStructureVersion` to V2, or use \
                                the event layer (`Idempotency::events`), which compares the request in both structures";

const OF_DOCUMENT_DB: &str = "the event is a batch of DocumentDB's change streams, for which the library has no worker \
                              and no key. Make each change its own operation with `Operation::run`, and use the \
                              change's `_id` as its key";

/// Whether the event is a request of VPC Lattice in its first event structure, which has no context.
fn is_first_lattice(event: &Value) -> bool {
    ["/raw_path", "/method", "/headers"].iter().all(|field| event.pointer(field).is_some())
}

fn is_of_document_db(raw: &RawValue) -> bool {
    let event: Value = serde_json::from_str(raw.get()).unwrap_or_default();
    event.get("eventSource").and_then(Value::as_str) == Some("aws:docdb")
}

/// Returns the parts of an event as the wrapper `via` takes keys from them: a batch's records, a request's body, or the
/// event.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the event isn't one for this wrapper.
fn contents(via: &str, raw: &RawValue) -> Result<Vec<Part>, Error> {
    match via {
        "sqs" => Batch::<SqsMessage>::contents(raw),
        "kinesis" => Batch::<KinesisRecord>::contents(raw),
        "dynamodb" => Batch::<DynamoDbRecord>::contents(raw),
        "kafka" => Batch::<KafkaRecord>::contents(raw),
        "http" | "http-body" => Ok(vec![(None, Ok(http::locate::body_of(raw)?))]),
        _ => Ok(vec![(None, Ok(raw.get().as_bytes().to_vec()))]),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message.into())
}

impl Description {
    /// Describes a function that's wrapped as the page of [`keys`] recommends. The source of `event` determines the
    /// wrapper and the key.
    ///
    /// For SQS, Kinesis, DynamoDB Streams and Kafka, also through a pipe, the wrapper is the source's worker. For Amazon MQ,
    /// it's [`run`](crate::Operation::run) for each message, and for HTTP requests the HTTP layer. For other sources, it's an
    /// event layer with the source's own key. If the source is unknown, the description has no key.
    pub fn detect(function: impl Into<String>, event: &[u8]) -> Self {
        let event: Value = serde_json::from_slice(event).unwrap_or_default();
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
        let is_there = |pointer: &str| event.pointer(pointer).is_some();
        let function = function.into();
        let by = |fields: KeyFields| Self {
            is_guessed: true,
            ..Self::new(function.clone(), "event").keyed_by(&fields)
        };
        // A pipe of EventBridge Pipes sends an array.
        let names = ["/Records/0/eventSource", "/Records/0/EventSource", "/0/eventSource", "/eventSource"];
        match names.into_iter().find_map(text) {
            Some("aws:sqs") => return Self::new(function, "sqs"),
            Some("aws:kinesis") => return Self::new(function, "kinesis"),
            Some("aws:dynamodb") => return Self::new(function, "dynamodb"),
            Some("aws:sns") => return by(keys::sns()),
            Some("aws:s3") => return by(keys::s3()),
            Some("aws:kafka" | "SelfManagedKafka" | "aws:SelfManagedKafka") => {
                return Self::new(function, "kafka");
            }
            Some("aws:mq" | "aws:rmq") => {
                return Self { key_from: Some("mq_message".to_owned()), ..Self::new(function, "run") };
            }
            _ => {}
        }
        let is_request =
            is_there("/requestContext") && (is_there("/headers") || is_there("/multiValueHeaders"));
        if is_request || is_first_lattice(&event) {
            return Self::new(function, "http");
        }
        match text("/source") {
            Some("aws.scheduler") => by(keys::scheduler()),
            Some(_) if is_there("/detail-type") => by(keys::event_bridge()),
            _ if is_there("/execution") && is_there("/state") => by(keys::step_functions()),
            _ => Self::new(function, "event"),
        }
    }

    /// Returns the records of the operations that `event` asks for, as the described wrapper would find them.
    ///
    /// For a request or a single event, the list has one entry. For a batch, it has one entry for each record of the
    /// batch that has a valid key. The list is empty if `event` asks for no operation, for example because it's a
    /// request without a key.
    ///
    /// `context` has the invocation's request id and tenant. For HTTP, `caller` is the text that the closure of
    /// `HttpLayer::caller` returns for this request. For `run`, it's the text that
    /// [`for_caller`](crate::Operation::for_caller) gets.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the description is incomplete for this event, or one of its names or fields isn't
    /// valid; [`ErrorKind::MissingKey`] or [`ErrorKind::InvalidKey`] if the wrapper refuses the event. The message
    /// says what's wrong, and contains no key.
    pub fn locate(
        &self,
        event: &[u8],
        context: &Context,
        caller: Option<&str>,
    ) -> Result<Vec<Located>, Error> {
        let raw: &RawValue = serde_json::from_slice(event)
            .map_err(|error| invalid(format!("the event isn't JSON: {}", crate::error::place(&error))))?;
        let builder = Idempotency::builder(MemoryStore::new()).function(&self.function);
        let builder = match &self.operation {
            Some(operation) => builder.operation(operation),
            None => builder,
        };
        let idempotency = builder.build()?;
        match self.via.as_str() {
            "http" | "http-body"
                if serde_json::from_slice(event).is_ok_and(|event| is_first_lattice(&event)) =>
            {
                Err(invalid(OF_FIRST_LATTICE))
            }
            "http" | "http-body" => {
                let needs_closure = Arc::new(AtomicBool::new(false));
                let located = self.http(&idempotency, caller, &needs_closure)?.locate(raw, context);
                if needs_closure.load(Ordering::Relaxed) {
                    return Err(invalid(OF_CLOSURE));
                }
                Ok(located?.into_iter().map(|located| located.compared_if(!self.path_from_closure)).collect())
            }
            "event" => self.event(&idempotency, raw, context),
            "sqs" => {
                let key = self.key_of_record(SqsMessage::message_key)?;
                let worker = idempotency.sqs(key, async |_| Ok(()));
                self.batch(worker, raw, context)
            }
            "kinesis" => {
                let key = self.key_of_record(KinesisRecord::sequence_key)?;
                let worker = idempotency.kinesis(key, async |_| Ok(()));
                self.batch(worker, raw, context)
            }
            "dynamodb" => {
                let key = self.key_of_record(DynamoDbRecord::event_key)?;
                let worker = idempotency.dynamodb_stream(key, async |_| Ok(()));
                self.batch(worker, raw, context)
            }
            "kafka" => {
                let key = self.key_of_record(KafkaRecord::offset_key)?;
                self.batch(idempotency.kafka(key, async |_| Ok(())), raw, context)
            }
            "run" => self.run(&idempotency, raw, context, caller),
            via => Err(invalid(format!(
                "{via:?} isn't a wrapper; use http, event, sqs, kinesis, dynamodb, kafka or run"
            ))),
        }
    }

    /// Returns the parts of `event` that have no key in the description's [key fields](Self::key_fields), each with the
    /// reason: which field is absent, null or blank, and which names are there in its place. The part is a batch's
    /// record, by its identifier; `None` if the event isn't a batch. The list is empty if the description names no
    /// fields. The reasons contain names of fields, but no values.
    ///
    /// ```
    /// use lambda_idempotency::lambda::Description;
    ///
    /// let mut description = Description::new("orders", "event");
    /// description.key_fields = vec!["/ID".to_owned()];
    /// let keyless = description.keyless(br#"{"id": "order-17", "cents": 1250}"#);
    /// assert_eq!(keyless, [(None, "`/ID` is absent: the top level has `cents`, `id`".to_owned())]);
    /// ```
    pub fn keyless(&self, event: &[u8]) -> Vec<(Option<String>, String)> {
        let raw = serde_json::from_slice::<&RawValue>(event);
        let (Ok(Some(fields)), Ok(raw)) = (self.fields(), raw) else { return Vec::new() };
        let keyless = |(part, content): Part| {
            let why = match content.map(|content| (fields.key_of(&content), content)) {
                Ok((Ok(Some(_)), _)) => return None,
                Ok((Ok(None), content)) => fields.absence(&content),
                Ok((Err(error), _)) => error.to_string(),
                Err(why) => why,
            };
            Some((part, why))
        };
        match contents(&self.via, raw) {
            Ok(parts) => parts.into_iter().filter_map(keyless).collect(),
            Err(error) => vec![(None, error.to_string())],
        }
    }

    fn is_keyed_by_closure(&self) -> bool {
        self.key_from.as_deref() == Some(CLOSURE)
    }

    fn fields(&self) -> Result<Option<KeyFields>, Error> {
        let known = self.key_from.as_deref().and_then(named);
        let known = known.filter(|known| self.key_fields.is_empty() || known.iter().eq(&self.key_fields));
        let fields = match known {
            Some(known) => known,
            None if self.key_fields.is_empty() => return Ok(None),
            None => {
                let fields = KeyFields::new(self.key_fields.iter().map(String::as_str))?;
                fields.requiring(self.required_key_fields)
            }
        };
        if self.compared_fields.is_empty() {
            return Ok(Some(fields));
        }
        fields.comparing_these(self.compared_fields.iter().map(String::as_str)).map(Some)
    }

    fn event(
        &self,
        idempotency: &Idempotency,
        raw: &RawValue,
        context: &Context,
    ) -> Result<Vec<Located>, Error> {
        let located = match (self.fields()?, self.key_from.as_deref()) {
            (Some(fields), _) => idempotency.events_by::<Value>(fields).locate(raw, context),
            (None, Some("request id")) => {
                if context.request_id.is_empty() {
                    return Err(invalid("the key is the invocation's request id; pass that id"));
                }
                idempotency.events_by_request_id::<Value>().locate(raw, context)
            }
            (None, _) if is_of_document_db(raw) => return Err(invalid(OF_DOCUMENT_DB)),
            (None, _) => {
                return Err(invalid(format!(
                    "the library has no key for this event's source, so {OF_CLOSURE}"
                )));
            }
        };
        let located = located?.map(|located| located.compared_if(!self.is_guessed));
        Ok(located.into_iter().collect())
    }

    /// Returns a closure that takes a batch's record and returns its key: from fields of the record's payload, or else
    /// from the record's own id.
    fn key_of_record<R: AsRef<[u8]> + 'static>(
        &self,
        own: fn(&R) -> Result<Key, Error>,
    ) -> Result<impl Fn(&R) -> Result<Option<Key>, Error> + Send + Sync + 'static, Error> {
        let fields = self.fields()?;
        if fields.is_none() && self.is_keyed_by_closure() {
            return Err(invalid(format!(
                "{OF_CLOSURE}. If the key is each record's own id, remove `key_from` from the description"
            )));
        }
        Ok(move |record: &R| match &fields {
            // The key brings the compared fields.
            Some(fields) => fields.key_of(record.as_ref()),
            None => own(record).map(Some),
        })
    }

    fn batch<R: Record>(
        &self,
        worker: Batch<R>,
        raw: &RawValue,
        context: &Context,
    ) -> Result<Vec<Located>, Error> {
        let worker = match &self.source_name {
            Some(name) => worker.source_name(name.as_str()),
            None => worker,
        };
        let worker = match self.compared_fields.is_empty() {
            true => worker,
            false => worker.fingerprint_fields(self.compared_fields.iter().map(String::as_str))?,
        };
        worker.locate(raw, context)
    }

    /// Locates a step inside the handler, or, for a batch, one step for each record. The key's fields are fields of the
    /// event, of the request's body, or of each record's content.
    fn run(
        &self,
        idempotency: &Idempotency,
        raw: &RawValue,
        context: &Context,
        caller: Option<&str>,
    ) -> Result<Vec<Located>, Error> {
        let idempotency = idempotency.for_invocation(Invocation::unknown().of_tenant(tenant(context)));
        let name = self.operation.as_deref().ok_or_else(|| {
            invalid("a step needs its name: pass the operation, as in `idempotency.operation(NAME)`")
        })?;
        let step = idempotency.operation(name)?;
        let step = match caller {
            Some(caller) => step.for_caller(caller)?,
            None => step,
        };
        let by = |fields: &KeyFields, json: &[u8], part: Option<String>| -> Result<Option<Located>, Error> {
            let key = fields.key_of(json)?;
            Ok(key.map(|key| Located { key: step.stored_key(&key), fingerprint: None, part }))
        };
        match (self.fields()?, self.broker(raw)?) {
            (Some(fields), None) => {
                let located = located_in_parts(&fields, raw, by)?;
                if located.is_empty() {
                    let described = Self { via: Self::detect("", raw.get().as_bytes()).via, ..self.clone() };
                    let why = described.keyless(raw.get().as_bytes()).into_iter().next();
                    let why = why.map_or_else(|| fields.absence(raw.get().as_bytes()), |(_, why)| why);
                    let message = format!("the step `{name}` has no key: {why}");
                    return Err(Error::new(ErrorKind::MissingKey, message));
                }
                Ok(located)
            }
            (fields, Some(broker)) => {
                let messages = messages_of_broker(raw);
                let located = messages.iter().enumerate().map(|(place, (queue, message))| {
                    let part = Some(format!("record {place}"));
                    let own = || keys::mq_message(&broker, queue);
                    by(&fields.clone().unwrap_or_else(own), message.get().as_bytes(), part)
                });
                Ok(located.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
            (None, None) => Err(invalid(
                "name the fields of the event that the step's key is built from, or pass the key itself",
            )),
        }
    }

    /// Returns the broker whose messages the step takes its keys from. `None` if the key comes from elsewhere.
    fn broker(&self, raw: &RawValue) -> Result<Option<String>, Error> {
        let is_brokers = self.key_from.as_deref() == Some("mq_message");
        let broker = || broker(raw).ok_or_else(|| invalid("the event has no `eventSourceArn`"));
        is_brokers.then(broker).transpose()
    }

    fn methods(&self) -> Result<Option<Vec<Method>>, Error> {
        let method = |name: &String| {
            name.parse::<Method>().map_err(|_| invalid(format!("{name:?} isn't an HTTP method")))
        };
        let methods = self.methods.as_ref();
        methods.map(|names| names.iter().map(method).collect::<Result<Vec<_>, _>>()).transpose()
    }

    /// Builds the HTTP layer that this description describes. If the key of a request comes from a closure in the
    /// function's code, the layer sets `needs_closure`.
    fn http(
        &self,
        idempotency: &Idempotency,
        caller: Option<&str>,
        needs_closure: &Arc<AtomicBool>,
    ) -> Result<HttpLayer, Error> {
        let name =
            |name: &String| name.parse().map_err(|_| invalid(format!("{name:?} isn't a header's name")));
        let mut layer = idempotency.http();
        for header in &self.key_headers {
            layer = layer.key_alias(name(header)?);
        }
        if let Some(methods) = self.methods()? {
            layer = layer.methods(methods);
        }
        if !self.operations.is_empty() {
            let names = self.operations.iter().map(|(path, name)| (path.as_str(), name.as_str()));
            layer = layer.operations(names)?;
        }
        if let Some(fields) = self.fields()? {
            layer = layer.key_fields(fields);
        } else if self.is_keyed_by_closure() {
            let needs_closure = Arc::clone(needs_closure);
            layer = layer.key(move |_, _| {
                needs_closure.store(true, Ordering::Relaxed);
                None::<Key>
            });
        }
        if let Some(api) = &self.api_name {
            layer = layer.api_name(api);
        }
        if self.shared_namespace {
            layer = layer.shared_namespace();
        }
        layer = layer.ignore_cookies(self.ignored_cookies.iter().map(String::as_str));
        layer = layer
            .credential_headers(self.credential_headers.iter().map(name).collect::<Result<Vec<_>, _>>()?);
        let headers = self.compared_headers.iter().map(name).collect::<Result<Vec<_>, _>>()?;
        layer = layer.fingerprint_headers(headers).fingerprint_raw_body(self.raw_body);
        layer = layer.ignore_query(self.ignored_query.iter().map(String::as_str)).key_alone(self.key_alone);
        if !self.compared_fields.is_empty() {
            layer = layer.fingerprint_fields(self.compared_fields.iter().map(String::as_str))?;
        }
        match caller {
            Some(caller) => {
                let caller = caller.to_owned();
                Ok(layer.caller(move |_| Ok(Some(caller.clone()))))
            }
            None if self.caller_from_closure => Err(invalid(
                "a closure in the function's code names the caller; pass the text that this closure returns",
            )),
            None => Ok(layer),
        }
    }
}

/// Locates a step by fields of the event itself, or else of its parts: a batch's records, or a request's body.
fn located_in_parts(
    fields: &KeyFields,
    raw: &RawValue,
    by: impl Fn(&KeyFields, &[u8], Option<String>) -> Result<Option<Located>, Error>,
) -> Result<Vec<Located>, Error> {
    if let Some(located) = by(fields, raw.get().as_bytes(), None)? {
        return Ok(vec![located]);
    }
    let via = Description::detect("", raw.get().as_bytes()).via;
    let parts = contents(&via, raw).unwrap_or_default().into_iter();
    let located = parts.filter_map(|(part, content)| by(fields, &content.ok()?, part).ok().flatten());
    Ok(located.collect())
}

/// The key with this function's name in the module [`keys`], if it needs no argument.
pub(in crate::lambda) fn named(name: &str) -> Option<KeyFields> {
    [keys::event_bridge, keys::scheduler, keys::sns, keys::s3, keys::step_functions]
        .iter()
        .map(|key| key())
        .find(|key| key.name() == Some(name))
}

/// The messages of an Amazon MQ event, each with its queue; empty for any other event.
fn messages_of_broker(event: &RawValue) -> Vec<(String, &RawValue)> {
    #[derive(serde::Deserialize)]
    struct Event<'e> {
        #[serde(alias = "rmqMessagesByQueue", borrow)]
        messages: &'e RawValue,
    }
    let Ok(Event { messages }) = serde_json::from_str(event.get()) else { return Vec::new() };
    if let Ok(messages) = serde_json::from_str::<Vec<&RawValue>>(messages.get()) {
        return messages.into_iter().map(|message| (destination(message), message)).collect();
    }
    let lists: BTreeMap<String, Vec<&RawValue>> = serde_json::from_str(messages.get()).unwrap_or_default();
    let named = |(name, messages): (String, Vec<_>)| {
        messages.into_iter().map(move |message| (name.clone(), message)).collect::<Vec<_>>()
    };
    lists.into_iter().flat_map(named).collect()
}

/// The queue of an ActiveMQ message; empty if the message has none.
fn destination(message: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    struct Message {
        destination: Destination,
    }
    #[derive(serde::Deserialize)]
    struct Destination {
        #[serde(rename = "physicalName")]
        name: String,
    }
    let message = serde_json::from_str(message.get());
    message.map(|Message { destination }| destination.name).unwrap_or_default()
}

/// The ARN of an Amazon MQ event's broker.
fn broker(event: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Event {
        #[serde(rename = "eventSourceArn")]
        arn: String,
    }
    serde_json::from_str(event.get()).ok().map(|Event { arn }| arn).filter(|arn| !arn.is_empty())
}

impl<F: Format> Operation<F> {
    /// Describes the operation, for tools that look for its records; see [`Description`].
    pub fn describe(&self) -> Description {
        Description { key_from: Some(CLOSURE.to_owned()), ..Description::of(self.idempotency(), "run") }
    }
}

impl Description {
    /// The function's mode, if the description contains it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for an unknown name.
    pub fn mode(&self) -> Result<Option<Mode>, Error> {
        self.mode.as_deref().map(str::parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    const STORE: &str = "IDEMPOTENCY_STORE";

    /// A process can't change its own environment safely, so this test runs itself again in another process.
    #[test]
    fn description_has_store_url_without_password() {
        if env::var_os(STORE).is_none() {
            let test = "lambda::locate::tests::description_has_store_url_without_password";
            let mut again = Command::new(env::current_exe().unwrap());
            let again = again.args(["--exact", test]).env(STORE, "redis://user:password@cache:6379").output();
            let told = String::from_utf8(again.unwrap().stdout).unwrap();
            assert!(told.contains("1 passed"), "{told}");
            return;
        }
        let idempotency = Idempotency::builder(MemoryStore::new()).function("shop").build().unwrap();
        let description = idempotency.operation("pay").unwrap().describe();
        assert_eq!(description.store.as_deref(), Some("redis://cache:6379"));
    }
}
