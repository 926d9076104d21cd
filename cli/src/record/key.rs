//! The arguments that name a record: its stored id, or the key and the scope from which the wrappers derive the id.

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use lambda_idempotency::{
    Error, Idempotency, Key, StoredKey,
    lambda::{
        batch,
        http::{Caller, scope_caller},
    },
    store::memory::MemoryStore,
};
use lambda_runtime::Context;

use crate::problem::{Problem, Result};

/// Names one record.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// The record's id, as `list` and the logs show it: `<function>/<operation>#<64 hex digits>`. With --function,
    /// KEY is the idempotency key itself.
    #[arg(value_name = "KEY", help_heading = None::<&str>)]
    key: String,

    #[command(flatten)]
    scope: ScopeArguments,
}

/// The scope of a key.
#[derive(Debug, Args)]
#[command(next_help_heading = "The key's scope, if KEY is the idempotency key itself")]
pub(super) struct ScopeArguments {
    /// The Lambda function's name, without version or alias.
    #[arg(long, value_name = "NAME")]
    pub(super) function: Option<String>,

    /// The operation's wrapper.
    #[arg(long, value_enum)]
    pub(super) via: Option<Via>,

    /// The operation's name in the code: `idempotency.operation(NAME)`, or the layer's `operation(NAME)`.
    #[arg(long, value_name = "NAME")]
    pub(super) operation: Option<String>,

    /// HTTP, with a JWT authorizer: the caller's claim `sub`.
    #[arg(long, value_name = "SUB", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    jwt_subject: Option<String>,

    /// The JWT's claim `iss`. A token without this claim needs --api.
    #[arg(long, value_name = "ISS", value_parser = NonEmptyStringValueParser::new(), requires = "jwt_subject")]
    jwt_issuer: Option<String>,

    /// HTTP, with an IAM authorizer: the caller's unique id or ARN.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    iam: Option<String>,

    /// HTTP, with an IAM authorizer and a Cognito identity pool: the identity's id.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    cognito_identity: Option<String>,

    /// HTTP, with a Lambda authorizer: the principal that the authorizer returns. Needs --api.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    principal: Option<String>,

    /// A step inside a handler: the caller in `operation.for_caller(ID)`.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    for_caller: Option<String>,

    /// HTTP, with the API keys of a REST API: the API key's id. Needs --api.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    api_key_id: Option<String>,

    /// HTTP, with mutual TLS: the subject of the client's certificate. Needs --api.
    #[arg(long, value_name = "DN", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    certificate_subject: Option<String>,

    /// The issuer of the client's certificate.
    #[arg(long, value_name = "DN", value_parser = NonEmptyStringValueParser::new(), requires = "certificate_subject")]
    certificate_issuer: Option<String>,

    /// The API that verified the caller: `<API id>/<stage>`, or the name that the code sets with `api_name`.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(super) api: Option<String>,

    /// Batches: the ARN of the queue, stream or table, or the name that the code sets with `source_name`. If the ARN
    /// contains `/consumer/` or `/stream/`, leave out that part and everything after it.
    #[arg(long, value_name = "ARN", value_parser = NonEmptyStringValueParser::new())]
    pub(super) source: Option<String>,

    /// HTTP, with `HttpLayer::caller`: the text that the closure returns.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), group = "caller")]
    resolved_caller: Option<String>,

    /// In a function with tenant isolation: the tenant.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub(super) tenant: Option<String>,
}

/// The operation's wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Via {
    /// The Idempotency-Key header: `idempotency.http()`.
    Http,
    /// A field of a request's body, or a closure's key: `idempotency.http().key_fields(…)` or `.key(…)`.
    HttpBody,
    /// A typed event: `idempotency.events(…)`.
    Event,
    /// A step inside a handler: `operation.run(…)` or `begin`.
    Run,
    /// A message of a queue, standard or FIFO: `idempotency.sqs(…)`.
    #[value(alias = "sqs-fifo")]
    Sqs,
    /// A record of a Kinesis stream: `idempotency.kinesis(…)`.
    Kinesis,
    /// A change of a table: `idempotency.dynamodb_stream(…)`.
    #[value(alias = "dynamodb-stream")]
    Dynamodb,
    /// A record of Kafka: `idempotency.kafka(…)`.
    Kafka,
}

impl Via {
    /// The wrapper's name in the scope.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::HttpBody => "http-body",
            Self::Event => "event",
            Self::Run => "run",
            Self::Sqs => "sqs",
            Self::Kinesis => "kinesis",
            Self::Dynamodb => "dynamodb",
            Self::Kafka => "kafka",
        }
    }

    const fn is_batch(self) -> bool {
        matches!(self, Self::Sqs | Self::Kinesis | Self::Dynamodb | Self::Kafka)
    }
}

impl KeyArguments {
    /// Returns the stored key.
    ///
    /// # Errors
    ///
    /// If the key or its scope isn't valid. The message never contains the key.
    pub(crate) fn stored(&self) -> Result<StoredKey> {
        self.scope.stored(&self.key)
    }
}

/// Whether `key` has the form of a record's id.
fn is_id(key: &str) -> bool {
    key.split_once('#').is_some_and(|(scope, digest)| {
        scope.contains('/') && digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

impl ScopeArguments {
    /// Returns the stored form of `key` in this scope. `key` is either a record's id or an idempotency key.
    ///
    /// # Errors
    ///
    /// If the key or its scope isn't valid. The message never contains the key.
    pub(super) fn stored(&self, key: &str) -> Result<StoredKey> {
        match (&self.function, self.via) {
            (Some(function), Some(via)) => {
                self.check(via)?;
                self.derive(function, via, key).map_err(|error| Problem::of(&error))
            }
            (Some(_), None) => Err(Problem::new("--function needs --via, the operation's wrapper")),
            (None, _) if self.is_any_given() => Err(Problem::new(
                "the key's scope needs --function, the Lambda function's name, and --via, the operation's wrapper",
            )),
            (None, _) if is_id(key) => Ok(StoredKey::from_stored(key)),
            (None, _) => Err(Problem::new(
                "KEY isn't a record's id, which is <function>/<operation>#<64 hex digits>; `idempotency list` shows \
                 ids. If KEY is the idempotency key itself, add --function and --via",
            )),
        }
    }

    /// The text that the function's own code returns for the caller.
    pub(super) fn caller_text(&self) -> Option<&str> {
        self.resolved_caller.as_deref().or(self.for_caller.as_deref())
    }

    fn is_any_given(&self) -> bool {
        self.via.is_some()
            || self.http_caller().is_some()
            || [&self.operation, &self.for_caller, &self.api, &self.source, &self.tenant]
                .iter()
                .any(|it| it.is_some())
    }

    /// Checks that the options fit the wrapper. Otherwise, the command would derive a key that no delivery has.
    fn check(&self, via: Via) -> Result<()> {
        let caller = self.http_caller();
        let has_caller = caller.is_some();
        match via {
            _ if via.is_batch() != self.source.is_some() => Err(Problem::new(if via.is_batch() {
                "a batch's key belongs to its source: add --source with the ARN of the queue, stream, table or cluster, or \
                 the name that the code sets with `source_name`"
            } else {
                "only a batch's key has a source: leave out --source, or use --via sqs, kinesis, dynamodb or kafka"
            })),
            Via::Run if self.operation.is_none() => Err(Problem::new(
                "a step needs its name: add --operation, as in `idempotency.operation(NAME)`",
            )),
            Via::Http | Via::HttpBody | Via::Event | Via::Sqs | Via::Kinesis | Via::Dynamodb | Via::Kafka
                if self.for_caller.is_some() =>
            {
                Err(Problem::new("--for-caller is only for steps: leave it out, or use --via run"))
            }
            Via::Event | Via::Run | Via::Sqs | Via::Kinesis | Via::Dynamodb | Via::Kafka if has_caller => {
                Err(Problem::new(
                    "--jwt-subject, --iam, --principal and the other options for an HTTP caller are only for HTTP \
                 keys: leave them out, or use --via http",
                ))
            }
            _ if is_without_api(caller.as_ref()) => Err(Problem::new(
                "the caller's name is unique only within its API: add --api `<API id>/<stage>`, or the name that the \
                 code sets with `api_name`; or, for a JWT, add --jwt-issuer",
            )),
            _ => Ok(()),
        }
    }

    /// Derives the key as the wrappers do.
    fn derive(&self, function: &str, via: Via, key: &str) -> Result<StoredKey, Error> {
        let builder = Idempotency::builder(MemoryStore::new()).function(function);
        let builder = match &self.operation {
            Some(operation) => builder.operation(operation),
            None => builder,
        };
        let (idempotency, key) = (builder.build()?, Key::new(key)?);
        if let (Via::Run, Some(name)) = (via, &self.operation) {
            return self.of_step(&idempotency, name, &key);
        }
        let scope = idempotency.scope(via.name())?;
        let scope = match self.caller(via) {
            Some(caller) => scope.with_caller(caller)?,
            None => scope,
        };
        Ok(StoredKey::new(&scope, &key))
    }

    fn of_step(&self, idempotency: &Idempotency, name: &str, key: &Key) -> Result<StoredKey, Error> {
        let mut context = Context::default();
        context.tenant_id = self.tenant.clone();
        let step = idempotency.for_context(&context).operation(name)?;
        let step = match &self.for_caller {
            Some(caller) => step.for_caller(caller)?,
            None => step,
        };
        Ok(step.stored_key(key))
    }

    fn http_caller(&self) -> Option<Caller> {
        let (api, own) =
            (self.api.clone().unwrap_or_default(), |text: &Option<String>| text.clone().unwrap_or_default());
        if let Some(subject) = self.jwt_subject.clone() {
            return Some(match self.jwt_issuer.clone() {
                Some(issuer) => Caller::Jwt { issuer, subject },
                None => Caller::Principal { api, name: subject },
            });
        }
        if let Some(subject) = self.certificate_subject.clone() {
            return Some(Caller::Certificate { api, issuer: own(&self.certificate_issuer), subject });
        }
        if let Some(id) = self.api_key_id.clone() {
            return Some(Caller::ApiKey { api, id });
        }
        if let Some(name) = self.principal.clone() {
            return Some(Caller::Principal { api, name });
        }
        let iam = self.iam.clone().map(Caller::Iam);
        let cognito = || self.cognito_identity.clone().map(Caller::CognitoIdentity);
        iam.or_else(cognito).or_else(|| self.resolved_caller.clone().map(Caller::Resolved))
    }

    fn caller(&self, via: Via) -> Option<String> {
        match via {
            Via::Http | Via::HttpBody => scope_caller(self.http_caller().as_ref(), self.tenant.as_deref()),
            Via::Sqs | Via::Kinesis | Via::Dynamodb | Via::Kafka => {
                self.source.as_deref().map(|source| batch::scope_caller(source, self.tenant.as_deref()))
            }
            Via::Event | Via::Run => self.tenant.clone(),
        }
    }
}

fn is_without_api(caller: Option<&Caller>) -> bool {
    match caller {
        Some(
            Caller::Principal { api, .. } | Caller::Certificate { api, .. } | Caller::ApiKey { api, .. },
        ) => api.is_empty(),
        _ => false,
    }
}
