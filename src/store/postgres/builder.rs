//! How a [`PostgresStore`] is made.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};

use super::{
    Inner, PostgresStore, connections::Connections, statements::Statements, table::TableName, tls::Tls,
};
use crate::error::{Error, ErrorKind};

const DEFAULT_TABLE: &str = "idempotency";
/// A sandbox of Lambda handles one request at a time, and a batch some: more connections would only be a burden to the
/// server, which has them times the number of sandboxes.
const DEFAULT_CONNECTIONS: usize = 2;
/// With the statement's, 2.5 s: no call takes longer. What more patience there is to be had, the protocol has, which
/// repeats calls that fail until the invocation's time is up.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
const DEFAULT_STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_millis(250);
const DEFAULT_CHECK_AFTER: Duration = Duration::from_secs(10);

/// Configures a [`PostgresStore`]; made by [`PostgresStore::builder`].
#[derive(Clone)]
#[must_use]
pub struct PostgresStoreBuilder {
    source: Source,
    table: Option<String>,
    root_certificates: Option<Vec<u8>>,
    connections: usize,
    connect_timeout: Duration,
    statement_timeout: Duration,
    lock_timeout: Duration,
    check_after: Duration,
    prepared: bool,
}

/// Where the connections come from.
#[derive(Clone)]
enum Source {
    Url(String),
    Pool(Pool),
}

impl PostgresStoreBuilder {
    pub(super) fn of_url(url: String) -> Self {
        Self::new(Source::Url(url))
    }

    /// Takes the connections of `pool`, and leaves their making to it: TLS, credentials, their number.
    ///
    /// An idle connection of it that may be dead is checked before it is used, and where one is, the other idle ones are
    /// closed too.
    pub fn of_pool(pool: Pool) -> Self {
        Self::new(Source::Pool(pool))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            table: None,
            root_certificates: None,
            connections: DEFAULT_CONNECTIONS,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            statement_timeout: DEFAULT_STATEMENT_TIMEOUT,
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            check_after: DEFAULT_CHECK_AFTER,
            prepared: true,
        }
    }

    /// Uses this table: `TABLE`, which the user's search path finds, or `SCHEMA.TABLE`. Capital letters count. Default
    /// `idempotency`.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Trusts these root certificates, in PEM, in place of the system's: of Amazon RDS, say, which has its own.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Holds at most so many connections. Default 2. A pool that was given stays as it is.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How long a call may take to get a connection: to wait for a free one, to make one, to check one, and to replace one
    /// that turns out to be dead. Default 1.5 s.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// How long a call's statement may take, with its preparation and its repetitions. Default 1 s.
    ///
    /// No call of the store takes longer than this and the connection's time-out together.
    pub fn statement_timeout(mut self, statement_timeout: Duration) -> Self {
        self.statement_timeout = statement_timeout;
        self
    }

    /// How long a statement waits for another transaction that has its record, before it is a conflict. Default 250 ms; it
    /// has to be less than the time that a statement may take.
    pub fn lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// Asks a connection that has not answered for so long whether it is alive, before it is used. Default 10 s; zero asks
    /// every time.
    pub fn check_after(mut self, check_after: Duration) -> Self {
        self.check_after = check_after;
        self
    }

    /// Whether statements are prepared, once a connection. Default yes. Switch it off behind a pooler that gives each
    /// transaction another session (PgBouncer below 1.21), or that a prepared statement keeps from doing so (Amazon RDS
    /// Proxy): then a statement is parsed every time, and still takes one round trip.
    pub fn prepared_statements(mut self, prepared: bool) -> Self {
        self.prepared = prepared;
        self
    }

    /// Builds the store. No connection is made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL or a table name that makes no sense, a time-out or a number of connections of
    /// zero, and root certificates that cannot be read.
    pub fn build(self) -> Result<PostgresStore, Error> {
        self.check()?;
        let (pool, place, table_in_url) = match &self.source {
            Source::Pool(pool) => (pool.clone(), String::new(), None),
            Source::Url(url) => {
                let target = Target::parse(url)?;
                let (place, table) = (target.place(), target.table.clone());
                (self.pool(target)?, place, table)
            }
        };
        let name = self.table.or(table_in_url);
        let table = TableName::new(name.as_deref().unwrap_or(DEFAULT_TABLE))?;
        Ok(PostgresStore {
            inner: Arc::new(Inner {
                connections: Connections::new(pool, self.check_after),
                statements: Statements::new(&table),
                table,
                connect_timeout: self.connect_timeout,
                statement_timeout: self.statement_timeout,
                lock_timeout: format!("{}ms", self.lock_timeout.as_millis()),
                prepared: self.prepared,
                place,
            }),
        })
    }

    fn check(&self) -> Result<(), Error> {
        for (what, timeout) in [
            ("connection", self.connect_timeout),
            ("statement", self.statement_timeout),
            ("lock", self.lock_timeout),
        ] {
            if timeout.as_millis() == 0 {
                return invalid(format!("the {what} time-out is under a millisecond; nothing could succeed"));
            }
        }
        if self.lock_timeout >= self.statement_timeout {
            return invalid("the lock time-out is not less than the statement's; a wait would never be told");
        }
        if self.connections == 0 {
            return invalid("a store without a connection can do nothing; allow one");
        }
        Ok(())
    }

    fn pool(&self, target: Target) -> Result<Pool, Error> {
        let pem = match (&self.root_certificates, &target.root_certificates) {
            (Some(pem), _) => Some(pem.clone()),
            (None, Some(file)) => Some(std::fs::read(file).map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("sslrootcert {file:?} cannot be read"))
                    .with_source(error)
            })?),
            (None, None) => None,
        };
        let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = if target.config.get_ssl_mode() == SslMode::Disable {
            Manager::from_config(target.config, tokio_postgres::NoTls, how)
        } else {
            Manager::from_config(target.config, Tls::new(pem.as_deref())?, how)
        };
        let pool = Pool::builder(manager).max_size(self.connections).build();
        pool.map_err(|error| {
            Error::new(ErrorKind::Invalid, "the pool of connections cannot be made").with_source(error)
        })
    }
}

/// What a URL says.
struct Target {
    config: Config,
    table: Option<String>,
    root_certificates: Option<String>,
}

impl Target {
    /// Reads `url`. No error shows any part of it but a parameter's name: a URL holds a password, and one that is not
    /// encoded may be anywhere in it.
    fn parse(url: &str) -> Result<Self, Error> {
        const SHAPE: &str = "postgres://USER:PASSWORD@HOST:PORT/DATABASE";
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return invalid(format!("the URL of the database does not begin as {SHAPE}"));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        // Most likely the password's, and the query a part of it.
        if query.contains('@') {
            return invalid(format!(
                "the URL of the database has a `?` before an `@`; percent-encode what is not of letters and digits: {SHAPE}"
            ));
        }
        let (mut table, mut root_certificates, mut mode, mut rest) = (None, None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "table" => table = Some(value.to_owned()),
                "sslrootcert" => root_certificates = Some(decoded(value)?),
                "sslmode" => mode = Some(ssl_mode(value)?),
                _ => rest.push(pair),
            }
        }
        let known = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
        let mut config: Config = known.parse().map_err(|_| {
            let names: Vec<_> = rest.iter().map(|pair| pair.split('=').next().unwrap_or_default()).collect();
            let parameters = if names.is_empty() {
                String::new()
            } else {
                format!("; check its parameters ({}) too", names.join(", "))
            };
            Error::new(
                ErrorKind::Invalid,
                format!(
                    "the URL of the database is not of the form {SHAPE}, with what is not of letters and digits \
                     percent-encoded{parameters}"
                ),
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return invalid(format!("the URL of the database names no host: {SHAPE}"));
        }
        config.ssl_mode(mode.unwrap_or_else(|| default_ssl_mode(&config)));
        if config.get_application_name().is_none() {
            config.application_name("lambda-idempotency");
        }
        Ok(Self { config, table, root_certificates })
    }

    /// Where the database is, for errors.
    fn place(&self) -> String {
        let mut hosts: Vec<String> = Vec::new();
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            let ports = self.config.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            hosts.push(match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            });
        }
        if hosts.is_empty() {
            hosts.extend(self.config.get_hostaddrs().iter().map(IpAddr::to_string));
        }
        let database = self.config.get_dbname().map(|name| format!(" in database `{name}`"));
        format!("{} at {}", database.unwrap_or_default(), hosts.join(", "))
    }
}

/// The server is verified in each of the modes that have TLS, so that the stricter ones of other clients are the same.
fn ssl_mode(value: &str) -> Result<SslMode, Error> {
    match value {
        "disable" => Ok(SslMode::Disable),
        "prefer" => Ok(SslMode::Prefer),
        "require" | "verify-ca" | "verify-full" => Ok(SslMode::Require),
        _ => invalid("the URL's sslmode is not known; use require, prefer or disable"),
    }
}

/// TLS, unless nobody is in between.
fn default_ssl_mode(config: &Config) -> SslMode {
    let is_local = |host: &Host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    };
    let addresses = config.get_hostaddrs();
    let all_local = config.get_hosts().iter().all(is_local) && addresses.iter().all(IpAddr::is_loopback);
    if all_local { SslMode::Disable } else { SslMode::Require }
}

/// A percent-encoded value.
fn decoded(value: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let decoded = if byte == b'%' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (high, low) = (digit(rest.next()), digit(rest.next()));
            high.zip(low).and_then(|(high, low)| u8::try_from(high << 4 | low).ok())
        } else {
            Some(byte)
        };
        bytes.extend(decoded);
    }
    String::from_utf8(bytes).or_else(|_| invalid("the URL's sslrootcert is not UTF-8"))
}

fn invalid<T>(message: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, message))
}

/// A URL and a pool have a password in them, and are left out.
impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder")
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("check_after", &self.check_after)
            .field("prepared", &self.prepared)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_how() {
        for (url, place, mode) in [
            ("postgres://app@db.internal/shop", " in database `shop` at db.internal:5432", SslMode::Require),
            ("postgresql://a:b@h:1,i:2/d?sslmode=disable", " in database `d` at h:1, i:2", SslMode::Disable),
            ("postgres://a@127.0.0.1:6/d", " in database `d` at 127.0.0.1:6", SslMode::Disable),
            (
                "postgres://a@localhost/d?sslmode=verify-full",
                " in database `d` at localhost:5432",
                SslMode::Require,
            ),
            (
                "postgres:///d?host=/var/run/postgresql&user=a",
                " in database `d` at /var/run/postgresql",
                SslMode::Disable,
            ),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.place().as_str(), target.config.get_ssl_mode()), (place, mode));
        }
        let target = Target::parse("postgres://a@h/d?table=s.t&sslrootcert=/a%20b.pem").unwrap();
        assert_eq!(
            (target.table.as_deref(), target.root_certificates.as_deref()),
            (Some("s.t"), Some("/a b.pem"))
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_showing_the_password() {
        let build = |url: &str| PostgresStore::builder(url).build();
        for (url, says) in [
            ("mysql://u:secret@h/d", "begin"),
            ("postgres://u:secret@/d", "no host"),
            ("postgres://u:secret@h:nonsense/d", "form"),
            ("postgres://u:a?secret=b@h/d", "encode"),
            ("postgres://u:secret@h/d?colour=secret", "colour"),
            ("postgres://u:secret@h/d?sslmode=secret", "sslmode"),
            ("postgres://u:secret@h/d?sslrootcert=/no/such/file", "sslrootcert"),
            ("postgres://u:secret@h/d?table=t-t", "table"),
        ] {
            let error = build(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("cret"), "{url}: {error:?}");
        }
        let builder = || PostgresStore::builder("postgres://u:secret@127.0.0.1/d");
        assert!(!format!("{:?} {:?}", builder(), builder().build().unwrap()).contains("secret"));
        for wrong in [
            builder().connections(0),
            builder().connect_timeout(Duration::ZERO),
            builder().statement_timeout(Duration::ZERO),
            builder().lock_timeout(Duration::from_micros(1)),
            builder().lock_timeout(Duration::from_secs(2)),
            builder().table(""),
        ] {
            assert_eq!(wrong.build().unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
