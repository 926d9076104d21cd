//! Builds a [`PostgresStore`].

use std::{error::Error as StdError, fmt, net::IpAddr, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, Pool};
use tokio_postgres::{
    Config,
    config::{ChannelBinding, Host, SslMode, TargetSessionAttrs},
};

use super::{
    Inner, PostgresStore,
    connections::Connections,
    limits::{Limits, Timeouts},
    place::Places,
    schema::TableName,
    source,
    statements::LockWait,
    tls::Tls,
};
use lambda_idempotency_core::{
    Error, ErrorKind,
    store::toolkit::{ATTEMPT_TIMEOUT, Configured, FromUrl, IDLE, decoded},
};

const DEFAULT_TABLE: &str = "idempotency";
/// A Lambda sandbox handles one request or one batch at a time. More connections would only burden the server,
/// which holds them for every sandbox.
const DEFAULT_CONNECTIONS: usize = 2;
/// Together with the statement timeout, this limits a call of the store to 2.5 s. The library retries failed calls
/// while the invocation has time.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// A store's own transactions hold a record's lock for a few milliseconds. Only a user's transaction holds it longer, and
/// then the operation is in progress.
const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_millis(250);

/// Configures a [`PostgresStore`]. [`build`](Self::build) finishes it.
#[derive(Clone)]
#[must_use]
pub struct PostgresBuilder {
    source: Source,
    table: Option<String>,
    root_certificates: Option<Vec<u8>>,
    password: Option<source::Password>,
    connections: usize,
    connect_timeout: Duration,
    statement_timeout: Duration,
    lock_timeout: Duration,
    check_after: Duration,
    timeouts: Option<Timeouts>,
    prepared: Option<bool>,
}

/// The source of the connections.
#[derive(Clone)]
enum Source {
    Url(String),
    Pool(Pool),
}

impl Configured for PostgresStore {
    type Builder = PostgresBuilder;
}

impl FromUrl for PostgresStore {
    fn from_url(_: &str, url: &str) -> Result<PostgresBuilder, Error> {
        Ok(Self::builder(url))
    }

    async fn open(builder: PostgresBuilder) -> Result<Self, Error> {
        builder.build()
    }

    /// Never: `Target::parse` refuses a URL with an `@` in its query.
    fn has_at_in_parameter(_: PostgresBuilder) -> bool {
        false
    }
}

impl PostgresBuilder {
    pub(super) fn of_url(url: String) -> Self {
        Self::new(Source::Url(url))
    }

    pub(super) fn of_pool(pool: Pool) -> Self {
        Self::new(Source::Pool(pool))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            table: None,
            root_certificates: None,
            password: None,
            connections: DEFAULT_CONNECTIONS,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            statement_timeout: ATTEMPT_TIMEOUT,
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            check_after: IDLE,
            timeouts: None,
            prepared: None,
        }
    }

    /// Uses this table: `TABLE` or `SCHEMA.TABLE`. Names are case-sensitive. Default `idempotency`.
    ///
    /// The store looks up the schema of a `TABLE` once, by the default `search_path` of its own user: the one that the
    /// role, the database or the server sets. A session's own path never counts, so another client of a pooler can't
    /// send the records to another schema's table. Neither does the path of the transaction that you pass to
    /// [`run_in`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run_in).
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Trusts these root certificates, in PEM, instead of the system's. Amazon RDS has its own, for example.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Asks this code for the password before each new connection, in place of the URL's password: for a token that expires,
    /// as of RDS's IAM authentication, or for a password that rotates, as in Secrets Manager.
    ///
    /// If the server refuses the password, the store asks once more, and connects again. So a password that changes at that
    /// moment fails no call, unless the code returns an old password again. Open connections stay open. The time for the code
    /// counts towards the [`connect_timeout`](Self::connect_timeout). An error's text becomes part of the store's error, so it
    /// mustn't contain a secret.
    ///
    /// ```
    /// use lambda_idempotency::store::postgres::PostgresStore;
    ///
    /// async fn current_password() -> Result<String, std::io::Error> {
    ///     std::fs::read_to_string("/run/secrets/database")
    /// }
    ///
    /// let store = PostgresStore::builder("postgres://app@db.internal/shop").password_from(current_password).build()?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn password_from<F, Fut, E>(mut self, password: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.password = Some(Arc::new(move || {
            let password = password();
            Box::pin(async move { password.await.map_err(Into::into) })
        }));
        self
    }

    /// Holds at most this many connections. Default 2.
    ///
    /// Each sandbox of the function holds this many, so by default a thousand sandboxes hold 2,000. The server accepts
    /// `max_connections` (100 by default) from all its clients together. Limit the function's concurrency to
    /// fit, or put a pooler in between.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Limits how long a call of the store may take to get a connection. This time includes waiting for a free
    /// connection, connecting, checking, and replacing a dead connection. Default 1.5 s.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Limits the time for a call's statement, including its preparation and its repetitions. Default 1 s.
    ///
    /// The server ends a statement after three quarters of this time, so that no statement continues after the store
    /// has stopped waiting for it. With [`timeouts_of_role`](Self::timeouts_of_role), you set the server's limit. A
    /// call of the store takes at most this time plus the connect timeout.
    ///
    /// If the [preparation](Self::prepared_statements) of a write takes more than a quarter of this time, the call
    /// fails, and the write isn't sent.
    pub fn statement_timeout(mut self, statement_timeout: Duration) -> Self {
        self.statement_timeout = statement_timeout;
        self
    }

    /// Limits how long a statement waits if another transaction has locked the record or the table. After this time,
    /// the statement fails with a conflict. Default 250 ms. The limit must be less than the statement timeout.
    pub fn lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// Checks that a connection is alive before a call uses it, if the server's last answer on it is at least this old.
    /// Default 10 s; zero checks every time. A connection that was idle for over 20 s is closed instead.
    pub fn check_after(mut self, check_after: Duration) -> Self {
        self.check_after = check_after;
        self
    }

    /// Sets the server's limits in a transaction around each statement, for any pooler in transaction mode.
    ///
    /// `BEGIN`, `SET LOCAL` and `COMMIT` travel in the statement's round trip. This is the default for your own pool.
    /// In a URL, it's `?timeouts=transaction`.
    ///
    /// The default for a URL is to set the limits as startup options, at no cost. But poolers reject or ignore startup
    /// options. The store reads the limits back on every new connection. If the server has no limits, the call fails
    /// with an error that says how to set them.
    pub fn timeouts_per_transaction(mut self) -> Self {
        self.timeouts = Some(Timeouts::Transaction);
        self
    }

    /// Sets no limits at the server, because you've set them there yourself.
    ///
    /// Set them for the role or the database (`ALTER ROLE … SET statement_timeout = '750ms'`, and
    /// `lock_timeout = '250ms'`), or as startup options of your own pool. The store refuses to work if one of them is
    /// longer than three quarters of its own [`statement_timeout`](Self::statement_timeout). This is for proxies such
    /// as Amazon RDS Proxy, which pins a session when a statement changes a setting. In a URL, it's `?timeouts=role`.
    pub fn timeouts_of_role(mut self) -> Self {
        self.timeouts = Some(Timeouts::Role);
        self
    }

    /// Prepares each statement once per connection. Use it only for direct connections to the server. Default: the
    /// value of `?prepared=` in the URL, or else `false`.
    ///
    /// This saves the server the planning; the [module's documentation](super#poolers) has measurements. Behind a
    /// pooler, the store refuses every call, because processes that share a session there would run each other's
    /// statements.
    pub fn prepared_statements(mut self, prepared: bool) -> Self {
        self.prepared = Some(prepared);
        self
    }

    /// Builds the store, without connecting. If the URL needs TLS, this method starts the TLS library's random generator
    /// on another thread: it takes about 20 ms of processor time, once in a process, which the first connection needs
    /// otherwise. Before a SnapStart snapshot, and outside of Tokio, the generator isn't started.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the URL or the table's name isn't valid, a timeout is under a millisecond, the number
    /// of connections is zero, the lock timeout isn't less than the statement timeout, the root certificates can't be
    /// read, or the store has your own pool and code for a password.
    pub fn build(self) -> Result<PostgresStore, Error> {
        self.check()?;
        let target = match &self.source {
            Source::Url(url) => Some(Target::parse(url)?),
            Source::Pool(_) => None,
        };
        let said = target.as_ref().map(|target| target.said.clone()).unwrap_or_default();
        let place = target.as_ref().map(Target::place).unwrap_or_default();
        let name = self.table.clone().or(said.table);
        let table = TableName::new(name.as_deref().unwrap_or(DEFAULT_TABLE))?;
        let default = if target.is_some() { Timeouts::Startup } else { Timeouts::Transaction };
        let timeouts = self.timeouts.or(said.timeouts).unwrap_or(default);
        let limits = Limits::new(timeouts, self.statement_timeout, self.lock_timeout);
        let pool = source::Pool::builder(self.source(target, limits)?).max_size(self.connections).build();
        let pool = pool.map_err(|error| {
            Error::new(ErrorKind::Invalid, "the connection pool can't be created").with_source(error)
        })?;
        let (wait, lock_timeout) = match timeouts {
            Timeouts::Role => (LockWait::OfSession, None),
            _ => (LockWait::OfStatement, Some(format!("{}ms", self.lock_timeout.as_millis()))),
        };
        Ok(PostgresStore {
            inner: Arc::new(Inner {
                connections: Connections::new(pool, self.check_after),
                places: Places::new(table.clone(), wait),
                table,
                connect_timeout: self.connect_timeout,
                statement_timeout: self.statement_timeout,
                limits,
                lock_timeout,
                prepared: self.prepared.or(said.prepared).unwrap_or(false),
                place,
            }),
        })
    }
}

impl PostgresBuilder {
    fn check(&self) -> Result<(), Error> {
        for (what, timeout) in [
            ("connection", self.connect_timeout),
            ("statement", self.statement_timeout),
            ("lock", self.lock_timeout),
        ] {
            if timeout.as_millis() == 0 {
                return invalid(format!(
                    "the {what} timeout is under a millisecond, so every request would fail"
                ));
            }
        }
        if self.lock_timeout >= self.statement_timeout {
            return invalid(
                "the lock timeout must be less than the statement timeout; otherwise it would never apply",
            );
        }
        if self.password.is_some() && matches!(self.source, Source::Pool(_)) {
            return invalid(
                "your pool makes its connections with its own password; leave out `password_from`, or give a URL",
            );
        }
        if self.connections == 0 {
            return invalid("the store has no connections; allow at least one");
        }
        Ok(())
    }

    /// Builds the source of the connections.
    fn source(&self, target: Option<Target>, limits: Limits) -> Result<source::Source, Error> {
        match (&self.source, target) {
            (Source::Pool(pool), _) => Ok(source::Source::Pool(pool.clone())),
            (Source::Url(_), Some(target)) => self.of_target(target, limits),
            (Source::Url(_), None) => invalid("the database URL hasn't been parsed"),
        }
    }

    fn of_target(&self, target: Target, limits: Limits) -> Result<source::Source, Error> {
        let pem = match (&self.root_certificates, &target.said.root_certificates) {
            (Some(pem), _) => Some(pem.clone()),
            (None, Some(file)) => Some(std::fs::read(file).map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("sslrootcert {file:?} can't be read"))
                    .with_source(error)
            })?),
            (None, None) => None,
        };
        let mut config = target.config;
        if limits.timeouts == Timeouts::Startup {
            config.options(limits.options(config.get_options()));
        }
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
        if config.get_connect_timeout().is_none() {
            // Split the time between the hosts, so that a silent one leaves time for the next.
            config.connect_timeout(self.connect_timeout / u32::try_from(hosts).unwrap_or(u32::MAX));
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(Tls::new(pem.as_deref())?),
        };
        Ok(match (&self.password, tls) {
            (Some(password), tls) => source::Source::Asking(Box::new(source::Asking {
                config,
                tls,
                password: Arc::clone(password),
            })),
            (None, None) => source::Source::Url(Box::new(Manager::new(config, tokio_postgres::NoTls))),
            (None, Some(tls)) => source::Source::Url(Box::new(Manager::new(config, tls))),
        })
    }
}

/// A parsed URL.
struct Target {
    config: Config,
    said: Said,
}

/// The URL parameters that this library parses itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    table: Option<String>,
    root_certificates: Option<String>,
    timeouts: Option<Timeouts>,
    prepared: Option<bool>,
}

impl Target {
    /// Parses `url`. An error shows no part of the URL except names of parameters: a password that isn't encoded may
    /// be anywhere in the URL.
    fn parse(url: &str) -> Result<Self, Error> {
        const SHAPE: &str = "postgres://USER:PASSWORD@HOST:PORT/DATABASE";
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return invalid(format!("the database URL doesn't begin with postgres://; write {SHAPE}"));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        // If the query has an `@`, the `?` most likely belongs to the password.
        if query.contains('@') {
            return invalid(format!(
                "the database URL has a `?` before an `@`; percent-encode all characters except letters and digits in \
                 each part of {SHAPE}"
            ));
        }
        let (mut said, mut mode, mut rest) = (Said::default(), None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "table" => said.table = Some(decoded(name, value)?),
                "sslrootcert" => said.root_certificates = Some(decoded(name, value)?),
                "timeouts" => said.timeouts = Some(timeouts(&decoded(name, value)?)?),
                "prepared" => said.prepared = Some(prepared(&decoded(name, value)?)?),
                "sslmode" => mode = Some(ssl_mode(&decoded(name, value)?)?),
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
                    "the database URL isn't of the form {SHAPE}, with all characters except letters and digits in \
                     each part percent-encoded{parameters}"
                ),
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return invalid(format!("the database URL has no host: {SHAPE}"));
        }
        config.ssl_mode(mode.unwrap_or_else(|| default_ssl_mode(&config)));
        if config.get_ssl_mode() == SslMode::Disable
            && config.get_channel_binding() == ChannelBinding::Require
        {
            return invalid(
                "the URL requires channel binding, which needs TLS: set sslmode=require, or leave out channel_binding",
            );
        }
        // The first of several hosts may be the standby, so try them until one accepts writes.
        let names_attributes = rest.iter().any(|pair| pair.starts_with("target_session_attrs="));
        if config.get_hosts().len() > 1 && !names_attributes {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("lambda-idempotency");
        }
        Ok(Self { config, said })
    }

    /// Returns the location of the database, for errors.
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

fn timeouts(value: &str) -> Result<Timeouts, Error> {
    Timeouts::parse(value).map_or_else(
        || invalid("the URL's `timeouts` has an unknown value; use startup, transaction or role"),
        Ok,
    )
}

fn prepared(value: &str) -> Result<bool, Error> {
    value.parse().or_else(|_| invalid("the URL's `prepared` has an unknown value; use true or false"))
}

/// Parses `sslmode`. Every mode with TLS verifies the server, so the stricter modes `verify-ca` and `verify-full` mean
/// the same as `require`.
fn ssl_mode(value: &str) -> Result<SslMode, Error> {
    match value {
        "disable" => Ok(SslMode::Disable),
        "prefer" => Ok(SslMode::Prefer),
        "require" | "verify-ca" | "verify-full" => Ok(SslMode::Require),
        _ => invalid("the URL's `sslmode` has an unknown value; use require, prefer or disable"),
    }
}

/// Requires TLS, unless all hosts are on the same machine as the client.
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

fn invalid<T>(message: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Hides the URL and the pool, which contain a password.
impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBuilder")
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("check_after", &self.check_after)
            .field("timeouts", &self.timeouts)
            .field("prepared", &self.prepared)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_configure_host_and_options() {
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
        let own = "table=s%2Emy%5ftable&sslrootcert=/a%20b.pem&timeouts=role&prepared=true";
        let target = Target::parse(&format!("postgres://a@h/d?{own}&sslmode=verify%2Dfull")).unwrap();
        let expected = Said {
            table: Some("s.my_table".to_owned()),
            root_certificates: Some("/a b.pem".to_owned()),
            timeouts: Some(Timeouts::Role),
            prepared: Some(true),
        };
        assert_eq!(target.said, expected);
        assert_eq!(Target::parse("postgres://a@h/d").unwrap().said, Said::default());
    }

    #[test]
    fn several_hosts_are_searched_for_the_primary() {
        for (url, expected) in [
            ("postgres://a@h/d", TargetSessionAttrs::Any),
            ("postgres://a@h,i/d", TargetSessionAttrs::ReadWrite),
            ("postgres://a@h,i/d?target_session_attrs=any", TargetSessionAttrs::Any),
            ("postgres://a@h/d?target_session_attrs=read-write", TargetSessionAttrs::ReadWrite),
        ] {
            assert_eq!(Target::parse(url).unwrap().config.get_target_session_attrs(), expected, "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_refused_without_the_password() {
        let build = |url: &str| PostgresStore::builder(url).build();
        for (url, says) in [
            ("mysql://u:secret@h/d", "begin"),
            ("postgres://u:secret@/d", "no host"),
            ("postgres://u:secret@h:nonsense/d", "form"),
            ("postgres://u:a?secret=b@h/d", "encode"),
            ("postgres://u:secret@h/d?colour=secret", "colour"),
            ("postgres://u:secret@h/d?sslmode=secret", "sslmode"),
            ("postgres://u:secret@h/d?sslrootcert=/no/such/file", "sslrootcert"),
            ("postgres://u:secret@h/d?sslrootcert=/secret%2", "`sslrootcert` has a `%` without"),
            ("postgres://u:secret@h/d?sslrootcert=%ff", "`sslrootcert` isn't UTF-8"),
            ("postgres://u:secret@h/d?table=t%zz", "`table` has a `%` without"),
            ("postgres://u:secret@h/d?table=t-t", "table"),
            ("postgres://u:secret@h/d?timeouts=secret", "startup, transaction or role"),
            ("postgres://u:secret@h/d?prepared=secret", "true or false"),
            ("postgres://u:secret@localhost/d?channel_binding=require", "sslmode=require"),
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
