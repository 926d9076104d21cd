//! Maps failures to the store's errors. Each error says what happened, whether the write may have been applied
//! anyway, and how to fix the problem.
//!
//! A store's error never contains the text of Redis's error reply, because that text may repeat a command with all its
//! arguments. It contains at most the reply's code.

use std::{error::Error as StdError, fmt, io};

use redis::{ErrorKind, RedisError, ServerError};

use super::address::Address;
use lambda_idempotency_core::store::{StoreError, StoreErrorKind};

/// The category of a failure. It determines the message, the store error's kind, and whether the store retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The connection couldn't be made.
    NotReached,
    /// The server's identity couldn't be verified.
    NotTrusted,
    /// The request timed out.
    TimedOut,
    /// The connection was lost before the response arrived.
    Lost,
    /// The answer isn't valid Redis protocol.
    Unreadable,
    /// The script isn't loaded.
    NoScript,
    /// Another node of the cluster has the key: permanently (`MOVED`), or while the slot is being moved (`ASK`).
    Elsewhere { node: Address, permanent: bool },
    /// The server belongs to a cluster, but the store is configured for a single server.
    IsCluster,
    /// No node currently serves the key's slot.
    ClusterDown,
    /// The server is a replica.
    ReadOnly,
    /// The server's memory is full.
    OutOfMemory,
    /// The server is loading its data from disk.
    Loading,
    /// The replica has lost its primary.
    NoPrimary,
    /// The primary has too few replicas.
    TooFewReplicas,
    /// The server can't write to its disk.
    DiskFails,
    /// Another script is running.
    Busy,
    /// The server accepts no more connections.
    TooManyConnections,
    /// The user name or the password was rejected or is missing.
    NotAuthenticated,
    /// The user's code that returns the password failed.
    NoPassword,
    /// The user lacks a permission.
    NotPermitted,
    /// The user may not run these commands, which a later transition needs.
    Lacks(String),
    /// The server has this eviction policy, which removes live records.
    Evicts(&'static str),
    /// The value under the key isn't a hash.
    NoHash,
    /// The database doesn't exist.
    NoDatabase,
    /// The response to store is larger than the server accepts.
    TooLarge,
    /// The server rejects the request for another reason.
    Refused,
}

/// The class of each error code. Sources: redis.io on error replies, and the messages in the server's source code.
const CODES: &[(&str, Class)] = &[
    ("NOSCRIPT", Class::NoScript),
    ("CLUSTERDOWN", Class::ClusterDown),
    ("TRYAGAIN", Class::ClusterDown),
    ("READONLY", Class::ReadOnly),
    ("OOM", Class::OutOfMemory),
    ("LOADING", Class::Loading),
    ("MASTERDOWN", Class::NoPrimary),
    ("NOREPLICAS", Class::TooFewReplicas),
    ("MISCONF", Class::DiskFails),
    ("BUSY", Class::Busy),
    ("NOAUTH", Class::NotAuthenticated),
    ("WRONGPASS", Class::NotAuthenticated),
    ("NOPERM", Class::NotPermitted),
    ("WRONGTYPE", Class::NoHash),
];

/// A failure and the address where it happened.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) class: Class,
    at: Address,
    cause: Option<Cause>,
}

/// The part of an error that may be shown. It becomes the `source()` of the store's error.
#[derive(Debug)]
struct Cause(String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Cause {}

impl Fault {
    pub(super) fn new(class: Class, at: &Address) -> Self {
        Self { class, at: at.clone(), cause: None }
    }

    /// The failure of an attempt to connect.
    pub(super) fn of_connecting(error: &io::Error, at: &Address) -> Self {
        // rustls reports an untrusted server as an error of these kinds.
        let class = match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Class::NotTrusted,
            _ => Class::NotReached,
        };
        Self { cause: Some(Cause(error.to_string())), ..Self::new(class, at) }
    }

    /// The failure of the user's code that returns the password.
    pub(super) fn no_password(error: &dyn fmt::Display, at: &Address) -> Self {
        Self { cause: Some(Cause(error.to_string())), ..Self::new(Class::NoPassword, at) }
    }

    /// The failure of a request.
    pub(super) fn of_request(error: RedisError, at: &Address) -> Self {
        let (kind, text) = (error.kind(), error.to_string());
        match ServerError::try_from(error) {
            Ok(error) => Self::of_answer(&error, at),
            Err(_) if kind == ErrorKind::Parse => Self::new(Class::Unreadable, at),
            Err(_) => Self { cause: Some(Cause(text)), ..Self::new(Class::Lost, at) },
        }
    }

    /// The failure that Redis reports in an error reply.
    pub(super) fn of_answer(error: &ServerError, at: &Address) -> Self {
        let (code, details) = (error.code(), error.details().unwrap_or_default());
        let class = match code {
            "MOVED" | "ASK" => elsewhere(code, details, at),
            // The script's own errors.
            "LACKS" => Class::Lacks(commands(details)),
            "EVICTS" => Class::Evicts(policy(details)),
            // These replies begin with no specific code. Up to version 6, Redis wraps a script's error in such a reply.
            "ERR" => of_sentence(details),
            code if code.starts_with('@') => of_sentence(details),
            code => of_code(code),
        };
        let is_code = code.len() <= 32 && code.bytes().all(|byte| byte.is_ascii_uppercase());
        Self { cause: is_code.then(|| Cause(format!("Redis answered {code}"))), ..Self::new(class, at) }
    }

    /// Whether the failed request certainly changed nothing.
    pub(super) fn is_definite(&self) -> bool {
        match self.class {
            Class::NotReached
            | Class::NotTrusted
            | Class::NoScript
            | Class::Elsewhere { .. }
            | Class::IsCluster
            | Class::ClusterDown
            | Class::ReadOnly
            | Class::OutOfMemory
            | Class::Loading
            | Class::NoPrimary
            | Class::TooFewReplicas
            | Class::DiskFails
            | Class::Busy
            | Class::TooManyConnections
            | Class::NotAuthenticated
            | Class::NoPassword
            | Class::Lacks(_)
            | Class::Evicts(_)
            | Class::NoHash
            | Class::NoDatabase
            | Class::TooLarge => true,
            // If the user lacks permission for one of the script's commands, earlier commands may have run.
            Class::TimedOut | Class::Lost | Class::Unreadable | Class::NotPermitted | Class::Refused => false,
        }
    }

    /// Whether an immediate retry on a new connection may succeed.
    pub(super) fn may_pass_at_once(&self) -> bool {
        matches!(self.class, Class::TimedOut | Class::Lost | Class::ReadOnly)
    }

    /// Whether to close the connection: either its next answer may belong to another request or never arrive, or a
    /// retry needs a new connection.
    pub(super) fn ends_connection(&self) -> bool {
        // Redis closes the connection after it has rejected a value for its length.
        self.may_pass_at_once() || matches!(self.class, Class::Unreadable | Class::TooLarge)
    }

    const fn kind(&self) -> StoreErrorKind {
        match self.class {
            Class::NotReached
            | Class::TimedOut
            | Class::Lost
            | Class::Unreadable
            | Class::NoScript
            | Class::Elsewhere { .. }
            | Class::ClusterDown
            | Class::ReadOnly
            | Class::OutOfMemory
            | Class::Loading
            | Class::NoPrimary
            | Class::TooFewReplicas
            | Class::DiskFails
            | Class::Busy
            | Class::NoPassword
            | Class::TooManyConnections => StoreErrorKind::Unavailable,
            Class::NotTrusted
            | Class::IsCluster
            | Class::NotAuthenticated
            | Class::NotPermitted
            | Class::Lacks(_)
            | Class::Evicts(_)
            | Class::NoDatabase
            | Class::Refused => StoreErrorKind::Rejected,
            Class::NoHash => StoreErrorKind::Corrupt,
            Class::TooLarge => StoreErrorKind::Unstorable,
        }
    }

    /// Converts to the store's error. `maybe_applied` says whether any attempt may have been applied.
    pub(super) fn into_error(self, maybe_applied: bool) -> StoreError {
        let mut message = self.message();
        if let (StoreErrorKind::Rejected, Some(Cause(answer))) = (self.kind(), &self.cause) {
            message.push_str(&format!(" ({answer})"));
        }
        let error = StoreError::new(self.kind(), message).maybe_applied(maybe_applied);
        match self.cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }

    fn message(&self) -> String {
        let at = &self.at;
        match &self.class {
            Class::NotReached => {
                format!(
                    "Redis at {at} couldn't be reached; check that it runs, and check the address, the TLS setting \
                     and the network"
                )
            }
            Class::NotTrusted => format!(
                "Redis at {at} couldn't be trusted; check that it speaks TLS, that its certificate is for this host, \
                 and that its authority is trusted here (by SSL_CERT_FILE, sslrootcert or the store's builder)"
            ),
            Class::TimedOut => format!("Redis at {at} didn't answer in time"),
            Class::Lost => format!("the connection to Redis at {at} was lost before the response arrived"),
            Class::Unreadable => {
                format!("the server at {at} isn't Redis; check the address and the TLS setting")
            }
            Class::NoScript => format!("Redis at {at} lost the script that the store had just sent"),
            Class::Elsewhere { .. } => {
                format!("the nodes of the Redis cluster at {at} don't agree on which node has the record")
            }
            Class::IsCluster => format!(
                "Redis at {at} is a node of a cluster; write redis-cluster:// or rediss-cluster:// in the URL"
            ),
            Class::ClusterDown => {
                format!("the Redis cluster at {at} doesn't currently serve the record's slot")
            }
            Class::ReadOnly => format!(
                "Redis at {at} is a read-only replica; wait until a fail-over ends, or use the primary's address"
            ),
            Class::OutOfMemory => format!(
                "Redis at {at} has no memory left for new records; give it more memory, or shorten the retention"
            ),
            Class::Loading => format!("Redis at {at} has just started and is still loading its data"),
            Class::NoPrimary => format!("Redis at {at} is a replica that has lost its primary"),
            Class::TooFewReplicas => {
                format!(
                    "Redis at {at} has fewer replicas than it needs to accept writes (min-replicas-to-write)"
                )
            }
            Class::DiskFails => {
                format!("Redis at {at} refuses writes because it can't save its data; see its log")
            }
            Class::Busy => format!("Redis at {at} is busy with another script"),
            Class::TooManyConnections => {
                format!(
                    "Redis at {at} accepts no more connections; raise its maxclients, or limit the concurrency"
                )
            }
            Class::NotAuthenticated => format!(
                "Redis at {at} rejected the user name or password, or requires a password; check both in the URL"
            ),
            Class::NoPassword => {
                format!("the password for Redis at {at} is unknown, so nothing was sent; the cause says why")
            }
            Class::NotPermitted => format!(
                "Redis at {at} doesn't let this user run a command that the store needs; see the store's documentation \
                 for the list"
            ),
            Class::Lacks(commands) => format!(
                "Redis at {at} doesn't let this user run a command that the store needs later: {commands}; grant it, and \
                 see the store's documentation for the list"
            ),
            Class::Evicts(policy) => format!(
                "Redis at {at} has the eviction policy {policy}: when its memory is full, it removes live records, and \
                 their operations run again. Set maxmemory-policy to noeviction, or accept this with eviction=accepted in \
                 the URL"
            ),
            Class::NoHash => format!("a record in Redis at {at} can't be read: it isn't a hash"),
            Class::NoDatabase => format!("Redis at {at} has no database with the number in the URL"),
            Class::TooLarge => {
                format!(
                    "Redis at {at} refuses to store a response of this size; raise its limit (proto-max-bulk-len)"
                )
            }
            Class::Refused => {
                format!("Redis at {at} rejected the request; the store needs Redis 6 or later, or Valkey")
            }
        }
    }
}

/// The policies that evict records ("Key eviction", redis.io).
const EVICTING: [&str; 7] = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

/// The eviction policy at the beginning of `details`. An unknown policy isn't shown.
fn policy(details: &str) -> &'static str {
    let found = details.split_whitespace().next();
    EVICTING.into_iter().find(|known| Some(*known) == found).unwrap_or("of an unknown name")
}

/// The commands that `details` lists. Only names that the script may list are shown.
fn commands(details: &str) -> String {
    const NEEDED: [&str; 9] =
        ["evalsha", "eval", "exists", "hget", "hgetall", "hset", "hdel", "pexpireat", "persist"];
    let listed = |name: &&str| details.split([',', ' ']).any(|found| found == *name);
    NEEDED.into_iter().filter(listed).collect::<Vec<_>>().join(", ")
}

fn of_code(code: &str) -> Class {
    CODES.iter().find(|(known, _)| *known == code).map_or(Class::Refused, |(_, class)| class.clone())
}

/// Returns the class of an error text that doesn't begin with a code. The text may contain a code further on.
fn of_sentence(text: &str) -> Class {
    // A text that begins with `unknown` repeats the command's arguments, which may contain any of the phrases below.
    if text.starts_with("unknown") {
        return Class::Refused;
    }
    for (phrase, class) in [
        ("max number of clients", Class::TooManyConnections),
        ("user executing the script can't", Class::NotPermitted),
        ("invalid password", Class::NotAuthenticated),
        // Redis rejects a long command from a client that hasn't authenticated.
        ("unauthenticated", Class::NotAuthenticated),
        ("invalid bulk length", Class::TooLarge),
        // Upstash's messages.
        ("max request size exceeded", Class::TooLarge),
        ("max single record size exceeded", Class::TooLarge),
        ("AUTH", Class::NotAuthenticated),
        ("DB index", Class::NoDatabase),
        ("SELECT", Class::NoDatabase),
    ] {
        if text.contains(phrase) {
            return class;
        }
    }
    let words = text.split(|c: char| !c.is_ascii_uppercase());
    let mut classes = words.map(of_code);
    classes.find(|class| *class != Class::Refused).unwrap_or(Class::Refused)
}

/// Parses a redirection: `MOVED 3999 host:port`, or `ASK` in the same form.
fn elsewhere(code: &str, details: &str, asked: &Address) -> Class {
    let node = details.split_whitespace().nth(1).and_then(|node| Address::parse(node, Some(asked)));
    node.map_or(Class::Unreadable, |node| Class::Elsewhere { node, permanent: code == "MOVED" })
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn at() -> Address {
        Address { host: "h".into(), port: 1 }
    }

    fn answered(line: &str) -> Fault {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            redis::Value::ServerError(error) => Fault::of_answer(&error, &at()),
            value => panic!("{value:?}"),
        }
    }

    #[test]
    fn every_code_maps_to_kind_and_certainty() {
        use StoreErrorKind::{Corrupt, Rejected, Unavailable, Unstorable};
        for (line, kind, is_definite) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: ab, on @user_script:9.",
                Unavailable,
                true,
            ),
            ("READONLY You can't write against a read only replica.", Unavailable, true),
            ("LOADING Redis is loading the dataset in memory", Unavailable, true),
            ("MASTERDOWN Link with MASTER is down", Unavailable, true),
            ("CLUSTERDOWN Hash slot not served", Unavailable, true),
            ("BUSY Redis is busy running a script.", Unavailable, true),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, true),
            ("MISCONF Redis is configured to save RDB snapshots", Unavailable, true),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable, true),
            ("ERR max number of clients reached", Unavailable, true),
            ("NOAUTH Authentication required.", Rejected, true),
            ("WRONGPASS invalid username-password pair", Rejected, true),
            ("ERR invalid password", Rejected, true),
            ("ERR Protocol error: unauthenticated multibulk length", Rejected, true),
            ("ERR Protocol error: invalid bulk length", Unstorable, true),
            ("ERR max request size exceeded. Limit: 1048576 bytes", Unstorable, true),
            ("ERR max single record size exceeded", Unstorable, true),
            ("ERR Client sent AUTH, but no password is set", Rejected, true),
            ("NOPERM this user has no permissions to run the 'hset' command", Rejected, false),
            ("ERR The user executing the script can't run this command or subcommand", Rejected, false),
            ("ERR DB index is out of range", Rejected, true),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Corrupt, true),
            ("ERR unknown command 'EVALSHA'", Rejected, false),
            ("SOMETHING else", Rejected, false),
            (
                "ERR Error running script (call to f_ab): @user_script:9: -OOM command not allowed",
                Unavailable,
                true,
            ),
            ("ERR Error running script (call to f_ab): @user_script:9: WRONGTYPE Operation", Corrupt, true),
        ] {
            let fault = answered(line);
            assert_eq!((fault.kind(), fault.is_definite()), (kind, is_definite), "{line}");
        }
    }

    #[test]
    fn errors_keep_only_the_error_code() {
        for line in ["ERR unknown command, with args: 'secret'", "SECRET-secret x", "WRONGTYPE secret"] {
            let error = answered(line).into_error(false);
            let text = format!("{error} {error:?} {:?}", error.source().map(ToString::to_string));
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn error_source_names_the_error_code() {
        let cause = |fault: Fault| fault.into_error(false).source().map(ToString::to_string);
        let long = "X".repeat(33);
        for (line, expected) in [
            ("OOM command not allowed", Some("Redis answered OOM")),
            ("X".repeat(32).as_str(), Some(&*format!("Redis answered {}", "X".repeat(32)))),
            (&long, None),
            ("Oom", None),
        ] {
            assert_eq!(cause(answered(line)).as_deref(), expected, "{line}");
        }
        let lost = RedisError::from(io::Error::new(io::ErrorKind::ConnectionReset, "reset by peer"));
        let lost = Fault::of_request(lost, &at());
        assert_eq!(lost.class, Class::Lost);
        assert!(cause(lost).unwrap().contains("reset by peer"));
        // The error of a command in a script, as Redis 6 sends it.
        let in_script = answered("@user_script: 9: -OOM command not allowed");
        assert_eq!(in_script.class, Class::OutOfMemory);
    }

    #[test]
    fn only_some_errors_close_the_connection() {
        for (line, ends) in [
            ("OOM command not allowed", false),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", false),
            ("READONLY You can't write against a read only replica.", true),
            ("ERR max request size exceeded. Limit: 1048576 bytes", true),
        ] {
            assert_eq!(answered(line).ends_connection(), ends, "{line}");
        }
        assert!(Fault::new(Class::Lost, &at()).ends_connection());
        assert!(Fault::new(Class::Unreadable, &at()).ends_connection());
    }

    #[test]
    fn redirections_are_parsed() {
        let class = answered("MOVED 3999 127.0.0.1:6381").class;
        let node = Address { host: "127.0.0.1".into(), port: 6381 };
        assert_eq!(class, Class::Elsewhere { node, permanent: true });
        let node = Address { host: "h".into(), port: 6381 };
        assert_eq!(answered("ASK 3999 :6381").class, Class::Elsewhere { node, permanent: false });
        assert_eq!(answered("MOVED 3999").class, Class::Unreadable);
    }
}
