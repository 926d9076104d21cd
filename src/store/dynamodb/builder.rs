//! Builds a [`DynamoDbStore`].

use std::{fmt, sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::{
        self, FrameworkMetadata, Region, SharedInterceptor, StalledStreamProtectionConfig,
        retry::{RetryConfig, RetryPartition, TokenBucket},
        timeout::TimeoutConfig,
    },
};

use futures_util::future::join;

use super::{
    DynamoDbStore, Inner,
    attempts::{AttemptObserver, shown},
    attributes::AttributeNames,
    codec,
    connections::Connections,
    environment::{check_endpoint, load},
    random::start_random,
    transaction::item_bytes,
};
use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    internal::GenerationExt as _,
    outcome::{Outcome, StoredResponse},
    record::{Generation, Mark, Owner, Record, State},
    settings::Execution,
    store::toolkit::{ATTEMPT_TIMEOUT, Configured},
    time::Timestamp,
};

/// The maximum size of a response in the record itself. With the other attributes, an item stays under
/// DynamoDB's 400 KB.
const MAX_INLINE_LIMIT: usize = 350 * 1024;
/// DynamoDB's limit for a partition key's value, in bytes ("Quotas and limits", DynamoDB developer guide).
const MAX_PARTITION: usize = 2048;
const DEFAULT_INLINE_LIMIT: usize = 32 * 1024;
/// Three attempts without an answer.
const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(3);
/// The SDK waits up to a second before its first retry, on average half a second. Each connection that died in
/// a frozen sandbox would cost this wait. DynamoDB answers within milliseconds, so a shorter backoff and more
/// attempts make better use of the operation's time. The eight attempts wait 1.3 s in total on average, and 2.6 s at
/// most.
const INITIAL_BACKOFF: Duration = Duration::from_millis(25);
/// The SDK's default is 20 s, longer than the whole operation.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
const MAX_ATTEMPTS: u32 = 8;
/// The SDK's quota for retries in this process. A retry after a timeout costs 10. Its default, 500, ends the retries of
/// 50 concurrent calls whose connections died in a freeze. This quota allows each message of the largest batch one such
/// retry. The number of attempts and the operation's timeout limit the retries anyway.
const RETRY_QUOTA: usize = 10 * 10_000;

/// Configures a [`DynamoDbStore`]. [`build`](Self::build) finishes it.
#[derive(Clone)]
#[must_use]
pub struct DynamoDbBuilder {
    table: String,
    client: Option<Client>,
    endpoint_url: Option<String>,
    region: Option<String>,
    sort_key: Option<String>,
    partition: Option<String>,
    attributes: AttributeNames,
    inline_limit: usize,
    attempt_timeout: Option<Duration>,
    operation_timeout: Option<Duration>,
}

impl Configured for DynamoDbStore {
    type Builder = DynamoDbBuilder;
}

impl DynamoDbBuilder {
    pub(super) fn new(table: String) -> Self {
        Self {
            table,
            client: None,
            endpoint_url: None,
            region: None,
            sort_key: None,
            partition: None,
            attributes: AttributeNames::default(),
            inline_limit: DEFAULT_INLINE_LIMIT,
            attempt_timeout: None,
            operation_timeout: None,
        }
    }

    /// Uses this client's configuration: Region, credentials, endpoint, and the retries and timeouts that the client
    /// sets. If the client has the SDK's default retries, the store replaces them by up to 8 attempts with a backoff
    /// from 25 ms. Without a client, `aws-config` loads everything from the environment, and an empty variable counts as
    /// unset.
    ///
    /// If the client has no HTTP client of its own, the store gives it one that doesn't reuse connections after a
    /// freeze. With an HTTP client of your own, set its idle timeout to 20 s or less: otherwise each connection that died
    /// in a freeze may cost an attempt. [`close_connections`](crate::store::Store::close_connections) can't close its
    /// connections, so one that's open in a SnapStart snapshot may cost an attempt too.
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Sends the requests to this endpoint, such as `http://localhost:8000` for DynamoDB Local.
    pub fn endpoint_url(mut self, endpoint_url: impl Into<String>) -> Self {
        self.endpoint_url = Some(endpoint_url.into());
        self
    }

    /// Uses the table in this Region.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Uses a table with a sort key of this name, of type S. Unless you set a [`partition`](Self::partition), the
    /// partition key is still the stored key, and the sort key's value in a record is `record`.
    pub fn sort_key(mut self, sort_key: impl Into<String>) -> Self {
        self.sort_key = Some(sort_key.into());
        self
    }

    /// Puts all records into one partition, so that other items can share the table.
    ///
    /// The partition key has this value in every record. The sort key, which [`sort_key`](Self::sort_key) names, holds
    /// the stored key. In single-table designs, a policy's `dynamodb:LeadingKeys` can then limit the function to this
    /// partition.
    ///
    /// DynamoDB limits one partition to 1,000 write units per second ("Best practices for partition keys", DynamoDB
    /// developer guide), which is about 500 operations. Without this setting, each record has its own partition key.
    pub fn partition(mut self, value: impl Into<String>) -> Self {
        self.partition = Some(value.into());
        self
    }

    /// Renames some of the item's attributes, for an existing table or your own naming style.
    ///
    /// `names` lists pairs of [an attribute](crate::store::dynamodb) and its new name, such as `id:pk,expires_at:ttl`.
    /// `?attributes=` in a URL and `--attributes` on the command line have the same form. Attributes that aren't listed
    /// keep their default names.
    ///
    /// Every function that uses the table needs the same names. A record that was written under other names counts as
    /// corrupt.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for an unknown attribute, or a pair without a name. [`build`](Self::build) checks the
    /// names.
    ///
    /// ```
    /// use lambda_idempotency::store::dynamodb::DynamoDbStore;
    ///
    /// let builder = DynamoDbStore::builder("payments").attributes("id:pk,expires_at:ttl")?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn attributes(mut self, names: impl AsRef<str>) -> Result<Self, Error> {
        self.attributes = names.as_ref().parse()?;
        Ok(self)
    }

    /// Stores a response of up to this many bytes, after encoding, in the record itself, and a larger one in
    /// chunks. Default 32 KiB, at most 350 KiB.
    ///
    /// A duplicate's write fails on the record's condition, and DynamoDB bills the failed write by the record's size.
    /// So a larger limit makes duplicates more expensive, and a smaller one makes more duplicates read chunks.
    pub fn inline_limit(mut self, bytes: usize) -> Self {
        self.inline_limit = bytes;
        self
    }

    /// Limits one attempt of a request. Default 1 s.
    pub fn attempt_timeout(mut self, attempt_timeout: Duration) -> Self {
        self.attempt_timeout = Some(attempt_timeout);
        self
    }

    /// Limits a request with all its attempts. Default 3 s.
    pub fn operation_timeout(mut self, operation_timeout: Duration) -> Self {
        self.operation_timeout = Some(operation_timeout);
        self
    }

    /// Builds the store, without a request to the table. Meanwhile, it starts the TLS library's random generator, which
    /// takes about 20 ms of processor time, once in a process. The first request would start it otherwise, inside the
    /// first invocation. Before a SnapStart snapshot, the generator isn't started, so that no two sandboxes share its
    /// state.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a setting that isn't valid, such as a timeout of zero, an inline limit over 350
    /// KiB, two attributes with one name (the sort key included), a partition without a sort key, or an endpoint without
    /// `http://` or `https://`. Also if there's no Region: neither the builder, nor the [`client`](Self::client) or the
    /// environment sets it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn build(self) -> Result<DynamoDbStore, Error> {
        join(start_random(), self.build_at_once()).await.1
    }

    /// Like [`build`](Self::build), but leaves the start of the random generator to the first request.
    pub(super) async fn build_at_once(self) -> Result<DynamoDbStore, Error> {
        self.check()?;
        let config = match &self.client {
            Some(client) => client.config().to_builder(),
            // Boxed, because it's large and runs once.
            None => Box::pin(load(self.region.as_deref(), self.endpoint_url.as_deref())).await?,
        };
        self.assemble(config)
    }

    /// Like [`build`](Self::build), with a given client. It isn't async, because it loads nothing from the environment.
    pub(super) fn build_with(self, client: &Client) -> Result<DynamoDbStore, Error> {
        self.check()?;
        self.assemble(client.config().to_builder())
    }
}

impl DynamoDbBuilder {
    fn check(&self) -> Result<(), Error> {
        check_table_name(&self.table)?;
        self.attributes.check(self.sort_key.as_deref())?;
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        match &self.partition {
            Some(_) if self.sort_key.is_none() => {
                return invalid(
                    "a partition is set, but no sort key, which would hold the stored key; set sort_key too"
                        .into(),
                );
            }
            Some(value) if !(1..=MAX_PARTITION).contains(&value.len()) => {
                return invalid(format!(
                    "the partition has {} bytes; give it 1 to {MAX_PARTITION}",
                    value.len()
                ));
            }
            Some(_) | None => {}
        }
        if self.inline_limit > MAX_INLINE_LIMIT {
            return invalid(format!(
                "the inline limit of {} bytes is over {MAX_INLINE_LIMIT}: DynamoDB limits items to 400 KB",
                self.inline_limit
            ));
        }
        for (what, timeout) in [("attempt", self.attempt_timeout), ("operation", self.operation_timeout)] {
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                return invalid(format!("the {what} timeout is zero, so every request would fail"));
            }
        }
        for (what, text) in [("endpoint URL", &self.endpoint_url), ("Region", &self.region)] {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return invalid(format!("the {what} is empty; give one, or leave it out"));
            }
        }
        self.endpoint_url.as_ref().map_or(Ok(()), |url| check_endpoint("the store's endpoint URL", url))
    }

    fn assemble(self, mut config: config::Builder) -> Result<DynamoDbStore, Error> {
        if let Some(region) = self.region {
            config = config.region(Region::new(region));
        }
        if let Some(endpoint_url) = self.endpoint_url {
            config = config.endpoint_url(endpoint_url);
        }
        // By default, the SDK has no timeout for an attempt or an operation, so a request that hangs would use up the
        // invocation's time. This code therefore sets both timeouts, even if the client disables them. The builder's
        // value comes first, then the client's, then the default.
        let before = config.clone().build();
        if before.region().is_none() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the DynamoDB client has no AWS Region; set AWS_REGION, or pass the Region to the client or to the store's builder",
            ));
        }
        let timeouts = before.timeout_config().map_or_else(TimeoutConfig::builder, TimeoutConfig::to_builder);
        let client_has = |get: fn(&TimeoutConfig) -> Option<Duration>| before.timeout_config().and_then(get);
        let attempt_timeout = self
            .attempt_timeout
            .or_else(|| client_has(TimeoutConfig::operation_attempt_timeout))
            .unwrap_or(ATTEMPT_TIMEOUT);
        let operation_timeout = self
            .operation_timeout
            .or_else(|| client_has(TimeoutConfig::operation_timeout))
            .unwrap_or(DEFAULT_OPERATION_TIMEOUT);
        let timeouts =
            timeouts.operation_attempt_timeout(attempt_timeout).operation_timeout(operation_timeout).build();
        // The timeouts end a stalled request, the body of its answer included. So the SDK needn't watch the stream, which
        // would take 2 % of a first run's instructions.
        let mut config = config
            .timeout_config(timeouts)
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        // Replace only the SDK's default retries. Keep those that a client, the environment or a profile sets.
        if before.retry_config().is_none_or(|retries| *retries == RetryConfig::standard()) {
            let retries = RetryConfig::standard().with_max_attempts(MAX_ATTEMPTS);
            config.set_retry_config(Some(
                retries.with_initial_backoff(INITIAL_BACKOFF).with_max_backoff(MAX_BACKOFF),
            ));
        }
        if before.retry_partition().is_none() {
            let quota =
                RetryPartition::custom("lambda-idempotency").token_bucket(TokenBucket::new(RETRY_QUOTA));
            config.set_retry_partition(Some(quota.build()));
        }
        let connections = before.http_client().is_none().then(Connections::default);
        if let Some(connections) = &connections {
            config = config.http_client(connections.clone());
        }
        // This name appears as `lib/lambda-idempotency/VERSION` in the `User-Agent`, which CloudTrail's data events
        // show. The SDK sends the same text again as `x-amz-user-agent`, which takes 177 bytes of a request and 2 % of a
        // first run's instructions. It stays: AWS doesn't document which of the two headers its services read.
        if let Ok(name) = FrameworkMetadata::new("lambda-idempotency", Some(env!("CARGO_PKG_VERSION"))) {
            config.push_framework_metadata(name);
        }
        // A permanent interceptor saves a configuration lookup at each of a request's nineteen hooks.
        config.push_interceptor(SharedInterceptor::permanent(AttemptObserver));
        let config = config.build();
        Ok(DynamoDbStore {
            inner: Arc::new(Inner {
                client: Client::from_conf(config),
                connections,
                table: self.table,
                has_sort_key: std::sync::atomic::AtomicBool::new(false),
                usual_bytes: usual_bytes(&self.attributes),
                attributes: self.attributes,
                sort_key: self.sort_key,
                partition: self.partition,
                inline_limit: self.inline_limit,
            }),
        })
    }
}

/// Hides the client's configuration, which may contain credentials. Of the endpoint, it shows only scheme, host and
/// port.
impl fmt::Debug for DynamoDbBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbBuilder")
            .field("table", &self.table)
            .field("endpoint_url", &self.endpoint_url.as_deref().map(shown))
            .field("region", &self.region)
            .field("sort_key", &self.sort_key)
            .field("partition", &self.partition)
            .field("attributes", &self.attributes)
            .field("inline_limit", &self.inline_limit)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("operation_timeout", &self.operation_timeout)
            .finish_non_exhaustive()
    }
}

/// Checks a table's name or its ARN ("TableName" of PutItem, DynamoDB API reference). This way, a name with a space in
/// it fails when the store is built, not at the first delivery.
fn check_table_name(table: &str) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    if table.is_empty() {
        return invalid("the table's name is empty; give the name of the DynamoDB table".into());
    }
    let is_arn = table.starts_with("arn:");
    let allowed = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') || (is_arn && matches!(c, ':' | '/'))
    };
    if let Some(c) = table.chars().find(|c| !allowed(*c)) {
        return invalid(format!(
            "the table's name {table:?} has the character {c:?}; DynamoDB allows ASCII letters, digits and - _ ."
        ));
    }
    let longest = if is_arn { 1024 } else { 255 };
    if table.len() < 3 || table.len() > longest {
        return invalid(format!(
            "the table's name has {} characters; DynamoDB allows 3 to {longest}",
            table.len()
        ));
    }
    Ok(())
}

/// Returns how many bytes DynamoDB counts for the item of a completed first run, besides its key and its response.
fn usual_bytes(names: &AttributeNames) -> usize {
    let now = Timestamp::from_millis(1_800_000_000_001);
    let record = Record {
        owner: Owner::from_bytes([0; 16]),
        generation: Generation::first(now),
        attempt: 1,
        fingerprint: Fingerprint::from_digest([0; 32]),
        lock_acquired_at: now,
        execution: Execution::AtLeastOnce,
        expires_at: Some(now),
        mark: Mark::None,
        // A UUID, as Lambda's request ids are.
        request_id: Some("00000000-0000-0000-0000-000000000000".into()),
        trace: None,
        state: State::Completed(Outcome::Retained(StoredResponse::new(bytes::Bytes::new()))),
    };
    let mut item = codec::Item::new();
    codec::put_record(&mut item, &record, names);
    item_bytes(&item)
}
