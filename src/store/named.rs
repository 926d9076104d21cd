//! [`NamedStore`]: the store that a URL or an environment variable names.

#[cfg(feature = "iam")]
mod iam;
mod shown;

use std::{env, sync::Arc};

#[allow(unused_imports, reason = "unused if the features of all stores are off")]
use crate::store::{StoreBuilder, toolkit::FromUrl};
use crate::{
    error::{Error, ErrorKind},
    internal::snapshot::INITIALIZATION,
    settings::Mode,
    store::{Store, memory::MemoryStore},
};

/// The environment variable that names the DynamoDB table.
const TABLE: &str = "IDEMPOTENCY_TABLE";
/// The environment variable that names any store, by its URL.
const STORE: &str = "IDEMPOTENCY_STORE";

/// What to do if the environment names no store.
pub(crate) const HOW_TO_NAME_A_STORE: &str =
    "set IDEMPOTENCY_TABLE to a DynamoDB table, or IDEMPOTENCY_STORE to a URL such as dynamodb://TABLE";

/// The URL of the store in memory.
const MEMORY: &str = "memory:";

/// Declares [`NamedStore`] from a table of stores. Each row has a variant, its store, the store's feature, an example
/// of the store's URL, and the schemes of such URLs.
macro_rules! stores {
    ($($(#[$doc:meta])* $name:ident($store:ty), $feature:literal, $example:literal, [$($scheme:literal),+];)+) => {
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
        #[allow(clippy::large_enum_variant, reason = "a process has one such value, and only during startup")]
        pub enum NamedStore {
            $($(#[$doc])* #[cfg(feature = $feature)] $name(StoreBuilder<$store>),)+
            /// A store in this process's memory.
            Memory,
        }

        impl NamedStore {
            /// Parses `url`. Errors refer to the URL as `what`.
            fn parse(what: &str, url: &str) -> Result<Self, Error> {
                #[cfg(feature = "iam")]
                #[allow(unused_variables, reason = "unused if the features of all stores are off")]
                let (url, sign_in) = iam::taken(what, url)?;
                #[cfg(feature = "iam")]
                let url = &*url;
                #[cfg(not(feature = "iam"))]
                refuse_iam(what, url)?;
                let (scheme, rest) = url.split_once(':').unwrap_or_default();
                match scheme {
                    "memory" if rest.is_empty() => Ok(Self::Memory),
                    $(
                        #[cfg(feature = $feature)]
                        $($scheme)|+ => {
                            let builder = <$store>::from_url(what, url)?;
                            #[cfg(feature = "iam")]
                            let builder = match sign_in {
                                Some(sign_in) => <$store as iam::SignedIn>::signed_in(builder, sign_in)?,
                                None => builder,
                            };
                            Ok(Self::$name(builder))
                        }
                        #[cfg(not(feature = $feature))]
                        $($scheme)|+ => Err(off(what, $feature)),
                    )+
                    // The rest of an unknown URL may contain a password, so only its scheme is shown.
                    _ => Err(invalid(format!(
                        concat!("{} has the unknown scheme {:?}; use ", $($example, ", ",)+ "or memory:"),
                        what, scheme
                    ))),
                }
            }

            async fn opened(self) -> Result<Arc<dyn Store>, Error> {
                match self {
                    // Boxed, since the future that builds a store's client is large.
                    $(
                        #[cfg(feature = $feature)]
                        Self::$name(builder) => Ok(Arc::new(Box::pin(<$store>::open(builder)).await?)),
                    )+
                    Self::Memory => Ok(Arc::new(MemoryStore::new())),
                }
            }

            /// Whether an `@` after the first `?` of the store's URL belongs to a parameter. If not, the `?` may be
            /// part of a password that isn't percent-encoded, as in `postgres://user:se?cret@db`.
            fn has_at_in_parameter(self) -> bool {
                match self {
                    $(#[cfg(feature = $feature)] Self::$name(builder) => <$store>::has_at_in_parameter(builder),)+
                    Self::Memory => false,
                }
            }
        }

        /// The schemes of each store's URLs.
        #[cfg(test)]
        const SCHEMES: &[&[&str]] = &[$(&[$($scheme),+]),+];
    };
}

stores! {
    /// A DynamoDB table.
    DynamoDb(crate::store::dynamodb::DynamoDbStore), "dynamodb", "dynamodb://TABLE", ["dynamodb"];
    /// A PostgreSQL table.
    Postgres(crate::store::postgres::PostgresStore), "postgres", "postgres://HOST/DATABASE", ["postgres", "postgresql"];
    /// A server or a cluster of Redis or Valkey.
    Redis(crate::store::redis::RedisStore), "redis", "redis://HOST:PORT", [
        "redis", "rediss", "redis-cluster", "rediss-cluster", "valkey", "valkeys", "valkey-cluster", "valkeys-cluster"
    ];
}

impl NamedStore {
    /// Returns the store that the environment names.
    ///
    /// The rules are those of [`Idempotency::from_env`](crate::Idempotency::from_env).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if neither `IDEMPOTENCY_TABLE` nor `IDEMPOTENCY_STORE` is set, both are, or one is
    /// malformed or names a store whose feature is disabled.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_env_in(Mode::Enforce)
    }

    /// Like [`from_env`](Self::from_env), but takes each variable's value from `variable` instead of the environment.
    /// It's for programs that also read settings from a file.
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
        choice_in(variable(INITIALIZATION).is_some(), variable(TABLE), variable(STORE))
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
            (_, (table, store)) => choice_in(variable(INITIALIZATION).is_some(), table, store),
        }
    }

    /// Returns the store that `url` names. [`Idempotency::from_env`](crate::Idempotency::from_env) lists the URLs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the URL is malformed, or names a store whose feature is disabled. No message
    /// contains a password.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        Self::parse("the store's URL", url)
    }

    /// Returns `url` without a user's name and password, to show it in a message or a log. `None` if `url` names no
    /// store, since any part of such a text may be a password. If the URL's `?` may be part of a password, as in
    /// `postgres://user:se?cret@db`, only the scheme is left.
    ///
    /// ```
    /// use lambda_idempotency::store::NamedStore;
    ///
    /// assert_eq!(NamedStore::without_credentials("memory:").as_deref(), Some("memory:"));
    /// assert_eq!(NamedStore::without_credentials("password=secret"), None);
    /// ```
    #[must_use]
    pub fn without_credentials(url: &str) -> Option<String> {
        shown::without_credentials(url)
    }

    /// Builds the store, without sending a request. Settings that the URL doesn't have get their defaults.
    ///
    /// # Errors
    ///
    /// The errors of the store's builder.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        self.opened().await
    }

    /// Like [`open`](Self::open), and starts what the first request would start otherwise.
    pub(crate) async fn open_for_function(self) -> Result<Arc<dyn Store>, Error> {
        #[cfg(feature = "dynamodb")]
        if let Self::DynamoDb(builder) = self {
            return Ok(Arc::new(Box::pin(builder.build()).await?));
        }
        self.opened().await
    }
}

#[cfg(feature = "dynamodb")]
impl crate::store::dynamodb::DynamoDbStore {
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

/// Starts the random generator of the stores' TLS library before the first handshake needs it.
pub(crate) async fn start_random() {
    #[cfg(feature = "dynamodb")]
    crate::store::dynamodb::start_random().await;
}

/// The URL of the store that the environment names, without a user's name and password.
#[cfg(all(feature = "admin", feature = "http"))]
pub(crate) fn url_in_environment() -> Option<String> {
    let table = || variable(TABLE).map(|table| format!("dynamodb://{table}"));
    variable(STORE).map(|url| NamedStore::without_credentials(&url).unwrap_or_default()).or_else(table)
}

/// Returns the variable's value; `None` if the variable is unset or empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Chooses the store that the variables name. Inside Lambda (`lambda`), refuses `memory:`.
fn choice_in(lambda: bool, table: Option<String>, store: Option<String>) -> Result<NamedStore, Error> {
    match choice(table, store)? {
        NamedStore::Memory if lambda => Err(invalid(format!(
            "{STORE} is `memory:`, which the sandboxes of a Lambda function don't share: a duplicate in another \
             sandbox runs again. Use a table or a server"
        ))),
        named => Ok(named),
    }
}

fn choice(table: Option<String>, store: Option<String>) -> Result<NamedStore, Error> {
    match (table, store) {
        #[cfg(feature = "dynamodb")]
        (Some(name), None) => Ok(NamedStore::DynamoDb(crate::store::dynamodb::DynamoDbStore::builder(name))),
        #[cfg(not(feature = "dynamodb"))]
        (Some(_), None) => Err(off(TABLE, "dynamodb")),
        (None, Some(url)) => NamedStore::parse(STORE, &url),
        (None, None) => Err(invalid(format!("no store is configured: {HOW_TO_NAME_A_STORE}"))),
        (Some(_), Some(_)) => Err(invalid(format!("both {TABLE} and {STORE} are set; keep one"))),
    }
}

/// Refuses a URL whose passwords come from IAM. The store would take `iam` for an unknown parameter.
#[cfg(not(feature = "iam"))]
fn refuse_iam(what: &str, url: &str) -> Result<(), Error> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    match query.split('&').any(|pair| pair.starts_with("iam=")) {
        true => Err(off(what, "iam")),
        false => Ok(()),
    }
}

#[allow(dead_code, reason = "unused if the features of all stores are on")]
fn off(what: &str, feature: &str) -> Error {
    invalid(format!("{what} names a store that needs the feature `{feature}`; enable the feature"))
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

    #[test]
    fn memory_is_refused_inside_lambda() {
        let memory = || Some("memory:".to_owned());
        assert!(choice_in(true, None, memory()).unwrap_err().to_string().contains("another sandbox"));
        assert!(matches!(choice_in(false, None, memory()), Ok(NamedStore::Memory)));
        assert!(choice_in(true, some("t"), None).is_ok());
    }

    fn variant(named: &NamedStore) -> String {
        let debug = format!("{named:?}");
        debug.split('(').next().unwrap_or_default().to_owned()
    }

    #[test]
    fn variables_name_the_store() {
        for (table, store, expected) in [
            (some("payments"), None, "DynamoDb"),
            (None, some("dynamodb://payments"), "DynamoDb"),
            (None, some(MEMORY), "Memory"),
        ] {
            let named = choice(table, store).unwrap();
            assert_eq!(variant(&named), expected);
        }
        for url in [
            "redis://h",
            "rediss://u:p@h:1/2",
            "redis-cluster://h",
            "rediss-cluster://h",
            "valkey://h",
            "valkeys://h",
            "valkey-cluster://h",
            "valkeys-cluster://h",
        ] {
            assert_eq!(variant(&choice(None, some(url)).unwrap()), "Redis", "{url}");
        }
        for url in ["postgres://u:p@h/db", "postgresql://h/db"] {
            assert_eq!(variant(&choice(None, some(url)).unwrap()), "Postgres", "{url}");
        }
    }

    /// The table of URLs is in the documentation of `from_env`.
    #[test]
    fn documentation_has_each_store() {
        let page = include_str!("../idempotency.rs");
        for schemes in SCHEMES {
            let row = format!("/// | `{}://", schemes[0]);
            assert!(page.contains(&row), "add a row that begins {row:?} to the table in src/idempotency.rs");
        }
    }

    #[test]
    fn errors_name_the_invalid_setting() {
        for (table, store, says) in [
            (None, None, "IDEMPOTENCY_TABLE"),
            (some("t"), some("memory:"), "both"),
            (None, some("mysql://user:secret@host/db"), "mysql"),
            (None, some("nonsense"), "scheme"),
            (None, some("memory:secret"), "scheme"),
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

    /// The command line and the environment both open the store of a URL this way, so the parameters work in both.
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
        assert!(off("the store's URL", "redis").to_string().contains("needs the feature `redis`"));
    }
}
