//! Parses a store's URL. No error and no `Debug` text shows a password.

use std::{fmt, sync::Arc};

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use lambda_idempotency_core::{Error, ErrorKind};

const DEFAULT_PORT: u16 = 6379;

/// A host, by name or number, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// Parses `host:port`. The host may be in brackets. An empty host and the host `?` stand for the host of `default`,
    /// and aren't valid without a `default`.
    pub(super) fn parse(text: &str, default: Option<&Self>) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host: Arc<str> = match (host, default) {
            ("" | "?", default) => Arc::clone(&default?.host),
            (host, _) => host.into(),
        };
        Some(Self { host, port: port.parse().ok().filter(|port| *port != 0)? })
    }
}

/// The user name and password for Redis.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

/// The parsed URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) address: Address,
    /// More nodes of the cluster.
    pub(super) nodes: Vec<Address>,
    pub(super) is_cluster: bool,
    pub(super) has_tls: bool,
    pub(super) credentials: Option<Credentials>,
    pub(super) database: u32,
    pub(super) key_prefix: Option<String>,
    /// A file of certificates to trust.
    pub(super) root_certificates: Option<String>,
    /// Whether the server may evict records.
    pub(super) accepts_eviction: bool,
}

impl Location {
    /// Parses `text`. An error says what's wrong with it, without any part that may be secret.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let url = Url::parse(text).map_err(|error| invalid(format!("isn't a valid URL: {error}")))?;
        let (is_cluster, has_tls) = match url.scheme() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (false, true),
            "redis-cluster" | "valkey-cluster" => (true, false),
            "rediss-cluster" | "valkeys-cluster" => (true, true),
            scheme => return Err(invalid(format!("has the unknown scheme {scheme:?}"))),
        };
        let host: Arc<str> = match url.host() {
            Some(Host::Ipv6(address)) => address.to_string().into(),
            Some(host) => decoded(&host.to_string(), "host")?.into(),
            None => return Err(invalid("has no host")),
        };
        let mut location = Self {
            address: Address { host, port: url.port().unwrap_or(DEFAULT_PORT) },
            nodes: Vec::new(),
            is_cluster,
            has_tls,
            credentials: credentials(&url)?,
            database: database(url.path())?,
            key_prefix: None,
            root_certificates: None,
            accepts_eviction: false,
        };
        // If a password has an unencoded `?`, the URL's parameters begin there. They then contain the rest of the
        // password, the `@` and the host.
        let may_be_password = text.split_once('?').is_some_and(|(_, rest)| rest.contains('@'));
        for (name, value) in url.query_pairs() {
            let known = location.set(&name, &value)?;
            if !known {
                return Err(unknown_parameter((!may_be_password).then_some(&*name)));
            }
        }
        // An unencoded `#` in a password begins a fragment.
        if url.fragment().is_some() {
            return Err(invalid("has a fragment; write %23 for a `#`"));
        }
        if location.is_cluster && location.database != 0 {
            return Err(invalid("names a database, but a cluster has only one; leave it out"));
        }
        if !location.is_cluster && !location.nodes.is_empty() {
            return Err(invalid("names nodes, which only a cluster has; add cluster=true"));
        }
        if location.root_certificates.is_some() && !has_tls {
            return Err(invalid("names certificates but doesn't use TLS; write rediss://"));
        }
        Ok(location)
    }

    /// Applies the URL's parameter `name`. Returns `false` if the store knows no parameter of this name.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        match name {
            "cluster" => match value {
                "true" => self.is_cluster = true,
                "false" if !self.is_cluster => {}
                _ => return Err(invalid("has the parameter cluster with a value other than true")),
            },
            "node" => {
                let node = Address::parse(value, None);
                self.nodes.push(node.ok_or_else(|| invalid("has a node that isn't HOST:PORT"))?);
            }
            "prefix" if value.is_empty() => return Err(invalid("has the parameter prefix without a value")),
            "prefix" => self.key_prefix = Some(value.to_owned()),
            "sslrootcert" if value.is_empty() => {
                return Err(invalid("has the parameter sslrootcert without a value"));
            }
            "sslrootcert" => self.root_certificates = Some(value.to_owned()),
            "eviction" if value == "accepted" => self.accepts_eviction = true,
            "eviction" => return Err(invalid("has the parameter eviction with a value other than accepted")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns the error for an unknown parameter. The caller gives no `name` if the name may be a part of the password.
fn unknown_parameter(name: Option<&str>) -> Error {
    let known = "use cluster, eviction, node, prefix or sslrootcert";
    match name {
        Some(name) => invalid(format!("has the unknown parameter {name:?}; {known}")),
        None => invalid(format!("has an unknown parameter; {known}, and encode a ? in the password as %3F")),
    }
}

fn credentials(url: &Url) -> Result<Option<Credentials>, Error> {
    let user = Some(decoded(url.username(), "user name")?).filter(|user| !user.is_empty());
    match url.password() {
        Some(password) => Ok(Some(Credentials { user, password: decoded(password, "password")? })),
        None if user.is_some() => Err(invalid("has a user name without a password")),
        None => Ok(None),
    }
}

fn database(path: &str) -> Result<u32, Error> {
    match path.trim_matches('/') {
        "" => Ok(0),
        number => number.parse().map_err(|_| invalid("has a path that isn't a database number")),
    }
}

fn decoded(text: &str, what: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| invalid(format!("has a {what} that isn't UTF-8")))
}

fn invalid(what: impl fmt::Display) -> Error {
    let example =
        "write redis://HOST:PORT, rediss:// for TLS, redis-cluster:// or rediss-cluster:// for a cluster";
    Error::new(ErrorKind::Invalid, format!("the URL of the Redis store {what}; {example}"))
}

/// Never shows the credentials.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.has_tls { "s" } else { "" };
        let cluster = if self.is_cluster { "-cluster" } else { "" };
        write!(f, "redis{tls}{cluster}://{}/{}", self.address, self.database)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parts_configure_the_store() {
        let plain = Location::parse("redis://localhost").unwrap();
        assert_eq!(plain.to_string(), "redis://localhost:6379/0");
        assert!(plain.credentials.is_none() && !plain.has_tls && !plain.is_cluster);

        let full = Location::parse("rediss://us%40er:p%3Aw@[::1]:7000/3?prefix=a%3A&sslrootcert=/a%20b.pem")
            .unwrap();
        assert_eq!(full.to_string(), "rediss://[::1]:7000/3");
        assert_eq!(full.key_prefix.as_deref(), Some("a:"));
        assert_eq!(full.root_certificates.as_deref(), Some("/a b.pem"));
        let credentials = full.credentials.unwrap();
        assert_eq!((credentials.user.as_deref(), &*credentials.password), (Some("us@er"), "p:w"));

        let cluster = Location::parse("rediss-cluster://:pw@a:1?node=b:2&node=[::1]:3").unwrap();
        assert_eq!(cluster.to_string(), "rediss-cluster://a:1/0");
        let nodes: Vec<_> = cluster.nodes.iter().map(ToString::to_string).collect();
        assert_eq!(nodes, ["b:2", "[::1]:3"]);
        assert_eq!(cluster.credentials.unwrap().user, None);
        assert!(Location::parse("redis://a?cluster=true").unwrap().is_cluster);
        assert!(!Location::parse("redis://a?cluster=false").unwrap().is_cluster);
        assert!(Location::parse("valkeys://a").unwrap().has_tls);
        assert!(Location::parse("redis://a?eviction=accepted").unwrap().accepts_eviction);
        assert!(!plain.accepts_eviction);
    }

    #[test]
    fn invalid_urls_are_refused_without_the_password() {
        for (text, says) in [
            ("", "valid URL"),
            ("redis://:secret@h:99999", "port"),
            ("redis://:secret@", "host"),
            ("http://:secret@h", "scheme"),
            ("redis://secret@h", "without a password"),
            ("redis://:secret@h/notes", "database"),
            ("redis://:secret@h?colour=red", "colour"),
            ("redis://app:?secret@h", "%3F"),
            ("redis://app:?secret=a@h", "%3F"),
            ("redis://app:?secret#a@h", "%3F"),
            ("redis://app:#secret@h", "%23"),
            ("redis://:secret@h?prefix=", "prefix"),
            ("rediss://:secret@h?sslrootcert=", "sslrootcert"),
            ("redis://:secret@h?sslrootcert=ca.pem", "write rediss://"),
            ("redis://:secret@h?cluster=maybe", "cluster"),
            ("redis://:secret@h?node=b:2", "only a cluster has"),
            ("redis://:secret@h?eviction=secret", "other than accepted"),
            ("redis-cluster://:secret@h?node=b", "HOST:PORT"),
            ("redis-cluster://:secret@h/2", "only one"),
            ("redis-cluster://:secret@h?cluster=false", "cluster"),
            ("redis://:%ff@h", "UTF-8"),
        ] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(says), "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let location = Location::parse("redis://user:secret@h").unwrap();
        assert!(!format!("{location:?} {:?}", location.credentials).contains("secret"));
    }

    #[test]
    fn nodes_without_host_use_the_queried_host() {
        let asked = Address { host: "asked".into(), port: 1 };
        assert_eq!(Address::parse(":7", Some(&asked)).unwrap().to_string(), "asked:7");
        assert_eq!(Address::parse("?:7", Some(&asked)).unwrap().to_string(), "asked:7");
        assert_eq!(Address::parse("b:7", Some(&asked)).unwrap().to_string(), "b:7");
        for wrong in ["", "b", ":7", "b:", "b:0", "b:70000"] {
            assert_eq!(Address::parse(wrong, None), None, "{wrong}");
        }
    }
}
