//! [`NamedStore`]: the store that a URL or an environment variable names.

use std::{env, fmt, sync::Arc};

#[cfg(any(feature = "dynamodb", feature = "postgres", feature = "redis"))]
use crate::store::StoreBuilder;
#[cfg(feature = "dynamodb")]
use crate::store::dynamodb::DynamoDbStore;
#[cfg(feature = "postgres")]
use crate::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
use crate::store::redis::RedisStore;
use crate::{
    error::{Error, ErrorKind},
    settings::Mode,
    store::{Store, memory::MemoryStore, parameter::decoded},
};

/// The environment variable that names the DynamoDB table.
const TABLE: &str = "IDEMPOTENCY_TABLE";
/// The environment variable that names any store, by its URL.
const STORE: &str = "IDEMPOTENCY_STORE";

/// What to do if the environment names no store.
pub(crate) const HOW_TO_NAME_A_STORE: &str =
    "set IDEMPOTENCY_TABLE to a DynamoDB table, or IDEMPOTENCY_STORE to a URL such as dynamodb://TABLE";

/// The URL of the store in memory.
#[cfg(feature = "events")]
const MEMORY: &str = "memory:";

/// The parameters of a URL that hold credentials. PostgreSQL's driver accepts the first two.
#[cfg(feature = "events")]
const CREDENTIALS: [&str; 4] = ["user", "password", "passfile", "sslpassword"];

/// Lambda sets this variable in every sandbox. Emulators of the Runtime API don't set it ("Defined runtime
/// environment variables", AWS Lambda developer guide).
const INITIALIZATION: &str = "AWS_LAMBDA_INITIALIZATION_TYPE";

/// The store that a URL or a variable selects. The feature that it needs may be disabled.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    DynamoDb(Table),
    Redis(Secret),
    Postgres(Secret),
    Memory,
}

/// A DynamoDB table with the settings from its URL.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    name: String,
    endpoint: Option<String>,
    region: Option<String>,
    sort_key: Option<String>,
    partition: Option<String>,
    attributes: Option<String>,
}

/// A URL that may contain a password.
#[derive(PartialEq, Eq)]
struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The settings of a store that the environment or a URL names. [`open`](Self::open) builds the store.
///
/// It's for tools that accept any store and configure it further.
///
/// ```no_run
/// # async fn example() -> Result<(), lambda_idempotency::Error> {
/// use lambda_idempotency::{Idempotency, store::NamedStore};
///
/// let store = NamedStore::from_url("dynamodb://payments?region=eu-west-1")?.open().await?;
/// let idempotency = Idempotency::builder(store).function("payments").build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a process has one such value, while it starts")]
pub enum NamedStore {
    /// A DynamoDB table.
    #[cfg(feature = "dynamodb")]
    DynamoDb(StoreBuilder<DynamoDbStore>),
    /// A PostgreSQL table.
    #[cfg(feature = "postgres")]
    Postgres(StoreBuilder<PostgresStore>),
    /// A server or a cluster of Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(StoreBuilder<RedisStore>),
    /// A store in this process's memory.
    Memory,
}

impl NamedStore {
    /// Returns the store that the environment names.
    ///
    /// The rules are those of [`Idempotency::from_env`](crate::Idempotency::from_env).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if neither variable is set, both are, or one is malformed or names a store
    /// whose feature is disabled.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_env_in(Mode::Enforce)
    }

    /// Like [`from_env`](Self::from_env), but `variable` returns the value of each variable. It's for programs that
    /// also read settings from a file.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    ///
    /// ```
    /// use lambda_idempotency::store::NamedStore;
    ///
    /// let store = |name: &str| (name == "IDEMPOTENCY_STORE").then(|| "memory:".to_owned());
    /// assert!(NamedStore::from_variables(store).is_ok());
    /// assert!(NamedStore::from_variables(|_| None).is_err());
    /// ```
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        choice_in(variable(INITIALIZATION).is_some(), variable(TABLE), variable(STORE))?.named()
    }

    /// Like [`from_env`](Self::from_env). With [`Mode::Off`], neither variable needs to be set.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub(crate) fn from_env_in(mode: Mode) -> Result<Self, Error> {
        Self::named_in(mode, (variable(TABLE), variable(STORE)))
    }

    /// Whether the environment names a store.
    pub(crate) fn is_in_environment() -> bool {
        variable(TABLE).or_else(|| variable(STORE)).is_some()
    }

    /// Returns the store that these values of [`TABLE`] and [`STORE`] name.
    pub(crate) fn named_in(mode: Mode, variables: (Option<String>, Option<String>)) -> Result<Self, Error> {
        match (mode, variables) {
            (Mode::Off, (None, None)) => Ok(Self::Memory),
            (_, (table, store)) => choice_in(variable(INITIALIZATION).is_some(), table, store)?.named(),
        }
    }

    /// Returns the store that `url` names. [`Idempotency::from_env`](crate::Idempotency::from_env) lists the URLs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the URL is malformed, or names a store whose feature is disabled. No message
    /// contains a password.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        parse("the store's URL", url)?.named()
    }

    /// Builds the store with its default settings, without sending a request.
    ///
    /// # Errors
    ///
    /// The errors of the store's builder.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        match self {
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(builder) => Ok(Arc::new(builder.build().await?)),
            #[cfg(feature = "postgres")]
            Self::Postgres(builder) => Ok(Arc::new(builder.build()?)),
            #[cfg(feature = "redis")]
            Self::Redis(builder) => Ok(Arc::new(builder.build()?)),
            Self::Memory => Ok(Arc::new(MemoryStore::new())),
        }
    }
}

impl Choice {
    fn named(self) -> Result<NamedStore, Error> {
        match self {
            Self::Memory => Ok(NamedStore::Memory),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(table) => table.builder().map(NamedStore::DynamoDb),
            #[cfg(not(feature = "dynamodb"))]
            Self::DynamoDb(_) => Err(off("a DynamoDB table", "dynamodb")),
            #[cfg(feature = "redis")]
            Self::Redis(Secret(url)) => Ok(NamedStore::Redis(RedisStore::builder(url))),
            #[cfg(not(feature = "redis"))]
            Self::Redis(Secret(_)) => Err(off("a Redis server", "redis")),
            #[cfg(feature = "postgres")]
            Self::Postgres(Secret(url)) => Ok(NamedStore::Postgres(PostgresStore::builder(url))),
            #[cfg(not(feature = "postgres"))]
            Self::Postgres(Secret(_)) => Err(off("a PostgreSQL database", "postgres")),
        }
    }
}

#[cfg(not(all(feature = "dynamodb", feature = "postgres", feature = "redis")))]
fn off(what: &str, feature: &str) -> Error {
    invalid(format!("the store is {what}, which needs the feature `{feature}`; enable the feature"))
}

#[cfg(feature = "dynamodb")]
impl DynamoDbStore {
    /// Creates a builder for the table that the environment names, by the rules of
    /// [`Idempotency::from_env`](crate::Idempotency::from_env). It's for tools that inspect a function's table.
    ///
    /// # Errors
    ///
    /// As [`Idempotency::from_env`](crate::Idempotency::from_env), and if the environment names a store that isn't a DynamoDB table.
    ///
    /// ```no_run
    /// # use lambda_idempotency::store::dynamodb::DynamoDbStore;
    /// # async fn example() -> Result<(), lambda_idempotency::Error> {
    /// let store = DynamoDbStore::builder_from_env()?.build().await?;
    /// println!("{}", store.table());
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder_from_env() -> Result<StoreBuilder<Self>, Error> {
        match NamedStore::from_env()? {
            NamedStore::DynamoDb(builder) => Ok(builder),
            _ => Err(invalid(format!("{STORE} doesn't name a DynamoDB table; set {TABLE} to one instead"))),
        }
    }
}

/// The URL of the store that the environment names, without a user's name and password.
#[cfg(feature = "events")]
pub(crate) fn url_in_environment() -> Option<String> {
    let table = || variable(TABLE).map(|table| format!("dynamodb://{table}"));
    variable(STORE).map(|url| without_credentials(&url)).or_else(table)
}

/// Removes user name and password from `url`: everything between `://` and the last `@` before the query, and the
/// [`CREDENTIALS`] in the query. If `url` isn't a store's, nothing is left. If its `?` may belong to a password, only the
/// scheme is left. The command line has the same function, because this one isn't public.
#[cfg(feature = "events")]
fn without_credentials(url: &str) -> String {
    let scheme = scheme_of(url).filter(|_| parse("", url).is_ok());
    let Some((scheme, rest)) = scheme else {
        // Any other text may contain a password anywhere.
        return if url == MEMORY { url.to_owned() } else { String::new() };
    };
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') && !is_valid(url) {
        // The `?` may belong to a password that isn't encoded.
        return format!("{scheme}://…");
    }
    let host = base.rsplit_once('@').map_or(base, |(_, host)| host);
    let shown = query.split('&').filter(|pair| !is_credential(pair)).map(without_userinfo);
    let query = shown.collect::<Vec<_>>().join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{scheme}://{host}{mark}{query}")
}

/// Splits `url` at the `://` after its scheme. Returns `None` if the first `:` isn't followed by `//`: a later `://`
/// may be a part of any other text.
#[cfg(feature = "events")]
fn scheme_of(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    Some((scheme, rest.strip_prefix("//")?))
}

/// Whether the parameter is one of the [`CREDENTIALS`]. A name with a percent escape counts as one: it may stand for
/// any name, and no valid name needs an escape.
#[cfg(feature = "events")]
fn is_credential(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    name.contains('%') || CREDENTIALS.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns the parameter. Shows `endpoint=…` instead of an endpoint that may contain credentials.
#[cfg(feature = "events")]
fn without_userinfo(pair: &str) -> &str {
    let hides = |value: &str| {
        let value = value.to_ascii_lowercase();
        ["@", "?", "%40", "%3f"].iter().any(|mark| value.contains(mark))
    };
    match pair.split_once('=') {
        Some(("endpoint", value)) if hides(value) => "endpoint=…",
        _ => pair,
    }
}

/// Whether a store accepts `url`, whose query contains an `@`. The PostgreSQL store never does.
#[cfg(feature = "events")]
fn is_valid(url: &str) -> bool {
    match parse("the store's URL", url) {
        Ok(Choice::DynamoDb(_)) => true,
        #[cfg(feature = "redis")]
        Ok(Choice::Redis(Secret(url))) => RedisStore::builder(url).build().is_ok(),
        _ => false,
    }
}

/// Returns the variable's value, unless it's unset or empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(feature = "dynamodb")]
impl Table {
    fn builder(self) -> Result<StoreBuilder<DynamoDbStore>, Error> {
        let mut builder = DynamoDbStore::builder(self.name);
        if let Some(endpoint) = self.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        if let Some(region) = self.region {
            builder = builder.region(region);
        }
        if let Some(sort_key) = self.sort_key {
            builder = builder.sort_key(sort_key);
        }
        if let Some(partition) = self.partition {
            builder = builder.partition(partition);
        }
        if let Some(attributes) = self.attributes {
            builder = builder.attributes(attributes)?;
        }
        Ok(builder)
    }
}

/// Chooses the store. Inside Lambda (`lambda`), it refuses `memory:`.
fn choice_in(lambda: bool, table: Option<String>, store: Option<String>) -> Result<Choice, Error> {
    match choice(table, store)? {
        Choice::Memory if lambda => Err(invalid(format!(
            "{STORE} is `memory:`, which the sandboxes of a Lambda function don't share: a duplicate in another \
             sandbox runs again. Use a table or a server"
        ))),
        choice => Ok(choice),
    }
}

fn choice(table: Option<String>, store: Option<String>) -> Result<Choice, Error> {
    match (table, store) {
        (Some(name), None) => Ok(Choice::DynamoDb(Table { name, ..Table::default() })),
        (None, Some(url)) => parse(STORE, &url),
        (None, None) => Err(invalid(format!("no store is configured: {HOW_TO_NAME_A_STORE}"))),
        (Some(_), Some(_)) => Err(invalid(format!("both {TABLE} and {STORE} are set; keep one"))),
    }
}

/// Parses `url`. Errors refer to the URL as `what`.
fn parse(what: &str, url: &str) -> Result<Choice, Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "memory" if rest.is_empty() => Ok(Choice::Memory),
        "dynamodb" => parse_table(what, rest.strip_prefix("//").unwrap_or_default()),
        "postgres" | "postgresql" => Ok(Choice::Postgres(Secret(url.to_owned()))),
        "redis" | "rediss" | "redis-cluster" | "rediss-cluster" | "valkey" | "valkeys" | "valkey-cluster"
        | "valkeys-cluster" => Ok(Choice::Redis(Secret(url.to_owned()))),
        // The rest of an unknown URL may contain a password, so only its scheme is shown.
        _ => Err(invalid(format!(
            "{what} has the unknown scheme {scheme:?}; use dynamodb://TABLE, redis://HOST:PORT, \
             postgres://HOST/DATABASE or memory:"
        ))),
    }
}

fn parse_table(what: &str, rest: &str) -> Result<Choice, Error> {
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(invalid(format!("{what} doesn't name a table; use dynamodb://TABLE")));
    }
    let mut table = Table { name: name.to_owned(), ..Table::default() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = match name {
            "endpoint" => &mut table.endpoint,
            "region" => &mut table.region,
            "sort_key" => &mut table.sort_key,
            "partition" => &mut table.partition,
            "attributes" => &mut table.attributes,
            _ => {
                return Err(invalid(format!(
                    "{what} has the unknown parameter {name:?}; use endpoint, region, sort_key, partition or attributes"
                )));
            }
        };
        if value.is_empty() {
            return Err(invalid(format!("{what} has the parameter {name} without a value")));
        }
        *slot = Some(decoded(name, value)?);
    }
    Ok(Choice::DynamoDb(table))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn empty_variables_count_as_unset() {
        let named = |name: &str| Some(if name == STORE { "memory:" } else { "" }.to_owned());
        assert!(matches!(NamedStore::from_variables(named), Ok(NamedStore::Memory)));
        assert!(NamedStore::from_variables(|_| Some(String::new())).is_err());
    }

    #[cfg(feature = "events")]
    #[test]
    fn shown_urls_have_no_credentials() {
        for (url, shown) in [
            ("dynamodb://orders", "dynamodb://orders"),
            ("postgres://user:p@ss@db/orders", "postgres://db/orders"),
            ("redis://:secret@cache:6379", "redis://cache:6379"),
            ("memory:", "memory:"),
            // Credentials in the query.
            ("postgres://db/orders?user=app&password=secret", "postgres://db/orders"),
            (
                "postgres://db/o?sslmode=require&p%61ssword=secret&table=t",
                "postgres://db/o?sslmode=require&table=t",
            ),
            ("postgres://a:b@db/o?Password=secret&user=a&timeouts=role", "postgres://db/o?timeouts=role"),
            ("postgres://db/o?passfile=secret&sslpassword=secret&%=secret", "postgres://db/o"),
            // An `@` in a parameter.
            (
                "dynamodb://app?sort_key=sk&partition=idem@prod",
                "dynamodb://app?sort_key=sk&partition=idem@prod",
            ),
            ("dynamodb://a:secret@app?partition=idem@prod", "dynamodb://app?partition=idem@prod"),
            ("redis://cache?prefix=a@b", "redis://cache?prefix=a@b"),
            ("redis://:secret@cache?prefix=a@b", "redis://cache?prefix=a@b"),
            // A password that isn't encoded.
            ("postgres://user:se?cret@db/orders", "postgres://…"),
            ("postgres://user:se?table=t@cret@db/orders?sslmode=require", "postgres://…"),
            ("postgres://db/orders?user=app@corp&password=secret", "postgres://…"),
            ("redis://:se?cret@cache:6379?prefix=a", "redis://…"),
            ("redis://cache?prefix=a@b&password=secret", "redis://…"),
            // An endpoint with credentials.
            (
                "dynamodb://app?endpoint=http://user:secret@proxy:8000&region=r",
                "dynamodb://app?endpoint=…&region=r",
            ),
            ("dynamodb://app?endpoint=http%3A%2F%2Fuser%3Asecret%40proxy", "dynamodb://app?endpoint=…"),
            ("dynamodb://app?endpoint=http://h/?token=secret", "dynamodb://app?endpoint=…"),
            (
                "dynamodb://app?endpoint=http://127.0.0.1:8000",
                "dynamodb://app?endpoint=http://127.0.0.1:8000",
            ),
            // No URL of a store.
            ("dynamodb://t?password=secret@h", ""),
            ("host=db password=secret hostaddr=::1", ""),
            ("password=secret sslrootcert=file:///x", ""),
            ("memory:secret", ""),
            ("postgres:user:secret@db", ""),
            ("postgres:user:secret@db?sslrootcert=file:///x", ""),
            ("host=db password=secret", ""),
        ] {
            assert_eq!(without_credentials(url), shown, "{url}");
        }
    }

    #[test]
    fn memory_is_refused_inside_lambda() {
        let memory = || Some("memory:".to_owned());
        assert!(choice_in(true, None, memory()).unwrap_err().to_string().contains("another sandbox"));
        assert_eq!(choice_in(false, None, memory()).unwrap(), Choice::Memory);
        assert!(choice_in(true, Some("t".into()), None).is_ok());
    }

    #[test]
    fn table_or_url_names_the_store() {
        let plain = Choice::DynamoDb(Table { name: "payments".into(), ..Table::default() });
        assert_eq!(choice(some("payments"), None).unwrap(), plain);
        assert_eq!(choice(None, some("dynamodb://payments")).unwrap(), plain);
        assert_eq!(choice(None, some("memory:")).unwrap(), Choice::Memory);
        for url in
            ["redis://h", "rediss://u:p@h:1/2", "redis-cluster://h", "rediss-cluster://h", "valkey://h"]
        {
            assert_eq!(choice(None, some(url)).unwrap(), Choice::Redis(Secret(url.into())));
        }
        for url in ["postgres://u:p@h/db", "postgresql://h/db"] {
            assert_eq!(choice(None, some(url)).unwrap(), Choice::Postgres(Secret(url.into())));
        }
        let table = Choice::DynamoDb(Table {
            name: "t".into(),
            endpoint: some("http://127.0.0.1:8000"),
            region: some("eu-west-1"),
            sort_key: some("sk"),
            partition: some("a/b+é"),
            attributes: some("id:pk,owner:o"),
        });
        for url in [
            "dynamodb://t?endpoint=http://127.0.0.1:8000&region=eu-west-1&sort_key=sk&partition=a/b+é\
             &attributes=id:pk,owner:o",
            "dynamodb://t?endpoint=http%3A%2F%2F127.0.0.1%3A8000&region=eu%2dwest-1&sort_key=s%6B\
             &partition=a%2Fb%2B%C3%A9&attributes=id%3Apk%2Cowner%3Ao",
        ] {
            assert_eq!(choice(None, some(url)).unwrap(), table, "{url}");
        }
    }

    #[test]
    fn errors_name_the_invalid_setting() {
        for (table, store, says) in [
            (None, None, "IDEMPOTENCY_TABLE"),
            (some("t"), some("memory:"), "both"),
            (None, some("dynamodb://"), "name a table"),
            (None, some("dynamodb://t?colour=red"), "colour"),
            (None, some("dynamodb://t?region="), "region"),
            (None, some("dynamodb://t?endpoint=secret%zz"), "`endpoint` has a `%` without"),
            (None, some("dynamodb://t?partition=secret%f"), "`partition` has a `%` without"),
            (None, some("dynamodb://t?sort_key=secret%ff"), "`sort_key` isn't UTF-8"),
            (None, some("mysql://user:secret@host/db"), "mysql"),
            (None, some("nonsense"), "scheme"),
            (None, some("memory:secret"), "scheme"),
            (None, some("dynamodb:secret"), "name a table"),
        ] {
            let error = choice(table, store).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn passwords_are_never_shown() {
        let url = "redis://user:secret@h:1";
        assert!(!format!("{:?}", choice(None, some(url)).unwrap()).contains("secret"));
        for url in [url, "redis://user:secret@h:99999", "postgres://user:secret@h/db"] {
            let shown = match NamedStore::from_url(url) {
                Ok(named) => format!("{named:?}") + &format!("{:?}", named.open().await),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("secret"), "{shown}");
        }
    }

    /// The same URL parameters work on the command line and in the environment.
    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn postgres_urls_configure_timeouts_and_prepared_statements() {
        let open = async |parameters: &str| {
            let url = format!("postgres://app@db.internal/shop?{parameters}");
            NamedStore::from_url(&url)?.open().await.map(drop)
        };
        for parameters in ["timeouts=transaction", "timeouts=role&prepared=true", "prepared=false"] {
            assert!(open(parameters).await.is_ok(), "{parameters}");
        }
        for parameters in ["timeouts=session", "prepared=yes"] {
            assert_eq!(open(parameters).await.unwrap_err().kind(), ErrorKind::Invalid, "{parameters}");
        }
    }

    #[test]
    fn errors_name_the_disabled_feature() {
        #[cfg(not(feature = "postgres"))]
        assert!(
            NamedStore::from_url("postgres://h/db")
                .unwrap_err()
                .to_string()
                .contains("needs the feature `postgres`")
        );
        #[cfg(not(feature = "redis"))]
        assert!(
            NamedStore::from_url("redis://h").unwrap_err().to_string().contains("needs the feature `redis`")
        );
        #[cfg(not(feature = "dynamodb"))]
        assert!(
            NamedStore::from_url("dynamodb://t")
                .unwrap_err()
                .to_string()
                .contains("needs the feature `dynamodb`")
        );
    }
}
