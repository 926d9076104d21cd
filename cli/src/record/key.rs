//! Which record: its stored id, or what the wrappers derive it from.

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use lambda_idempotency::{
    Error, Idempotency, Key, StoredKey,
    lambda::http::{Caller, scope_caller},
    store::memory::MemoryStore,
};

use crate::problem::{Problem, Result};

/// Names one record.
#[derive(Debug, Args)]
pub struct KeyArguments {
    /// The record's id, as `list` and the logs show it: `<function>/<operation>#<64 hex digits>`. With --function, the
    /// idempotency key itself.
    #[arg(value_name = "KEY", help_heading = None::<&str>)]
    key: String,

    #[command(flatten)]
    scope: ScopeArguments,
}

/// The scope that a key stands in.
#[derive(Debug, Args)]
#[command(next_help_heading = "The key's scope, where KEY is the idempotency key itself")]
struct ScopeArguments {
    /// The Lambda function's name, without version or alias.
    #[arg(long, value_name = "NAME", requires = "via")]
    function: Option<String>,

    /// Which wrapper takes the key.
    #[arg(long, value_enum, requires = "function")]
    via: Option<Via>,

    /// What the code calls the operation: `idempotency.operation(NAME)`, or the layer's `operation(NAME)`.
    #[arg(long, value_name = "NAME", requires = "function")]
    operation: Option<String>,

    /// HTTP, with a JWT authorizer: the caller's claim `sub`.
    #[arg(long, value_name = "SUB", value_parser = NonEmptyStringValueParser::new(), requires = "function", group = "caller")]
    jwt_subject: Option<String>,

    /// The JWT's claim `iss`.
    #[arg(long, value_name = "ISS", value_parser = NonEmptyStringValueParser::new(), requires = "jwt_subject")]
    jwt_issuer: Option<String>,

    /// HTTP, with an IAM authorizer: the caller's unique id or ARN.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), requires = "function", group = "caller")]
    iam: Option<String>,

    /// HTTP, with an IAM authorizer and a Cognito identity pool: the identity's id.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), requires = "function", group = "caller")]
    cognito_identity: Option<String>,

    /// HTTP, with a Lambda authorizer: the principal that it names.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), requires = "function", group = "caller")]
    principal: Option<String>,

    /// A step inside a handler, run for one caller or tenant: `operation.for_caller(ID)`.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), requires = "function", group = "caller")]
    for_caller: Option<String>,

    /// HTTP and events, in a function with tenant isolation: the tenant.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(), requires = "function")]
    tenant: Option<String>,
}

/// How a key comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Via {
    /// The Idempotency-Key header: `idempotency.http()`.
    Http,
    /// A typed event: `idempotency.events(…)`.
    Event,
    /// A step inside a handler: `operation.run(…)` or `begin`.
    Run,
}

impl KeyArguments {
    /// The key as it is stored.
    ///
    /// # Errors
    ///
    /// If it cannot be one. The text never has the key in it.
    pub fn stored(&self) -> Result<StoredKey> {
        let ScopeArguments { function: Some(function), via: Some(via), .. } = &self.scope else {
            return self.as_it_is();
        };
        self.scope.check(*via)?;
        self.scope.derive(function, *via, &self.key).map_err(|error| Problem::of(&error))
    }

    fn as_it_is(&self) -> Result<StoredKey> {
        let is_id = self.key.split_once('#').is_some_and(|(scope, digest)| {
            scope.contains('/') && digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit())
        });
        if is_id {
            return Ok(StoredKey::from_stored(&self.key));
        }
        Err(Problem::new(
            "KEY is no record's id, which is <function>/<operation>#<64 hex digits>; `idempotency list` shows them. \
             If it is the idempotency key itself, give --function and --via too",
        ))
    }
}

impl ScopeArguments {
    /// What the wrapper would not look at must not make a key that is nobody's.
    fn check(&self, via: Via) -> Result<()> {
        let callers = [&self.jwt_subject, &self.iam, &self.cognito_identity, &self.principal];
        let has_caller = callers.into_iter().any(Option::is_some);
        match via {
            Via::Run if self.operation.is_none() => Err(Problem::new(
                "a step has a name: give --operation too, as in `idempotency.operation(NAME)`",
            )),
            Via::Http | Via::Event if self.for_caller.is_some() => Err(Problem::new(
                "only a step is run for a caller: leave out --for-caller, or give --via run",
            )),
            Via::Event | Via::Run if has_caller => Err(Problem::new(
                "only an HTTP key has a caller: leave out --jwt-subject, --iam, --cognito-identity and --principal, or give --via http",
            )),
            Via::Run if self.tenant.is_some() => Err(Problem::new(
                "a step has no tenant of its own: leave out --tenant and give --for-caller, or give --via http or event",
            )),
            _ => Ok(()),
        }
    }

    /// By the same way that the wrappers go.
    fn derive(&self, function: &str, via: Via, key: &str) -> Result<StoredKey, Error> {
        let builder = Idempotency::builder(MemoryStore::new()).function(function);
        let builder = match &self.operation {
            Some(operation) => builder.operation(operation),
            None => builder,
        };
        let scope = builder.build()?.scope(match via {
            Via::Http => "http",
            Via::Event => "event",
            Via::Run => "run",
        })?;
        let scope = match self.caller(via) {
            Some(caller) => scope.with_caller(caller)?,
            None => scope,
        };
        Ok(StoredKey::new(&scope, &Key::new(key)?))
    }

    fn caller(&self, via: Via) -> Option<String> {
        let issuer = self.jwt_issuer.as_deref().unwrap_or_default();
        let jwt = self.jwt_subject.as_deref().map(|subject| Caller::Jwt { issuer, subject });
        let caller = jwt
            .or_else(|| self.iam.as_deref().map(Caller::Iam))
            .or_else(|| self.cognito_identity.as_deref().map(Caller::CognitoIdentity))
            .or_else(|| self.principal.as_deref().map(Caller::Principal));
        match via {
            Via::Http => scope_caller(caller, self.tenant.as_deref()),
            Via::Event => self.tenant.clone(),
            Via::Run => self.for_caller.clone(),
        }
    }
}
