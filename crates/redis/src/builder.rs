//! Builds a [`RedisStore`].

use std::{fmt, sync::Arc, time::Duration};

use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::{
    Inner, RedisStore,
    address::{Address, Credentials, Location},
    cluster::Nodes,
    connection::{Connector, Password},
};
use lambda_idempotency_core::{
    Error, ErrorKind,
    store::toolkit::{ATTEMPT_TIMEOUT, Configured, FromUrl, start_random},
};

const DEFAULT_KEY_PREFIX: &str = "idempotency:";
/// Two attempts without an answer: the second one has a new connection.
const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Configures a [`RedisStore`]. [`build`](Self::build) finishes it.
#[derive(Clone)]
#[must_use]
pub struct RedisBuilder {
    url: String,
    nodes: Vec<String>,
    credentials: Option<Credentials>,
    password: Option<Password>,
    key_prefix: Option<String>,
    root_certificates: Option<Vec<u8>>,
    attempt_timeout: Duration,
    operation_timeout: Duration,
    accepts_eviction: bool,
}

impl Configured for RedisStore {
    type Builder = RedisBuilder;
}

impl FromUrl for RedisStore {
    fn from_url(_: &str, url: &str) -> Result<RedisBuilder, Error> {
        Ok(Self::builder(url))
    }

    async fn open(builder: RedisBuilder) -> Result<Self, Error> {
        builder.build()
    }

    fn has_at_in_parameter(builder: RedisBuilder) -> bool {
        builder.build().is_ok()
    }
}

impl RedisBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            nodes: Vec::new(),
            credentials: None,
            password: None,
            key_prefix: None,
            root_certificates: None,
            attempt_timeout: ATTEMPT_TIMEOUT,
            operation_timeout: DEFAULT_OPERATION_TIMEOUT,
            accepts_eviction: false,
        }
    }

    /// Also tries this node of the cluster, as `host:port`, if the URL's node can't be reached.
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.nodes.push(node.into());
        self
    }

    /// Authenticates with this user name and password instead of the URL's.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let user = Some(user.into()).filter(|user| !user.is_empty());
        self.credentials = Some(Credentials { user, password: password.into() });
        self.password = None;
        self
    }

    /// Authenticates with this user name, and asks this code for the password before each new connection: for a token that
    /// expires, as of the IAM authentication of ElastiCache and MemoryDB, or for a password that rotates.
    ///
    /// If the server refuses the password, the store asks once more, and authenticates again. So a password that changes at
    /// that moment fails no request, unless the code returns an old password again. Open connections stay open. The time for
    /// the code counts towards the [`attempt_timeout`](Self::attempt_timeout) for connecting. An error's text becomes part of
    /// the store's error, so it mustn't contain a secret.
    ///
    /// ```
    /// use lambda_idempotency::store::redis::RedisStore;
    ///
    /// async fn current_password() -> Result<String, std::io::Error> {
    ///     std::fs::read_to_string("/run/secrets/cache")
    /// }
    ///
    /// let store = RedisStore::builder("rediss://cache.internal").password_from("app", current_password).build()?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn password_from<F, Fut, E>(mut self, user: impl Into<String>, password: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self = self.credentials(user, String::new());
        self.password = Some(Arc::new(move || {
            let password = password();
            Box::pin(async move { password.await.map_err(Into::into) })
        }));
        self
    }

    /// Puts this prefix in front of every key. Default: the URL's prefix, or else `idempotency:`.
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(key_prefix.into());
        self
    }

    /// Trusts these certificate authorities, in PEM, instead of the machine's or those in the URL's `sslrootcert`.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Limits one attempt of a request. If the store has to connect first, the same limit applies to connecting, in
    /// addition. Default 1 s.
    pub fn attempt_timeout(mut self, attempt_timeout: Duration) -> Self {
        self.attempt_timeout = attempt_timeout;
        self
    }

    /// Limits a request with all its attempts and connections. Default 2 s.
    pub fn operation_timeout(mut self, operation_timeout: Duration) -> Self {
        self.operation_timeout = operation_timeout;
        self
    }

    /// Accepts a server that evicts records, as `?eviction=accepted` in the URL does. **When its memory is full, such a
    /// server removes live records, and their operations run again.** By default, the store refuses claims on a server
    /// whose eviction policy isn't `noeviction`.
    pub fn accept_eviction(mut self) -> Self {
        self.accepts_eviction = true;
        self
    }

    /// Builds the store, without a request or a connection. If the URL needs TLS, this method reads the
    /// machine's certificates, unless you gave some, and starts the TLS library's random generator on another thread: it
    /// takes about 20 ms of processor time, once in a process, which the first connection needs otherwise. Before a
    /// SnapStart snapshot, and outside of Tokio, the generator isn't started.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL or a node that isn't valid, a timeout of zero, an empty key prefix, a
    /// `sslrootcert` that can't be read, or if there's no certificate authority to trust. No message contains
    /// the password.
    pub fn build(self) -> Result<RedisStore, Error> {
        let location = Location::parse(&self.url)?;
        for (what, timeout) in [("attempt", self.attempt_timeout), ("operation", self.operation_timeout)] {
            if timeout.is_zero() {
                return Err(invalid(format!("the {what} timeout is zero, so every request would fail")));
            }
        }
        if !self.nodes.is_empty() && !location.is_cluster {
            return Err(invalid(
                "nodes are given, but the URL isn't for a cluster; write redis-cluster:// in the URL",
            ));
        }
        let key_prefix = self.key_prefix.or_else(|| location.key_prefix.clone());
        let key_prefix = key_prefix.unwrap_or_else(|| DEFAULT_KEY_PREFIX.to_owned());
        if key_prefix.is_empty() {
            return Err(invalid("the key prefix is empty; give one, or leave it out"));
        }
        let mut seeds = vec![location.address.clone()];
        seeds.extend(location.nodes.iter().cloned());
        for node in &self.nodes {
            let address = Address::parse(node, None);
            seeds.push(address.ok_or_else(|| invalid(format!("the node {node:?} isn't HOST:PORT")))?);
        }
        let pem = match (self.root_certificates, &location.root_certificates) {
            (None, Some(file)) => Some(std::fs::read(file).map_err(|error| {
                invalid(format!("sslrootcert {file:?} can't be read")).with_source(error)
            })?),
            (pem, _) => pem,
        };
        let connector = Connector {
            tls: if location.has_tls { Some(tls(pem.as_deref())?) } else { None },
            credentials: self.credentials.or_else(|| location.credentials.clone()),
            password: self.password,
            database: location.database,
            timeout: self.attempt_timeout,
        };
        Ok(RedisStore {
            inner: Arc::new(Inner {
                nodes: Nodes::new(seeds, location.is_cluster),
                accepts_eviction: self.accepts_eviction || location.accepts_eviction,
                has_warned: std::sync::atomic::AtomicBool::new(false),
                location,
                connector,
                key_prefix,
                operation_timeout: self.operation_timeout,
            }),
        })
    }
}

/// Builds the TLS configuration. It sets the crypto provider explicitly, because the process's default may be another
/// provider, or none.
fn tls(root_certificates: Option<&[u8]>) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    match root_certificates {
        Some(pem) => {
            let wrong = |error: &dyn fmt::Display| {
                invalid(format!("the root certificates aren't valid PEM: {error}"))
            };
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
        }
        // Unreadable certificates of the machine are skipped, so that the others are still trusted.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() {
        return Err(invalid(
            "no trusted certificate authority was found for TLS; set SSL_CERT_FILE, or give root certificates",
        ));
    }
    let provider = aws_lc_rs::default_provider();
    let random = provider.secure_random;
    drop(start_random(move || _ = random.fill(&mut [0; 1])));
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(format!("TLS can't be used here: {error}")))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Hides the credentials, and the URL, which may contain a password.
impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = Location::parse(&self.url);
        f.debug_struct("RedisBuilder")
            .field("location", &location.as_ref().ok())
            .field("nodes", &self.nodes)
            .field("key_prefix", &self.key_prefix)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("operation_timeout", &self.operation_timeout)
            .field("accepts_eviction", &self.accepts_eviction)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_user_is_the_default_user() {
        let user_of = |user: &str| {
            let builder = RedisStore::builder("redis://h").credentials(user, "secret");
            builder.credentials.unwrap().user
        };
        assert_eq!(user_of(""), None);
        assert_eq!(user_of("app").as_deref(), Some("app"));
    }
}
