//! The store that the commands work on.

use std::{sync::Arc, time::Duration};

use clap::Args;
use lambda_idempotency::store::{
    NamedStore, Page, Store, StoreBuilder, dynamodb::DynamoDbStore, postgres::PostgresStore,
    redis::RedisStore,
};

use crate::{
    problem::{Problem, Result},
    words,
};

/// Longer timeouts than in a function: a person can wait, and the SDK may first fetch the credentials over the network.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(8);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(12);

/// The environment variables that name the store.
const VARIABLES: [&str; 2] = ["IDEMPOTENCY_TABLE", "IDEMPOTENCY_STORE"];

/// The environment variables that the SDK reads DynamoDB's endpoint from, in the order in which it tries them.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL"];

/// Names the store. A DynamoDB table's credentials, Region and endpoint come from the environment, as for any AWS
/// SDK: `AWS_PROFILE`, `AWS_REGION`, `AWS_ENDPOINT_URL_DYNAMODB` and the others.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The store")]
pub(crate) struct StoreArguments {
    /// The table's name or ARN. Default: the store that the environment variable IDEMPOTENCY_TABLE or
    /// IDEMPOTENCY_STORE names. The function reads the same variables.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,

    /// The store's URL, as in IDEMPOTENCY_STORE: dynamodb://TABLE, postgres://USER@HOST/DATABASE,
    /// redis://HOST:PORT, or rediss:// for TLS. Add the parameters of the function's URL, such as ?attributes=,
    /// ?sslrootcert= or ?prepared=. Give a password in IDEMPOTENCY_STORE instead: anyone who lists this
    /// machine's processes sees this option.
    #[arg(long, value_name = "URL", conflicts_with = "table")]
    store: Option<String>,

    /// DynamoDB's endpoint, such as http://localhost:8000. Default: the Region's.
    #[arg(long, value_name = "URL")]
    endpoint_url: Option<String>,

    /// The table's Region. Default: AWS_REGION, or the profile's.
    #[arg(long, value_name = "NAME")]
    region: Option<String>,

    /// The table's sort key, if it has one.
    #[arg(long, value_name = "ATTRIBUTE")]
    sort_key: Option<String>,

    /// The value of the partition key, if all records share one. Each record's id is then in the sort key.
    #[arg(long, value_name = "VALUE")]
    partition: Option<String>,

    /// The table's attribute names that differ from the defaults, such as id:pk,expires_at:ttl. The functions
    /// that use the table need the same names.
    #[arg(long, value_name = "ATTRIBUTE:NAME,…")]
    attributes: Option<String>,
}

/// An opened store, by its kind. Some commands support only some kinds.
#[derive(Debug)]
pub(crate) enum OpenStore {
    /// A DynamoDB table.
    DynamoDb(DynamoDbStore),
    /// A Redis or Valkey server or cluster.
    Redis(RedisStore),
    /// A PostgreSQL table.
    Postgres(PostgresStore),
}

impl OpenStore {
    /// Reads one page of the store's records, from the beginning or from an earlier page's end. A record may appear
    /// twice.
    ///
    /// # Errors
    ///
    /// If the store can't be reached, or rejects the request.
    pub(crate) async fn scan(&self, from: Option<String>) -> Result<Page> {
        let page = match self {
            Self::DynamoDb(store) => store.scan(from).await,
            Self::Redis(store) => store.scan(from).await,
            Self::Postgres(store) => store.scan(from).await,
        };
        page.map_err(|error| Problem::of(&error))
    }
}

impl StoreArguments {
    /// Opens the store. Opening sends no request.
    ///
    /// # Errors
    ///
    /// If no store is named, a table has no Region, or one of the options is malformed.
    pub(crate) async fn open(&self) -> Result<OpenStore> {
        match self.named()? {
            NamedStore::DynamoDb(builder) => self.open_table(builder).await.map(OpenStore::DynamoDb),
            NamedStore::Redis(builder) => {
                self.has_no_table_options()?;
                let builder = builder.attempt_timeout(ATTEMPT_TIMEOUT).operation_timeout(OPERATION_TIMEOUT);
                builder.build().map(OpenStore::Redis).map_err(|error| Problem::of(&error))
            }
            NamedStore::Postgres(builder) => {
                self.has_no_table_options()?;
                let builder = builder.connect_timeout(ATTEMPT_TIMEOUT).statement_timeout(ATTEMPT_TIMEOUT);
                builder.build().map(OpenStore::Postgres).map_err(|error| Problem::of(&error))
            }
            _ => Err(Problem::new(
                "the store is `memory:`, which another process can't read; give --table NAME or --store URL",
            )),
        }
    }

    /// Opens the store, for commands that work with every kind of store.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) async fn open_any(&self) -> Result<Arc<dyn Store>> {
        Ok(match self.open().await? {
            OpenStore::DynamoDb(store) => Arc::new(store),
            OpenStore::Redis(store) => Arc::new(store),
            OpenStore::Postgres(store) => Arc::new(store),
        })
    }

    /// Returns the arguments for a function whose description names the store at `url`. An option that names the store
    /// overrides the description.
    ///
    /// # Errors
    ///
    /// Fails if the environment's settings are malformed, or name another store: the record would seem to be missing
    /// there.
    pub(crate) fn for_described(&self, url: Option<&str>) -> Result<Self> {
        let is_named = self.table.is_some() || self.store.is_some();
        let Some(url) = url.filter(|_| !is_named) else { return Ok(self.clone()) };
        if !VARIABLES.into_iter().any(is_set) {
            return Ok(Self { store: Some(url.to_owned()), ..self.clone() });
        }
        self.named()?;
        let (here, described) = (self.url(), without_credentials(url));
        if self.is_same_place(&here, &described) {
            return Ok(self.clone());
        }
        Err(Problem::new(format!(
            "the environment names the store {here}, but the function's description names {described}; add --table NAME \
             or --store URL for the one to read"
        )))
    }

    /// Whether both URLs may name the same records. A description's URL lacks the settings that the function's code
    /// makes. It may also lack the Region and the endpoint, which then come from the function's environment. An option
    /// overrides the description.
    fn is_same_place(&self, here: &str, described: &str) -> bool {
        let base = |url: &str| url.split('?').next().unwrap_or_default().replace("…@", "");
        let is_left_open = |name: &str| self.has_option_for(name) || parameter(described, name).is_none();
        let is_same = |name: &str| parameter(described, name) == parameter(here, name);
        // `None` counts as equal: the AWS profile or a variable may set the same value.
        let is_unlike = |name: &str, own: Option<String>| own.is_some() && parameter(described, name) != own;
        base(here) == base(described)
            && ["sort_key", "partition", "attributes", "table", "prefix"]
                .into_iter()
                .all(|name| is_left_open(name) || is_same(name))
            && (is_left_open("region") || !is_unlike("region", self.region_in(here)))
            && (is_left_open("endpoint") || !is_unlike("endpoint", parameter(here, "endpoint")))
    }

    /// Whether the command line has the option that corresponds to this parameter of a URL.
    fn has_option_for(&self, parameter: &str) -> bool {
        let option = match parameter {
            "endpoint" => &self.endpoint_url,
            "region" => &self.region,
            "sort_key" => &self.sort_key,
            "partition" => &self.partition,
            "attributes" => &self.attributes,
            _ => return false,
        };
        option.is_some()
    }

    /// The Region of the table at `url`. `None` if the AWS profile determines it.
    fn region_in(&self, url: &str) -> Option<String> {
        let given = self.region.clone().or_else(|| parameter(url, "region"));
        given.or_else(|| ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(variable))
    }

    /// The store's URL, without credentials.
    fn url(&self) -> String {
        let of_table = |table: &String| format!("dynamodb://{table}");
        let given = self.table.as_ref().map(of_table);
        let given = given.or_else(|| self.store.as_deref().map(without_credentials));
        given.unwrap_or_else(|| {
            let [table, store] = VARIABLES.map(variable);
            store.as_deref().map(without_credentials).or(table.as_ref().map(of_table)).unwrap_or_default()
        })
    }

    /// The store's location, for a person who checks that it's the right one. It has no credentials.
    pub(crate) fn location(&self) -> String {
        let url = self.url();
        if !url.starts_with("dynamodb://") {
            return url;
        }
        let region = match self.region_in(&url) {
            Some(_) if self.region.is_none() && parameter(&url, "region").is_some() => String::new(),
            Some(region) => format!(", Region {region}"),
            None => ", the profile's Region".to_owned(),
        };
        let endpoint = match &self.endpoint_url {
            None if parameter(&url, "endpoint").is_some() => None,
            None => ENDPOINTS.into_iter().find_map(variable),
            given => given.clone(),
        };
        let endpoint = endpoint.map(|endpoint| format!(", endpoint {}", origin(&endpoint)));
        format!("{url}{region}{}", endpoint.unwrap_or_default())
    }

    fn named(&self) -> Result<NamedStore> {
        match (&self.table, &self.store) {
            (Some(table), _) => Ok(NamedStore::DynamoDb(DynamoDbStore::builder(table))),
            (None, Some(url)) => NamedStore::from_url(url).map_err(|error| Problem::of(&error)),
            (None, None) => NamedStore::from_env().map_err(|error| {
                Problem::new(format!("{}, or give --table NAME or --store URL", Problem::of(&error)))
            }),
        }
    }

    async fn open_table(&self, mut builder: StoreBuilder<DynamoDbStore>) -> Result<DynamoDbStore> {
        if let Some(endpoint_url) = &self.endpoint_url {
            builder = builder.endpoint_url(endpoint_url);
        }
        if let Some(region) = &self.region {
            builder = builder.region(region);
        }
        if let Some(sort_key) = &self.sort_key {
            builder = builder.sort_key(sort_key);
        }
        if let Some(partition) = &self.partition {
            builder = builder.partition(partition);
        }
        if let Some(attributes) = &self.attributes {
            builder = builder.attributes(attributes).map_err(|error| Problem::of(&error))?;
        }
        let builder = builder.attempt_timeout(ATTEMPT_TIMEOUT).operation_timeout(OPERATION_TIMEOUT);
        builder.build().await.map_err(|error| Problem::of(&error))
    }

    fn has_no_table_options(&self) -> Result<()> {
        match self.table_options().into_iter().find(|(_, value)| value.is_some()) {
            Some((option, _)) => Err(Problem::new(format!(
                "{option} is for a DynamoDB table, but the store isn't one: leave it out"
            ))),
            None => Ok(()),
        }
    }

    fn table_options(&self) -> [(&'static str, &Option<String>); 5] {
        [
            ("--endpoint-url", &self.endpoint_url),
            ("--region", &self.region),
            ("--sort-key", &self.sort_key),
            ("--partition", &self.partition),
            ("--attributes", &self.attributes),
        ]
    }

    /// The options that tell the AWS command line where the table is, if they were given.
    pub(crate) fn aws_options(&self) -> String {
        let options = [("--region", &self.region), ("--endpoint-url", &self.endpoint_url)];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        given.map(|(name, value)| format!(" {name} {}", words::quoted(value))).collect()
    }

    /// A command line of this tool for the same store, without a password.
    pub(crate) fn command_line(&self, words: &[&str]) -> String {
        let mut line = vec!["idempotency"];
        line.extend(words);
        let url = self.store.as_deref().map(without_credentials);
        for (option, value) in
            [("--table", &self.table), ("--store", &url)].into_iter().chain(self.table_options())
        {
            line.extend(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        words::command_line(line)
    }
}

/// Whether the variable is set, even to a malformed value. The library ignores empty variables.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The value of a parameter of `url`, as it's written there.
fn parameter(url: &str, name: &str) -> Option<String> {
    let (_, query) = url.split_once('?')?;
    let pair = query.split('&').find_map(|pair| pair.split_once('=').filter(|(given, _)| *given == name));
    pair.map(|(_, value)| value.to_owned())
}

/// The endpoint's scheme, host and port. Other parts may contain credentials, so `origin` leaves them out. In a
/// malformed endpoint, the host may be a part of the credentials, so `origin` leaves it out, too.
fn origin(endpoint: &str) -> String {
    let parts = endpoint.split_once("://").filter(|(scheme, _)| !scheme.contains(':'));
    let Some((scheme, rest)) = parts else { return "…".to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, other) = rest.split_at(end);
    if other.contains('@') {
        // The password may contain the `/`, `?` or `#`, unencoded, as in `http://u:se/cret@h`.
        return format!("{scheme}://…");
    }
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

/// Returns `url` without credentials: `…` replaces any user name and password before the query. If `url` isn't a store's
/// URL, returns only `…`.
fn without_credentials(url: &str) -> String {
    let Some(shown) = NamedStore::without_credentials(url) else { return "…".to_owned() };
    let has_user = url.split('?').next().is_some_and(|base| base.contains('@'));
    match shown.split_once("://") {
        Some((scheme, rest)) if has_user && rest != "…" => format!("{scheme}://…@{rest}"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments without any option.
    fn arguments() -> StoreArguments {
        StoreArguments {
            table: None,
            store: None,
            endpoint_url: None,
            region: None,
            sort_key: None,
            partition: None,
            attributes: None,
        }
    }

    #[test]
    fn described_store_is_compared_by_url() {
        for (here, described, is_same) in [
            ("dynamodb://prod", "dynamodb://prod", true),
            ("dynamodb://staging", "dynamodb://prod", false),
            ("dynamodb://prod?endpoint=http://h:1", "dynamodb://prod", true),
            ("dynamodb://prod", "dynamodb://prod?endpoint=http://h:1", true),
            ("dynamodb://prod?endpoint=http://h:1", "dynamodb://prod?endpoint=http://h:2", false),
            ("dynamodb://prod?region=eu-west-1", "dynamodb://prod?region=eu-west-1", true),
            ("dynamodb://prod?region=eu-west-1", "dynamodb://prod?region=us-east-1", false),
            ("dynamodb://prod", "dynamodb://prod?sort_key=sk", false),
            // The function's code may set these parameters, which its description then lacks.
            ("dynamodb://prod?sort_key=sk&attributes=id:pk", "dynamodb://prod", true),
            ("redis://h:1?prefix=a", "redis://h:1", true),
            ("redis://h:1?prefix=a", "redis://h:1?prefix=b", false),
            ("redis://…@h:1", "redis://h:1", true),
            ("postgres://…@db/o?sslrootcert=/a.pem&table=t", "postgres://db/o?table=t", true),
            ("postgres://…@db/o?table=t", "postgres://db/o?table=u", false),
        ] {
            assert_eq!(arguments().is_same_place(here, described), is_same, "{here} {described}");
        }
    }

    #[test]
    fn options_override_the_described_parameters() {
        let given = || Some("given".to_owned());
        for (parameter, options) in [
            ("endpoint", StoreArguments { endpoint_url: given(), ..arguments() }),
            ("region", StoreArguments { region: given(), ..arguments() }),
            ("sort_key", StoreArguments { sort_key: given(), ..arguments() }),
            ("partition", StoreArguments { partition: given(), ..arguments() }),
            ("attributes", StoreArguments { attributes: given(), ..arguments() }),
        ] {
            let (here, described) =
                (format!("dynamodb://t?{parameter}=a"), format!("dynamodb://t?{parameter}=b"));
            assert!(!arguments().is_same_place(&here, &described), "{parameter}");
            assert!(options.is_same_place(&here, &described), "{parameter}");
            assert!(options.is_same_place(&here, "dynamodb://t"), "{parameter}");
        }
    }

    #[test]
    fn location_shows_the_endpoint_without_credentials() {
        for (endpoint, shown) in [
            ("http://localhost:4566", "http://localhost:4566"),
            ("https://u:secret@h:1/path?key=secret", "https://h:1"),
            ("http://u:se/cret@h", "http://…"),
            ("http://h/?user=a@secret", "http://…"),
            ("u:secret@h", "…"),
        ] {
            let options = StoreArguments {
                store: Some("dynamodb://t?region=r&endpoint=http://other".to_owned()),
                endpoint_url: Some(endpoint.to_owned()),
                ..arguments()
            };
            let location = options.location();
            assert_eq!(location, format!("dynamodb://t?region=r&endpoint=http://other, endpoint {shown}"));
        }
    }

    #[test]
    fn printed_command_hides_the_password() {
        for (url, shown) in [
            ("redis://h:1/2", "redis://h:1/2"),
            ("redis://u:secret@h:1", "redis://…@h:1"),
            ("redis://u:sec@ret@h?prefix=a", "redis://…@h?prefix=a"),
            ("dynamodb://t", "dynamodb://t"),
            // Credentials in the query.
            ("postgres://db/orders?user=app&password=secret", "postgres://db/orders"),
            ("postgres://u:secret@db/o?p%61ssword=secret&table=t", "postgres://…@db/o?table=t"),
            ("postgres://db/o?passfile=secret&sslpassword=secret&%=secret", "postgres://db/o"),
            // An `@` in a parameter.
            (
                "dynamodb://app?sort_key=sk&partition=idem@prod",
                "dynamodb://app?sort_key=sk&partition=idem@prod",
            ),
            ("redis://cache?prefix=a@b", "redis://cache?prefix=a@b"),
            ("redis://:secret@cache?prefix=a@b", "redis://…@cache?prefix=a@b"),
            // A password that isn't encoded.
            ("postgres://user:se?cret@db/orders?sslmode=require", "postgres://…"),
            ("redis://:se?cret@cache:6379?prefix=a", "redis://…"),
            ("postgres://u:p@db/orders?table=a@b", "postgres://…"),
            ("postgres://db/orders?user=app@corp&password=secret", "postgres://…"),
            ("dynamodb://app?endpoint=http://u:secret@h:1&region=r", "dynamodb://app?endpoint=…&region=r"),
            ("postgres:user:secret@db", "…"),
            ("postgres:user:secret@db?sslrootcert=file:///x", "…"),
            ("host=db password=secret hostaddr=::1", "…"),
            ("memory:", "memory:"),
        ] {
            assert_eq!(without_credentials(url), shown, "{url}");
        }
    }
}
