//! [`Idempotency::from_env`]: the store as the environment names it.

use std::{env, sync::Arc};

#[cfg(feature = "dynamodb")]
use crate::store::dynamodb::{DynamoDbStore, DynamoDbStoreBuilder};
use crate::{
    engine::{Builder, Idempotency},
    error::{Error, ErrorKind},
    store::{Store, memory::MemoryStore},
};

/// Names the DynamoDB table.
const TABLE: &str = "IDEMPOTENCY_TABLE";
/// Names any store, by a URL.
const STORE: &str = "IDEMPOTENCY_STORE";

/// A store as the environment names it.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    DynamoDb { table: String, endpoint: Option<String>, region: Option<String>, sort_key: Option<String> },
    Memory,
}

impl Idempotency {
    /// An engine over the store that the environment names, with default settings:
    /// `IDEMPOTENCY_TABLE` is a DynamoDB table, or `IDEMPOTENCY_STORE` is a URL. The function's name is
    /// `AWS_LAMBDA_FUNCTION_NAME`.
    ///
    /// | `IDEMPOTENCY_STORE` | store |
    /// |---|---|
    /// | `dynamodb://TABLE` | that table; also `?endpoint=URL`, `&region=NAME`, `&sort_key=ATTRIBUTE` |
    /// | `memory:` | this process's memory: for a try on one machine only |
    ///
    /// Credentials, Region and endpoint come from the environment as for any AWS SDK. Call it once, when
    /// the function starts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if neither variable is set, both are, or one makes no sense. No request is
    /// sent: a table that is missing is found at its first use.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn from_env() -> Result<Self, Error> {
        Self::builder_from_env().await?.build()
    }

    /// A builder over the store that the environment names, for other settings than the default ones.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn builder_from_env() -> Result<Builder, Error> {
        let store = open(choice(variable(TABLE), variable(STORE))?).await?;
        Ok(Self::builder(store))
    }
}

#[cfg(feature = "dynamodb")]
impl DynamoDbStoreBuilder {
    /// A builder for the table that the environment names, as [`Idempotency::from_env`] takes it: for tools that
    /// look at a function's table.
    ///
    /// # Errors
    ///
    /// As [`Idempotency::from_env`]; and if the environment names a store that is no DynamoDB table.
    ///
    /// ```no_run
    /// # use lambda_idempotency::store::dynamodb::DynamoDbStoreBuilder;
    /// # async fn example() -> Result<(), lambda_idempotency::Error> {
    /// let store = DynamoDbStoreBuilder::from_env()?.build().await?;
    /// println!("{}", store.table());
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Self, Error> {
        match choice(variable(TABLE), variable(STORE))? {
            Choice::DynamoDb { table, endpoint, region, sort_key } => {
                Ok(table_builder(table, endpoint, region, sort_key))
            }
            Choice::Memory => Err(invalid(format!(
                "{STORE} is `memory:`, which another process cannot look into; set {TABLE} to a DynamoDB table"
            ))),
        }
    }
}

/// The variable's value, if it has one.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(feature = "dynamodb")]
fn table_builder(
    table: String,
    endpoint: Option<String>,
    region: Option<String>,
    sort_key: Option<String>,
) -> DynamoDbStoreBuilder {
    let mut builder = DynamoDbStore::builder(table);
    if let Some(endpoint) = endpoint {
        builder = builder.endpoint_url(endpoint);
    }
    if let Some(region) = region {
        builder = builder.region(region);
    }
    if let Some(sort_key) = sort_key {
        builder = builder.sort_key(sort_key);
    }
    builder
}

async fn open(choice: Choice) -> Result<Arc<dyn Store>, Error> {
    match choice {
        Choice::Memory => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "dynamodb")]
        Choice::DynamoDb { table, endpoint, region, sort_key } => {
            Ok(Arc::new(table_builder(table, endpoint, region, sort_key).build().await?))
        }
        #[cfg(not(feature = "dynamodb"))]
        Choice::DynamoDb { .. } => Err(invalid(
            "the environment names a DynamoDB table, but the feature `dynamodb` is off; switch it on",
        )),
    }
}

fn choice(table: Option<String>, store: Option<String>) -> Result<Choice, Error> {
    match (table, store) {
        (Some(table), None) => Ok(Choice::DynamoDb { table, endpoint: None, region: None, sort_key: None }),
        (None, Some(url)) => parse(&url),
        (None, None) => Err(invalid(format!(
            "no store is named: set {TABLE} to a DynamoDB table, or {STORE} to a URL such as dynamodb://TABLE"
        ))),
        (Some(_), Some(_)) => Err(invalid(format!("both {TABLE} and {STORE} are set; keep one"))),
    }
}

fn parse(url: &str) -> Result<Choice, Error> {
    if url == "memory:" {
        return Ok(Choice::Memory);
    }
    // The rest of an unknown URL may hold a password: only its scheme is shown.
    let Some(rest) = url.strip_prefix("dynamodb://") else {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        return Err(invalid(format!(
            "{STORE} has the scheme {scheme:?}, which is not known; use dynamodb://TABLE or memory:"
        )));
    };
    let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
    if table.is_empty() {
        return Err(invalid(format!("{STORE} names no table; use dynamodb://TABLE")));
    }
    let (mut endpoint, mut region, mut sort_key) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = match name {
            "endpoint" => &mut endpoint,
            "region" => &mut region,
            "sort_key" => &mut sort_key,
            _ => {
                return Err(invalid(format!(
                    "{STORE} has the parameter {name:?}, which is not known; there are endpoint, region and sort_key"
                )));
            }
        };
        if value.is_empty() {
            return Err(invalid(format!("{STORE} has the parameter {name} without a value")));
        }
        *slot = Some(value.to_owned());
    }
    Ok(Choice::DynamoDb { table: table.to_owned(), endpoint, region, sort_key })
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
    fn a_table_or_a_url_names_the_store() {
        let plain =
            Choice::DynamoDb { table: "payments".into(), endpoint: None, region: None, sort_key: None };
        assert_eq!(choice(some("payments"), None).unwrap(), plain);
        assert_eq!(choice(None, some("dynamodb://payments")).unwrap(), plain);
        assert_eq!(choice(None, some("memory:")).unwrap(), Choice::Memory);
        assert_eq!(
            choice(None, some("dynamodb://t?endpoint=http://127.0.0.1:8000&region=eu-west-1&sort_key=sk"))
                .unwrap(),
            Choice::DynamoDb {
                table: "t".into(),
                endpoint: some("http://127.0.0.1:8000"),
                region: some("eu-west-1"),
                sort_key: some("sk"),
            }
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (table, store, says) in [
            (None, None, "IDEMPOTENCY_TABLE"),
            (some("t"), some("memory:"), "both"),
            (None, some("dynamodb://"), "no table"),
            (None, some("dynamodb://t?colour=red"), "colour"),
            (None, some("dynamodb://t?region="), "region"),
            (None, some("mysql://user:secret@host/db"), "mysql"),
            (None, some("nonsense"), "scheme"),
        ] {
            let error = choice(table, store).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
