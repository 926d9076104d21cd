//! [`Description`]: a function's settings for keys. With them, a tool can compute the id of an event's record.

use serde::{Deserialize, Serialize};

use crate::{
    fingerprint::Fingerprint, idempotency::Idempotency, internal::KeyFieldsExt as _, key::StoredKey,
    key_fields::KeyFields, settings::Execution, store::named,
};

/// How a function derives its records' keys from its events. A wrapper's `describe()` returns the description, and
/// tools read it as JSON: with it, `idempotency why --describe FILE` finds an event's record.
///
/// It holds no secret: no key, no caller, and no password from the store's URL. A closure can't be described. If a
/// closure returns the key or the caller, the description says so, and the tool asks for that value.
///
/// ```
/// # use lambda_idempotency::{Idempotency, KeyFields, store::memory::MemoryStore};
/// use lambda_idempotency::lambda::Description;
/// use lambda_runtime::Context;
///
/// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
/// let layer = idempotency.events_by::<serde_json::Value>(KeyFields::new(["/order_id"])?);
/// let json = serde_json::to_string(&layer.describe())?;
///
/// let description: Description = serde_json::from_str(&json)?;
/// let located = description.locate(br#"{"order_id": "order-17"}"#, &Context::default(), None)?;
/// assert!(located[0].key.as_str().starts_with("orders/event#"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Description {
    /// The function's name in the scope.
    pub function: String,
    /// The wrapper that reads the key: `http`, `event`, `sqs`, `kinesis`, `dynamodb`, `kafka` or `run`.
    pub via: String,
    /// The operation's name in the code, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// HTTP: the operations' names for their paths, as `HttpLayer::operations` sets them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<(String, String)>,
    /// The fields that the key is built from. For batches, these are fields of each record's payload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_fields: Vec<String>,
    /// The number of fields that must have a value: the first ones of [`key_fields`](Self::key_fields).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub required_key_fields: usize,
    /// Where the key comes from: `closure`, `request id`, or the name of a function in [`keys`](super::keys), such as
    /// `s3`. If there are other [`key_fields`](Self::key_fields), the key comes from these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_from: Option<String>,
    /// The headers that hold the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_headers: Vec<String>,
    /// HTTP: the methods that the layer protects. `None` means the default, POST and PATCH. With an empty list, the
    /// layer protects no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// HTTP: whether a closure identifies the caller. Otherwise the front end does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub caller_from_closure: bool,
    /// HTTP: whether callers without a name share one namespace.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared_namespace: bool,
    /// HTTP: the API's name, as `HttpLayer::api_name` sets it. It's part of the identity of callers that belong to one
    /// API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_name: Option<String>,
    /// HTTP: the cookies that carry no credential.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_cookies: Vec<String>,
    /// HTTP: the headers that carry a credential, in addition to the layer's own list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credential_headers: Vec<String>,
    /// HTTP: whether a closure returns the path. In that case, the fingerprint is unknown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub path_from_closure: bool,
    /// Batches: the name that replaces the source's ARN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_name: Option<String>,
    /// The fields that are compared in place of the payload. For batches, these are fields of each record's payload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared_fields: Vec<String>,
    /// HTTP: the headers that are compared too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared_headers: Vec<String>,
    /// HTTP: whether the body is compared byte for byte.
    #[serde(default, skip_serializing_if = "is_false")]
    pub raw_body: bool,
    /// HTTP: the query's parameters that aren't compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_query: Vec<String>,
    /// HTTP: whether the key alone counts, and nothing is compared.
    #[serde(default, skip_serializing_if = "is_false")]
    pub key_alone: bool,
    /// Whether the function's operations run at most once.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_most_once: bool,
    /// The skew margin, in milliseconds: how far the executors' clocks may differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_margin_ms: Option<u64>,
    /// The mode: `enforce`, `shadow` or `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The store's URL, without user name and password, if environment variables choose the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Whether the description is a guess from the event's source. In that case, the compared fields are unknown.
    #[serde(skip)]
    pub(in crate::lambda) is_guessed: bool,
}

/// The value of [`Description::key_from`] for a key that a closure returns.
pub(in crate::lambda) const CLOSURE: &str = "closure";

/// A part of an event, and the JSON that holds its key's fields, or why it can't be read. `None` is the whole event.
pub(in crate::lambda) type Part = (Option<String>, Result<Vec<u8>, String>);

/// Identifies the stored record of an operation that an event asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Located {
    /// The record's id.
    pub key: StoredKey,
    /// The fingerprint that must match when the key is used again. `None` if only the handler's code knows it.
    pub fingerprint: Option<Fingerprint>,
    /// Which record of a batch asks for the operation: the record's identifier, or its place in the batch. `None` if
    /// the event isn't a batch.
    pub part: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &usize) -> bool {
    *value == 0
}

impl Located {
    /// Identifies the record with this id, for code that knows only the operation's stored key.
    pub fn of(key: StoredKey) -> Self {
        Self::new(key, None)
    }

    pub(in crate::lambda) fn new(key: StoredKey, fingerprint: Option<Fingerprint>) -> Self {
        Self { key, fingerprint, part: None }
    }

    /// Forgets the fingerprint unless `is_known`.
    pub(in crate::lambda) fn compared_if(self, is_known: bool) -> Self {
        Self { fingerprint: self.fingerprint.filter(|_| is_known), ..self }
    }

    pub(in crate::lambda) fn of_part(self, part: String) -> Self {
        Self { part: Some(part), ..self }
    }
}

impl Description {
    /// A description of the wrapper `via` of a function, with defaults.
    pub fn new(function: impl Into<String>, via: impl Into<String>) -> Self {
        Self { function: function.into(), via: via.into(), ..Self::default() }
    }

    /// A description of the wrapper `via`, with the values that its [`Idempotency`] determines.
    pub(in crate::lambda) fn of(idempotency: &Idempotency, via: &str) -> Self {
        let settings = idempotency.settings();
        Self {
            operation: idempotency.operation_name().map(str::to_owned),
            at_most_once: settings.execution == Execution::AtMostOnce,
            skew_margin_ms: u64::try_from(settings.skew_margin.as_millis()).ok(),
            mode: Some(settings.mode.as_str().to_owned()),
            store: named::url_in_environment(),
            ..Self::new(idempotency.function_name(), via)
        }
    }

    pub(in crate::lambda) fn keyed_by(mut self, fields: &KeyFields) -> Self {
        self.key_fields = fields.iter().map(str::to_owned).collect();
        self.required_key_fields = fields.required();
        self.key_from = fields.name().map(str::to_owned);
        self.compared_fields =
            fields.compared().into_iter().flatten().map(|field| field.as_str().to_owned()).collect();
        self
    }
}
