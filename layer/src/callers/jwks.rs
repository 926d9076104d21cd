//! The public keys of a token's issuer: from a file in the function's package, or from a URL.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header, uri::Authority};
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use lambda_idempotency::time::{Clock as _, Timestamp, system_clock};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::ServerName},
};

use super::Unnamed;
use crate::upstream::{AnyBody, BoxError, empty};

/// The longest time for fetching the keys, over a connection to another provider. Half of the time to the deadline, if
/// that's less.
const LONGEST_FETCH: Duration = Duration::from_secs(3);
/// The largest JWKS, in bytes.
const LARGEST: usize = 512 * 1024;
/// After this time, the keys are fetched again, since the issuer may have revoked one.
const FRESH: Duration = Duration::from_secs(60 * 60);
/// How long keys are used if the issuer can't be reached any more: an issuer's outage is shorter.
const USABLE: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest time between two fetches, since anybody can send a token with an unknown key.
const PAUSE: Duration = Duration::from_secs(30);
/// The shortest time between a failed fetch and the next, while no key is known.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// One key of an issuer.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    pub(super) key: DecodingKey,
    /// The algorithms that the key is for.
    pub(super) algorithms: Vec<Algorithm>,
}

/// The keys of an issuer.
#[derive(Debug)]
pub(super) struct KeySet(Vec<Key>);

/// The keys of an issuer, or where to find them.
#[derive(Debug)]
pub(crate) enum Keys {
    /// The keys of a file.
    #[allow(private_interfaces, reason = "only this module makes and reads it")]
    File(Arc<KeySet>),
    /// The keys behind a URL.
    #[allow(private_interfaces, reason = "only this module makes and reads it")]
    Fetched(Box<Fetched>),
}

/// The address of a JWKS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    authority: Authority,
    path: String,
    is_tls: bool,
}

#[derive(Debug)]
pub(super) struct Fetched {
    location: Location,
    known: Mutex<Known>,
    /// One fetch at a time.
    fetching: tokio::sync::Mutex<()>,
    tls: OnceLock<Option<TlsConfig>>,
}

type TlsConfig = Arc<ClientConfig>;

#[derive(Clone, Debug, Default)]
struct Known {
    keys: Option<Arc<KeySet>>,
    fetched: Timestamp,
    tried: Option<Timestamp>,
    has_failed: bool,
}

impl Key {
    /// Reads one entry of a JWKS. `None` if it isn't a public key for signatures of a kind that the layer knows.
    fn of(entry: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(entry).ok()?;
        let is_other_use =
            jwk.common.public_key_use.as_ref().is_some_and(|of| *of != PublicKeyUse::Signature);
        let operations = jwk.common.key_operations.as_ref();
        if is_other_use || operations.is_some_and(|all| !all.contains(&KeyOperations::Verify)) {
            return None;
        }
        let possible: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &[
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                &[Algorithm::EdDSA]
            }
            _ => return None,
        };
        let algorithms = match &jwk.common.key_algorithm {
            None => possible.to_vec(),
            Some(named) => {
                let is_named = |algorithm: &&Algorithm| format!("{algorithm:?}") == named.to_string();
                possible.iter().filter(is_named).copied().collect()
            }
        };
        if algorithms.is_empty() {
            return None;
        }
        Some(Self { id: jwk.common.key_id.clone(), key: DecodingKey::from_jwk(&jwk).ok()?, algorithms })
    }
}

impl KeySet {
    /// Reads a JWKS.
    ///
    /// # Errors
    ///
    /// If it isn't one, or has no key that the layer can use.
    fn parse(json: &[u8]) -> Result<Arc<Self>, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let Set { keys } = serde_json::from_slice(json)
            .map_err(|_| "it isn't a JWKS, a JSON object with a list `keys`".to_owned())?;
        let keys: Vec<_> = keys.into_iter().filter_map(Key::of).collect();
        match keys.is_empty() {
            true => Err("it has no public key for RS256, PS256, ES256 or EdDSA".to_owned()),
            false => Ok(Arc::new(Self(keys))),
        }
    }

    /// The keys that a token with this key id can be signed with.
    pub(super) fn of(&self, id: Option<&str>) -> impl Iterator<Item = &Key> {
        self.0.iter().filter(move |key| id.is_none() || key.id.is_none() || key.id.as_deref() == id)
    }
}

impl Location {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// A sentence that says what's wrong with the URL.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{url}` isn't the URL of a JWKS, such as https://login.example.com/.well-known/jwks.json"
            )
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if matches!(authority.host(), "127.0.0.1" | "localhost" | "[::1]") => false,
            Some("http") => {
                return Err(format!(
                    "`{url}` isn't encrypted, so anybody on the way could forge keys; use https"
                ));
            }
            _ => return Err(wrong()),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { authority: authority.clone(), path, is_tls })
    }
}

impl Keys {
    /// The keys in the text of a JWKS file.
    ///
    /// # Errors
    ///
    /// A sentence that says what's wrong with the file.
    pub(crate) fn in_file(text: &str) -> Result<Self, String> {
        KeySet::parse(text.as_bytes()).map(Self::File)
    }

    /// The keys at this address.
    pub(crate) fn at(location: Location) -> Self {
        Self::Fetched(Box::new(Fetched {
            location,
            known: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            tls: OnceLock::new(),
        }))
    }

    /// Fetches the keys, so that the first request needn't wait for them. A failure is logged.
    pub(crate) async fn warm(&self) {
        if let Self::Fetched(fetched) = self {
            let _ = fetched.with(None, LONGEST_FETCH).await;
        }
    }

    /// The keys, with the one of this id if the issuer has it.
    ///
    /// # Errors
    ///
    /// If the issuer has no key of this id, or can't be asked now.
    pub(super) async fn with(
        &self,
        id: Option<&str>,
        left: Option<Duration>,
    ) -> Result<Arc<KeySet>, Unnamed> {
        match self {
            Self::File(keys) if keys.of(id).next().is_some() => Ok(Arc::clone(keys)),
            Self::File(_) => Err(unknown_key()),
            Self::Fetched(fetched) => {
                fetched.with(id, left.map_or(LONGEST_FETCH, |left| LONGEST_FETCH.min(left / 2))).await
            }
        }
    }
}

fn unknown_key() -> Unnamed {
    Unnamed::Refused("the request's token is signed with a key that its issuer doesn't publish".to_owned())
}

fn unavailable() -> Unnamed {
    Unnamed::Later(
        "the request's token can't be verified now, since the keys at IDEMPOTENCY_JWT_KEYS can't be fetched"
            .to_owned(),
    )
}

impl Known {
    /// The keys, if they have one of this id and are at most this old.
    fn within(&self, age: Duration, id: Option<&str>, now: Timestamp) -> Option<Arc<KeySet>> {
        let keys = self.keys.as_ref().filter(|_| self.fetched.until(now) < age)?;
        keys.of(id).next().is_some().then(|| Arc::clone(keys))
    }

    /// Whether the keys can be fetched again. `is_refresh` says that an older key of the wanted id is known.
    fn may_fetch(&self, is_refresh: bool, now: Timestamp) -> bool {
        let pause = if self.has_failed && !is_refresh { PAUSE_AFTER_FAILURE } else { PAUSE };
        self.tried.is_none_or(|tried| tried.until(now) >= pause || now < tried)
    }
}

impl Fetched {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys, with the one of this id, fetched within this time if need be.
    async fn with(&self, id: Option<&str>, time: Duration) -> Result<Arc<KeySet>, Unnamed> {
        if let Some(keys) = self.known().within(FRESH, id, system_clock().now()) {
            return Ok(keys);
        }
        let fetched = tokio::time::timeout(time, self.refreshed(id)).await;
        let (now, known) = (system_clock().now(), self.known().clone());
        match known.within(USABLE, id, now) {
            Some(keys) => Ok(keys),
            // The last fetch succeeded, and the key wasn't there.
            None if fetched.is_ok() && !known.has_failed && known.keys.is_some() => Err(unknown_key()),
            None => Err(unavailable()),
        }
    }

    /// Fetches the keys, unless they were fetched just now.
    async fn refreshed(&self, id: Option<&str>) {
        let _one = self.fetching.lock().await;
        let now = system_clock().now();
        {
            let mut known = self.known();
            let is_refresh = known.within(USABLE, id, now).is_some();
            if known.within(FRESH, id, now).is_some() || !known.may_fetch(is_refresh, now) {
                return;
            }
            // If this future is dropped, the fetch counts as failed.
            (known.tried, known.has_failed) = (Some(now), true);
        }
        let fetched = self.fetch().await.and_then(|json| KeySet::parse(&json).map_err(BoxError::from));
        match fetched {
            Ok(keys) => {
                let tried = Some(now);
                *self.known() = Known { keys: Some(keys), fetched: now, tried, has_failed: false };
            }
            Err(error) => tracing::warn!(
                error = &*error,
                "couldn't fetch the keys at IDEMPOTENCY_JWT_KEYS, by which tokens are verified"
            ),
        }
    }

    async fn fetch(&self) -> Result<Bytes, BoxError> {
        let Location { authority, path, is_tls } = &self.location;
        let port = authority.port_u16().unwrap_or(if *is_tls { 443 } else { 80 });
        let host = authority.host();
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
        let request = Request::get(path.as_str())
            .header(header::HOST, HeaderValue::from_str(authority.as_str())?)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "lambda-idempotency-layer")
            .body(empty())?;
        if !is_tls {
            return answered(stream, request).await;
        }
        let tls =
            self.tls.get_or_init(tls).clone().ok_or("no trusted certificate authority was found for TLS")?;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        answered(TlsConnector::from(tls).connect(name, stream).await?, request).await
    }
}

/// Sends the request on this stream, and reads the response.
async fn answered(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<AnyBody>,
) -> Result<Bytes, BoxError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let reading = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("the server answered with the status {}", response.status().as_u16()).into());
        }
        Ok(Limited::new(response.into_body(), LARGEST).collect().await?.to_bytes())
    };
    // The connection must be driven while the response is read. It ends with this function.
    let (mut reading, mut connection) = (std::pin::pin!(reading), std::pin::pin!(connection));
    tokio::select! {
        read = &mut reading => return read,
        _ = &mut connection => {}
    }
    reading.await
}

/// TLS that trusts the machine's certificate authorities.
fn tls() -> Option<TlsConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().ok()?.with_root_certificates(roots);
    Some(Arc::new(config.with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// A JWKS with one key of this id.
    fn jwks(id: &str) -> String {
        format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"{}"}}]}}"#, "A".repeat(43))
    }

    /// Keys that were fetched this long ago from an issuer that now publishes `published`, or that can't be reached.
    async fn fetched(age: Duration, published: Option<&'static str>) -> Fetched {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        if let Some(id) = published {
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                // A socket that's closed before its request was read resets the connection, and the answer is lost.
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                let body = jwks(id);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            });
        }
        let then = system_clock().now().saturating_sub(age);
        let keys = Some(KeySet::parse(jwks("old").as_bytes()).unwrap());
        let Keys::Fetched(fetched) = Keys::at(Location::parse(&url).unwrap()) else { unreachable!() };
        *fetched.known() = Known { keys, fetched: then, tried: Some(then), has_failed: false };
        *fetched
    }

    #[tokio::test]
    async fn keys_are_refreshed_hourly_and_end_daily() {
        const MINUTE: Duration = Duration::from_secs(60);
        for (age, published, id, is_known) in [
            // Within the hour, the issuer isn't asked for a known key.
            (59 * MINUTE, Some("new"), "old", Ok(true)),
            (59 * MINUTE, None, "old", Ok(true)),
            // Then it is, and a key that it has revoked ends at once.
            (61 * MINUTE, Some("new"), "old", Ok(false)),
            (61 * MINUTE, Some("old"), "old", Ok(true)),
            (61 * MINUTE, Some("new"), "new", Ok(true)),
            // While it can't be reached, known keys serve for a day.
            (61 * MINUTE, None, "old", Ok(true)),
            (23 * 60 * MINUTE, None, "old", Ok(true)),
            (25 * 60 * MINUTE, None, "old", Err(())),
            (25 * 60 * MINUTE, Some("old"), "old", Ok(true)),
        ] {
            let fetched = fetched(age, published).await;
            let found = match fetched.with(Some(id), LONGEST_FETCH).await {
                Ok(_) => Ok(true),
                Err(Unnamed::Refused(_)) => Ok(false),
                Err(Unnamed::Later(_)) => Err(()),
            };
            assert_eq!(found, is_known, "{age:?}, {published:?}, {id}");
        }
    }
}
