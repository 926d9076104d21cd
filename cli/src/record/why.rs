//! `idempotency why`: finds the records of an event's operations, and shows what happened and what to do.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::{ArgGroup, Args};
use lambda_idempotency::{
    StoredKey,
    lambda::{Description, Located},
    settings::Mode,
    store::{Record, Store},
    time::{Clock as _, system_clock},
};
use lambda_runtime::Context as Invocation;
use serde_json::{Value, json};

use super::{
    described::{Described, fitting_first},
    inspect::{NO_RECORD, next_steps},
    key::ScopeArguments,
    list::{function_of, read_until},
    read,
    view::{RuleArguments, View},
};
use crate::{
    problem::{Context as _, Problem, Result},
    store::StoreArguments,
    words,
};

/// Options of `why`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("subject").args(["key", "event", "request_id"]).required(true).multiple(true))]
pub(crate) struct Arguments {
    /// The idempotency key itself, or a record's id, instead of an event.
    #[arg(value_name = "KEY", conflicts_with_all = ["event", "request_id"])]
    key: Option<String>,

    /// The file with the event that Lambda delivers to the function, as JSON; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    event: Option<PathBuf>,

    /// The file with the JSON of the function's `describe()`: an object, or a list of objects. For a function behind the
    /// Lambda layer: the line of its log with `"event":"started"`, in the format JSON. Options override it.
    #[arg(long, value_name = "FILE", requires = "event")]
    describe: Option<PathBuf>,

    /// A field of the function's key: a JSON Pointer such as /order_id, or a JMESPath expression. It's a field of the
    /// event, of the HTTP body, or of each message's body. Can be repeated; the order matters. Default: the library's
    /// key for the event's source.
    #[arg(long = "key-field", value_name = "FIELD", requires = "event")]
    key_fields: Vec<String>,

    /// For a tool that Bedrock AgentCore's gateway calls behind the Lambda layer: the tool's name, as the client context has
    /// it. The event doesn't name the tool.
    #[arg(long, value_name = "NAME", requires = "describe")]
    tool: Option<String>,

    /// An alias of the Idempotency-Key header, if the function accepts one. Can be repeated.
    #[arg(long = "key-header", value_name = "NAME", requires = "event")]
    key_headers: Vec<String>,

    /// A step of the handler, and the field that its key comes from, such as hotel=/trip_id: shows the record of
    /// `idempotency.operation("hotel")`, or of `#[idempotent(operation = "hotel")]`. Can be repeated. If a step's key is
    /// built from several fields by `KeyFields`, repeat the step's name. A field is named as for --key-field.
    #[arg(long = "step", value_name = "NAME=FIELD", requires = "event", value_parser = step)]
    steps: Vec<(String, String)>,

    /// An invocation's request id. With --event, it's the key of a function that uses `events_by_request_id`. Without an
    /// event, the command reads the whole store, and shows the records whose last claim is that invocation's. DynamoDB
    /// bills this as a Scan of the whole table.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    store: StoreArguments,
}

const NOT_CLAIMED: &str = "
No record's last claim is this invocation's. A replay or a refusal writes nothing, a later attempt's claim has its own
request id, and a record is deleted after its expiry. The function's log has the ids of an invocation's records.
";

const NOT_COMPARED: &str = "The function's code chooses what it compares here, so `why` can't tell whether this event is the same request.\n";
const IS_IT_A_TOOL: &str = "  - Bedrock AgentCore's gateway called a tool. Then the tool's name is a part of the id: add --tool NAME.
";

/// One operation, and its record if there is one.
struct Answer {
    located: Located,
    record: Option<Record>,
    /// Whether the function wrote the record in shadow mode.
    is_shadow: bool,
}

/// The operations of an event or a key, with the function's settings.
struct Case {
    event: Value,
    answers: Vec<Answer>,
    /// The batch's records that have no valid key, so that no operation was found for them.
    without_key: WithoutKey,
    /// How many records a search by the request id read.
    searched: Option<usize>,
    mode: Mode,
    /// Whether the operation may be a tool's, whose name isn't known.
    may_be_tool: bool,
    rules: RuleArguments,
    store: StoreArguments,
}

/// An event, the description that fits it, and its operations.
#[derive(Default)]
struct Found {
    description: Option<Description>,
    event: Value,
    located: Vec<Located>,
    /// See [`Case::may_be_tool`].
    may_be_tool: bool,
}

/// The parts of an event that have no valid key.
#[derive(Default)]
struct WithoutKey {
    /// A batch's records, by their identifiers.
    identifiers: Vec<String>,
    /// Which field of the key a part lacks, and which names it has. Unknown for keys that aren't from fields.
    reasons: HashMap<Option<String>, String>,
}

/// Shows the records of an event, of a key, or of an invocation.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    if let (None, Some(id)) = (&arguments.event, &arguments.request_id) {
        return arguments.of_invocation(id).await;
    }
    let Found { description, event, located, may_be_tool } = match &arguments.event {
        Some(path) => arguments.locate(path)?,
        None => Found { located: vec![arguments.of_key()?], ..Found::default() },
    };
    let without_key = WithoutKey::of(&event, description.as_ref(), &located);
    let mode =
        description.as_ref().map(Description::mode).transpose().map_err(|error| Problem::of(&error))?;
    let mode = mode.flatten().unwrap_or_default();
    if located.is_empty() {
        return nothing(arguments, &without_key, mode);
    }
    let url = description.as_ref().and_then(|description| description.store.as_deref());
    let named = arguments.store.for_described(url)?;
    let store = named.open_any().await?;
    let mut answers = Vec::with_capacity(located.len());
    for located in located {
        answers.push(find(&store, located).await?);
    }
    let skew_margin_ms = description.as_ref().and_then(|description| description.skew_margin_ms);
    let rules = arguments.rules.or_described(skew_margin_ms);
    let case = Case { event, answers, without_key, searched: None, mode, may_be_tool, rules, store: named };
    case.print(arguments.json)
}

/// Reads the record under the operation's key or, if there's none, the record that shadow mode wrote.
async fn find(store: &Arc<dyn Store>, located: Located) -> Result<Answer> {
    if let Some(record) = read(&**store, &located.key).await? {
        return Ok(Answer { located, record: Some(record), is_shadow: false });
    }
    let record = read(&**store, &located.key.in_shadow()).await?;
    Ok(Answer { located, is_shadow: record.is_some(), record })
}

/// Whether the function wrote the record in shadow mode: the operation's name ends with a mark.
fn is_in_shadow(key: &StoredKey) -> bool {
    let operation =
        |key: &StoredKey| key.as_str().rsplit_once('#').map(|(operation, _)| operation.to_owned());
    let mark = operation(&StoredKey::from_stored("/#").in_shadow()).unwrap_or_default();
    operation(key).is_some_and(|operation| operation.ends_with(mark.trim_start_matches('/')))
}

/// Reads `NAME=FIELD`.
fn step(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, field)) if !name.is_empty() && !field.is_empty() => {
            Ok((name.to_owned(), field.to_owned()))
        }
        _ => Err("give the step's name and the field of its key, such as hotel=/trip_id".to_owned()),
    }
}

/// The identifiers of a batch's records, as the library's worker has them in its response. Empty if the wrapper `via` takes
/// no batches.
fn identifiers(event: &Value, via: &str) -> Vec<String> {
    let text = |record: &Value, pointer: &str| record.pointer(pointer)?.as_str().map(str::to_owned);
    let records = event.get("Records").unwrap_or(event).as_array().into_iter().flatten();
    // A pipe of EventBridge Pipes sends an array, and identifies a stream's records by their events' ids.
    let pointer = match via {
        "sqs" => "/messageId",
        "kinesis" | "dynamodb" if event.is_array() => "/eventID",
        "kinesis" => "/kinesis/sequenceNumber",
        "dynamodb" => "/dynamodb/SequenceNumber",
        "kafka" => {
            let lists = event.get("records").and_then(Value::as_object).into_iter().flatten();
            let listed = lists.filter_map(|(_, list)| list.as_array()).flatten();
            let number = |value: &Value| {
                value.as_u64().map_or_else(|| text(value, ""), |number| Some(number.to_string()))
            };
            let of = |record: &Value| {
                let (topic, partition) = (text(record, "/topic")?, number(record.get("partition")?)?);
                Some(format!("{topic}-{partition}@{}", number(record.get("offset")?)?))
            };
            return records.chain(listed).filter_map(of).collect();
        }
        _ => return Vec::new(),
    };
    records.filter_map(|record| text(record, pointer)).collect()
}

impl WithoutKey {
    /// Finds the parts of the event that have no operation in `located`.
    fn of(event: &Value, description: Option<&Description>, located: &[Located]) -> Self {
        let Some(description) = description else { return Self::default() };
        let keyed: HashSet<&str> = located.iter().filter_map(|located| located.part.as_deref()).collect();
        let all = identifiers(event, &description.via).into_iter();
        let identifiers: Vec<_> = all.filter(|identifier| !keyed.contains(identifier.as_str())).collect();
        // A request may have its key in a header.
        let reasons = description.keyless(event.to_string().as_bytes()).into_iter();
        let reasons = reasons.filter(|(part, _)| match part {
            Some(part) => identifiers.contains(part),
            None => located.is_empty(),
        });
        let reasons = reasons.collect();
        Self { identifiers, reasons }
    }

    /// Lists the batch's records.
    fn in_text(&self, mode: Mode) -> String {
        let then = match mode {
            Mode::Enforce => {
                "no valid key, so the worker doesn't run it, and it's returned to its source.\n\
                 Only a worker with `required(false)` runs a message that has no key."
            }
            Mode::Shadow | Mode::Off => {
                "no valid key, so the worker runs this message without a record, unless the message can't be read."
            }
        };
        let of_each = self.identifiers.iter().map(|identifier| {
            let why = self.reasons.get(&Some(identifier.clone()));
            let why = why.map(|why| format!("{}\n", words::printable(why))).unwrap_or_default();
            format!("\n{}: {then}\n{why}", words::printable(identifier))
        });
        of_each.collect()
    }

    /// The reasons in JSON, for the parts that have one.
    fn reasons(&self) -> Vec<Value> {
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort();
        reasons.into_iter().map(|(part, why)| json!({ "part": part, "why": why })).collect()
    }
}

/// Reports that the function would run the event without a record, or refuse it.
fn nothing(arguments: &Arguments, without_key: &WithoutKey, mode: Mode) -> Result<ExitCode> {
    if arguments.json {
        words::print_json(&json!({
            "operations": [],
            "without_key": without_key.identifiers,
            "reasons": without_key.reasons(),
        }))?;
    } else {
        let why = without_key.reasons.get(&None);
        let why = why.map(|why| format!("The key's field: {}.\n", words::printable(why))).unwrap_or_default();
        words::print(&format!(
            "The event has no protected operation: it has no key, its HTTP method isn't protected, or none of its \
             messages has a valid key.\n{why}The function runs it unprotected, or refuses it.\n{}",
            without_key.in_text(mode)
        ))?;
    }
    Ok(ExitCode::FAILURE)
}

impl Arguments {
    fn of_key(&self) -> Result<Located> {
        let key = self.key.as_deref().unwrap_or_default();
        self.scope.stored(key).map(Located::of)
    }

    /// Reads the event, and returns it with the description that fits it and the keys of its operations.
    fn locate(&self, path: &Path) -> Result<Found> {
        let bytes = contents(path).context(format!("couldn't read the event {}", path.display()))?;
        let event: Value = serde_json::from_slice(&bytes).context("the event isn't JSON")?;
        let mut context = Invocation::default();
        context.tenant_id = self.scope.tenant.clone();
        context.request_id = self.request_id.clone().unwrap_or_default();
        if self.asks_only_for_steps() {
            let located = self.steps(self.function()?, &bytes, &context)?;
            return Ok(Found { event, located, ..Found::default() });
        }
        // The first description fits best, so its error says most.
        let mut first = None;
        let described = self.described(&bytes)?;
        for description in self.chosen(&described, &bytes) {
            match description.locate(&bytes, &context, self.scope.caller_text()) {
                Ok(mut located) => {
                    located.extend(self.steps(description.function.clone(), &bytes, &context)?);
                    let may_be_tool =
                        described.is_layers && description.via == "event" && self.tool.is_none();
                    return Ok(Found { description: Some(description), event, located, may_be_tool });
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(match first {
            Some(error) => Problem::new(format!("{}{}", Problem::of(&error), described.hint(&error))),
            None => Problem::new(
                "the file of --describe has no wrapper that fits --via and --operation: leave them out, or use another \
                 file",
            ),
        })
    }

    /// Whether no option is about the handler's wrapper, so that only the records of the steps count.
    fn asks_only_for_steps(&self) -> bool {
        let of_wrapper = self.describe.is_some()
            || self.scope.via.is_some()
            || self.scope.operation.is_some()
            || self.request_id.is_some()
            || !(self.key_fields.is_empty() && self.key_headers.is_empty());
        !self.steps.is_empty() && !of_wrapper
    }

    /// Returns the keys of the handler's steps, as `--step` names them.
    fn steps(&self, function: String, event: &[u8], context: &Invocation) -> Result<Vec<Located>> {
        let mut fields = BTreeMap::<_, Vec<_>>::new();
        self.steps.iter().for_each(|(name, field)| fields.entry(name).or_default().push(field.clone()));
        let mut all = Vec::new();
        for (name, _) in &self.steps {
            let Some(key_fields) = fields.remove(name) else { continue };
            let mut description = Description::new(&function, "run");
            description.operation = Some(name.clone());
            description.key_fields = key_fields;
            let located = description.locate(event, context, self.scope.caller_text());
            for mut located in located.map_err(|error| Problem::of(&error))? {
                let of_part = located.part.map(|part| format!(" of {part}")).unwrap_or_default();
                located.part = Some(format!("the step {name}{of_part}"));
                all.push(located);
            }
        }
        Ok(all)
    }

    /// Searches the whole store for the records that this invocation claimed, and shows them.
    async fn of_invocation(&self, id: &str) -> Result<ExitCode> {
        let scanned = self.store.open().await?;
        let (read, function) = (Cell::new(0_usize), self.scope.function.as_deref());
        let found = read_until(&scanned, usize::MAX, |key, record| {
            read.set(read.get() + 1);
            let is_its = record.as_ref().is_ok_and(|record| record.request_id.as_deref() == Some(id));
            is_its && function.is_none_or(|function| function == function_of(key))
        });
        let found = found.await?;
        let store = self.store.open_any().await?;
        let mut answers = Vec::with_capacity(found.len());
        for (key, _) in found {
            let is_shadow = is_in_shadow(&key);
            answers.push(Answer { is_shadow, ..find(&store, Located::of(key)).await? });
        }
        let case = Case {
            event: Value::Null,
            answers,
            without_key: WithoutKey::default(),
            searched: Some(read.get()),
            mode: Mode::default(),
            may_be_tool: false,
            rules: self.rules,
            store: self.store.clone(),
        };
        case.print(self.json)
    }

    /// Returns what the file has, or a description for the event's source.
    fn described(&self, event: &[u8]) -> Result<Described> {
        let Some(path) = &self.describe else {
            return Ok(Described::of(vec![Description::detect(self.function()?, event)]));
        };
        let text = contents(path).context(format!("couldn't read {}", path.display()))?;
        let described = Described::read(&text);
        described.context(format!("{} isn't what `describe()` returns", path.display()))
    }

    /// Returns the descriptions that may fit the event and the options, the best first.
    fn chosen(&self, described: &Described, event: &[u8]) -> Vec<Description> {
        let wanted = |description: &Description| {
            let via = self.scope.via.is_none_or(|via| via.name() == description.via);
            let operation = self.scope.operation.is_none() || self.scope.operation == description.operation;
            self.describe.is_none() || via && operation
        };
        let wrappers = fitting_first(described.wrappers.clone(), event).into_iter().filter(wanted);
        wrappers.map(|description| self.overriding(description)).collect()
    }

    fn function(&self) -> Result<String> {
        let of_env = || std::env::var("AWS_LAMBDA_FUNCTION_NAME").ok().filter(|name| !name.is_empty());
        self.scope.function.clone().or_else(of_env).ok_or_else(|| {
            Problem::new("the function's name is missing: add --function NAME, or --describe FILE")
        })
    }

    fn overriding(&self, mut description: Description) -> Description {
        let ScopeArguments { function, via, operation, api, source, .. } = &self.scope;
        if let Some(function) = function {
            description.function.clone_from(function);
        }
        if let Some(via) = via.filter(|via| via.name() != description.via) {
            description.via = via.name().to_owned();
        }
        description.operation = operation.clone().or(description.operation);
        description.api_name = api.clone().or(description.api_name);
        description.source_name = source.clone().or(description.source_name);
        if let Some(tool) = self.tool.as_ref().filter(|_| description.via == "event") {
            let before = description.operation.map_or_else(String::new, |operation| format!("{operation}."));
            description.operation = Some(before + tool);
        }
        description.key_headers.extend(self.key_headers.iter().cloned());
        if !self.key_fields.is_empty() {
            description.key_fields.clone_from(&self.key_fields);
            description.required_key_fields = 0;
            description.compared_fields.clear();
        } else if self.request_id.is_some() && description.via == "event" {
            description.key_fields.clear();
            description.key_from = Some("request id".to_owned());
        }
        description
    }
}

impl Case {
    fn print(&self, as_json: bool) -> Result<ExitCode> {
        if as_json {
            words::print_json(&self.in_json())?;
        } else {
            words::print(&self.in_text())?;
        }
        let is_whole = self.without_key.identifiers.is_empty() && !self.answers.is_empty();
        let all_found = is_whole && self.answers.iter().all(|answer| answer.record.is_some());
        Ok(if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn view<'a>(&self, answer: &'a Answer, record: &'a Record) -> View<'a> {
        View { key: &answer.located.key, record, rules: self.rules, now: system_clock().now() }
    }

    fn in_json(&self) -> Value {
        let operations = self.answers.iter().map(|answer| {
            let record = answer.record.as_ref();
            let matches = record
                .zip(answer.located.fingerprint)
                .map(|(record, of_event)| record.fingerprint == of_event);
            json!({
                "id": answer.located.key.as_str(),
                "part": answer.located.part,
                "record": record.map(|record| self.view(answer, record).json()),
                "is_shadow": answer.is_shadow,
                "same_payload": matches,
            })
        });
        let mut document = json!({
            "operations": operations.collect::<Vec<_>>(),
            "without_key": self.without_key.identifiers,
            "reasons": self.without_key.reasons(),
            "trace": trace_of(&self.event),
            "mode": self.mode.as_str(),
        });
        if let Some(searched) = self.searched {
            document["searched"] = searched.into();
        }
        document
    }

    fn in_text(&self) -> String {
        let mut text = format!("The store: {}\n", self.store.location());
        if let Some(searched) = self.searched {
            let of_all = words::count(searched, "record");
            text.push_str(&format!(
                "Read all its {of_all}. DynamoDB bills this as a Scan of the whole table.\n"
            ));
        }
        if let Some(trace) = trace_of(&self.event) {
            text.push_str(&format!("The event's trace: {}\n", words::printable(trace)));
        }
        for answer in &self.answers {
            text.push('\n');
            if let Some(part) = &answer.located.part {
                text.push_str(&format!("{}:\n", words::printable(part)));
            }
            text.push_str(&self.one_in_text(answer));
        }
        text.push_str(&self.without_key.in_text(self.mode));
        if self.searched.is_some() && self.answers.is_empty() {
            text.push_str(NOT_CLAIMED);
        }
        text
    }

    fn one_in_text(&self, answer: &Answer) -> String {
        let key = &answer.located.key;
        let Some(record) = &answer.record else {
            return format!("{key}\n{NO_RECORD}{}", if self.may_be_tool { IS_IT_A_TOOL } else { "" });
        };
        let view = self.view(answer, record);
        let mut text = format!("{key}\n{}\n", view.lines());
        let is_other = answer.located.fingerprint.is_some_and(|of_event| of_event != record.fingerprint);
        if answer.is_shadow {
            text.push_str(
                "It's a record of shadow mode, which changes no answer: the next delivery runs the handler.\n",
            );
            return text;
        }
        match self.mode {
            Mode::Enforce if is_other && view.blocks_others() => text.push_str(
                "This event has another payload than the event that claimed the key. By default, the function refuses\n\
                 it without running the handler: Mismatch (HTTP 422). A function that compares only certain fields\n\
                 may treat it as the same request.\n",
            ),
            Mode::Enforce => {
                text.push_str(&view.next_delivery());
                if answer.located.fingerprint.is_none() && !self.event.is_null() && view.blocks_others() {
                    text.push_str(NOT_COMPARED);
                }
            }
            Mode::Shadow | Mode::Off => text.push_str(&format!(
                "The function's mode is `{}`: the next delivery runs the handler, whatever the record says.\n",
                self.mode.as_str()
            )),
        }
        text.push_str(&next_steps(&view, &self.store, false));
        text
    }
}

fn contents(path: &Path) -> io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The event's X-Ray trace: the HTTP request's, or the first message's.
fn trace_of(event: &Value) -> Option<&str> {
    let headers = event.get("headers").and_then(Value::as_object).into_iter().flatten();
    let header = headers
        .filter(|(name, _)| name.eq_ignore_ascii_case("x-amzn-trace-id"))
        .find_map(|(_, id)| id.as_str());
    header.or_else(|| event.pointer("/Records/0/attributes/AWSTraceHeader")?.as_str())
}
