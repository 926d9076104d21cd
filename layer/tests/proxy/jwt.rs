//! Callers named by JWTs that the layer verifies.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ::aws_lc_rs::{
    encoding::AsDer as _,
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        EcdsaSigningAlgorithm, Ed25519KeyPair,
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Value, json};
use testkit::{
    http_server::{Reply, Server},
    unpaused::unpaused,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::{
    bench::{Function, Lambda, fresh_path},
    callers::sent,
    http_events::{created, header, status},
    process::{extension, on_table, table},
    settings::{
        Then::{Refuses, Replays, Runs},
        delivered, requests,
    },
};

const ISSUER: &str = "https://login.example.com/";
const AUDIENCE: &str = "payments";

/// A key of an issuer.
struct Key {
    id: &'static str,
    algorithm: Algorithm,
    private: EncodingKey,
}

impl Key {
    fn new(id: &'static str, algorithm: Algorithm) -> Self {
        let ecdsa = |of: &'static EcdsaSigningAlgorithm| {
            EncodingKey::from_ec_der(EcdsaKeyPair::generate(of).unwrap().to_pkcs8v1().unwrap().as_ref())
        };
        let private = match algorithm {
            Algorithm::ES256 => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::ES384 => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::EdDSA => {
                EncodingKey::from_ed_der(Ed25519KeyPair::generate().unwrap().to_pkcs8v1().unwrap().as_ref())
            }
            _ => {
                let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
                // PKCS#8 is a head of 26 bytes before the PKCS#1 that this function takes.
                EncodingKey::from_rsa_der(&pair.as_der().unwrap().as_ref()[26..])
            }
        };
        Self { id, algorithm, private }
    }

    fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.private, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    /// A token with these claims.
    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.to_owned());
        encode(&header, claims, &self.private).unwrap()
    }

    /// A token that names `subject`, and expires after this number of seconds.
    fn token(&self, subject: &str, seconds: i64) -> String {
        self.sign(&claims(subject, seconds))
    }
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

fn claims(subject: &str, seconds: i64) -> Value {
    json!({ "iss": ISSUER, "aud": [AUDIENCE, "other"], "sub": subject, "iat": now(), "exp": now() + seconds })
}

/// An issuer's server, which counts the requests for its keys.
struct Issuer {
    server: Server,
    reply: Arc<Mutex<Option<Vec<u8>>>>,
    fetches: Arc<AtomicUsize>,
}

impl Issuer {
    async fn start(keys: &[&Key]) -> Self {
        let (reply, fetches) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (replies, counts) = (Arc::clone(&reply), Arc::clone(&fetches));
        let server = Server::start(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            let body: Option<Vec<u8>> = replies.lock().unwrap().clone();
            async move { body.map_or(Reply::Silence, |body| Reply::Whole(200, Vec::new(), body)) }
        })
        .await;
        let issuer = Self { server, reply, fetches };
        issuer.publish(keys);
        issuer
    }

    fn publish(&self, keys: &[&Key]) {
        *self.reply.lock().unwrap() = Some(jwks(keys).into_bytes());
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    fn url(&self) -> String {
        self.server.url("/keys.json?v=1")
    }
}

fn jwks(keys: &[&Key]) -> String {
    let mut all: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
    // Keys of other kinds, which the layer skips.
    all.push(json!({ "kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256" }));
    all.push(json!({ "kty": "new", "kid": "new" }));
    json!({ "keys": all }).to_string()
}

fn settings(keys: &str) -> Vec<(&str, &str)> {
    vec![
        ("IDEMPOTENCY_KEY", "header"),
        ("IDEMPOTENCY_CALLERS", "jwt"),
        ("IDEMPOTENCY_JWT_KEYS", keys),
        ("IDEMPOTENCY_JWT_ISSUER", ISSUER),
        ("IDEMPOTENCY_JWT_AUDIENCE", "shop, payments"),
    ]
}

/// A request with this token.
fn with(token: &str) -> Value {
    sent("function-url", &[("authorization", &format!("Bearer {token}"))])
}

#[tokio::test]
async fn refreshed_token_of_one_subject_replays() {
    let (rsa, ec) = (Key::new("rsa", Algorithm::RS256), Key::new("ec", Algorithm::ES256));
    let issuer = Issuer::start(&[&rsa, &ec]).await;
    let url = issuer.url();
    let all = [
        (with(&rsa.token("alice", 60)), Runs),
        (with(&rsa.token("alice", 3600)), Replays),
        (with(&ec.token("alice", 60)), Replays),
        (with(&rsa.token("mallory", 60)), Runs),
        (with(&rsa.token("mallory", 61)), Replays),
        (sent("rest-api", &[("Authorization", &format!("bearer {}", rsa.token("alice", 9)))]), Replays),
        (sent("function-url", &[("authorization", &rsa.token("alice", 60))]), Refuses(401)),
    ];
    requests(&settings(&url), &all).await;
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test]
async fn every_algorithm_of_the_issuer_verifies() {
    let algorithms = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::PS256,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ];
    let keys =
        algorithms.map(|algorithm| Key::new(Box::leak(format!("{algorithm:?}").into_boxed_str()), algorithm));
    let issuer = Issuer::start(&keys.each_ref()).await;
    let mut all: Vec<_> = keys.iter().map(|key| (with(&key.token("alice", 60)), Replays)).collect();
    all[0].1 = Runs;
    requests(&settings(&issuer.url()), &all).await;
}

#[tokio::test]
async fn invalid_tokens_get_status_401() {
    let (key, forger) = (Key::new("a", Algorithm::RS256), Key::new("a", Algorithm::RS256));
    let unknown = Key::new("b", Algorithm::RS256);
    let issuer = Issuer::start(&[&key]).await;
    let change = |name: &str, value: Value| {
        let mut claims = claims("alice", 60);
        claims[name] = value;
        if claims[name].is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
        key.sign(&claims)
    };
    let good = key.token("alice", 60);
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let with_header = |value: Value, signature: &str| {
        format!("{}.{}.{signature}", part(&value), good.split('.').nth(1).unwrap())
    };
    let hmac = {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("secret".to_owned());
        let public = serde_json::to_vec(&key.jwk()).unwrap();
        let mut with_public = header.clone();
        with_public.kid = Some("a".to_owned());
        [
            encode(&header, &claims("alice", 60), &EncodingKey::from_secret(b"secret")).unwrap(),
            encode(&with_public, &claims("alice", 60), &EncodingKey::from_secret(&public)).unwrap(),
        ]
    };
    let critical = {
        // The signature is valid, but the header names an extension that the layer doesn't know.
        let mut header = Header::new(Algorithm::RS256);
        (header.kid, header.crit) = (Some("a".to_owned()), Some(vec!["exp2".to_owned()]));
        encode(&header, &claims("alice", 60), &key.private).unwrap()
    };
    let tampered = {
        let parts: Vec<_> = good.split('.').collect();
        format!("{}.{}.{}", parts[0], part(&claims("mallory", 60)), parts[2])
    };
    let signature = good.rsplit('.').next().unwrap();
    let mut tokens = vec![
        forger.token("alice", 60),
        unknown.token("alice", 60),
        key.token("alice", -60),
        change("exp", Value::Null),
        change("exp", "soon".into()),
        change("nbf", (now() + 120).into()),
        change("iss", "https://login.example.com".into()),
        change("iss", json!([ISSUER, "https://other.example.com"])),
        change("iss", Value::Null),
        change("aud", "other".into()),
        change("aud", json!([])),
        change("aud", Value::Null),
        change("sub", Value::Null),
        change("sub", " ".into()),
        change("sub", json!(["alice"])),
        with_header(json!({ "alg": "none", "kid": "a" }), ""),
        with_header(json!({ "alg": "None" }), signature),
        with_header(json!({ "alg": "RS512", "kid": "a" }), signature),
        with_header(json!({ "alg": "ES256", "kid": "a" }), signature),
        with_header(json!({ "alg": "RS256", "kid": "a", "jwk": forger.jwk() }), signature),
        critical,
        tampered,
        format!("{good}x"),
        good.replace('.', ".."),
        "token".to_owned(),
        String::new(),
    ];
    tokens.extend(hmac);
    let mut all: Vec<_> = tokens.iter().map(|token| (with(token), Refuses(401))).collect();
    all.push((sent("function-url", &[]), Refuses(401)));
    all.push((sent("function-url", &[("authorization", "Basic YTpi")]), Refuses(401)));
    let mut twice = sent("alb", &[]);
    let values = json!([format!("Bearer {good}"), format!("Bearer {}", key.token("mallory", 60))]);
    twice["multiValueHeaders"] = json!({ "idempotency-key": ["k"], "authorization": values });
    twice.as_object_mut().unwrap().remove("headers");
    all.push((twice, Refuses(401)));
    // A valid token still runs.
    all.push((with(&good), Runs));
    requests(&settings(&issuer.url()), &all).await;
    assert!(issuer.fetches() <= 2, "{}", issuer.fetches());
}

#[tokio::test]
async fn refusals_name_no_secret_and_challenge() {
    let key = Key::new("a", Algorithm::ES256);
    let issuer = Issuer::start(&[&key]).await;
    let lambda = Lambda::start().await;
    let url = issuer.url();
    let function = Function::start(&lambda, &settings(&url)).await;
    let token = key.token("c4n4ry-subject", -60);
    let (_, refused) = delivered(&lambda, &function, &with(&token).to_string(), "").await;
    assert_eq!((status(&refused), header(&refused, "www-authenticate").as_deref()), (401, Some("Bearer")));
    let problem: Value = serde_json::from_str(refused.json()["body"].as_str().unwrap()).unwrap();
    assert_eq!(problem["code"], "caller-missing");
    let log = function.log();
    assert!(log.contains("the request's token has expired"), "{log}");
    assert!(!log.contains("c4n4ry") && !log.contains(&token), "{log}");
}

#[tokio::test]
async fn client_id_replaces_a_missing_audience() {
    let key = Key::new("a", Algorithm::ES256);
    let issuer = Issuer::start(&[&key]).await;
    let of = |client: &str| {
        with(&key.sign(&json!({ "iss": ISSUER, "client_id": client, "sub": "alice", "exp": now() + 60 })))
    };
    requests(&settings(&issuer.url()), &[(of("shop"), Runs), (of("other"), Refuses(401))]).await;
}

#[tokio::test]
async fn other_claims_and_places_name_callers() {
    let key = Key::new("a", Algorithm::ES256);
    let issuer = Issuer::start(&[&key]).await;
    let of = |user: Value| {
        let mut claims = claims("shared", 60);
        claims["https://example.com/user"] = user;
        sent("http-api", &[("cookie", &format!("theme=dark; session={}", key.sign(&claims)))])
    };
    let url = issuer.url();
    let mut settings = settings(&url);
    settings.extend([
        ("IDEMPOTENCY_JWT_CLAIM", "https://example.com/user"),
        ("IDEMPOTENCY_JWT_IN", "cookie:session"),
    ]);
    let all = [
        (of(17.into()), Runs),
        (of(17.into()), Replays),
        (of(18.into()), Runs),
        (of(1.5.into()), Refuses(401)),
        (of(Value::Null), Refuses(401)),
        (with(&key.token("shared", 60)), Refuses(401)),
    ];
    requests(&settings, &all).await;
}

#[tokio::test]
async fn rotated_keys_are_fetched_once() {
    let (old, new) = (Key::new("old", Algorithm::ES256), Key::new("new", Algorithm::ES256));
    let issuer = Issuer::start(&[&old]).await;
    let lambda = Lambda::start().await;
    let url = issuer.url();
    let function = Function::start(&lambda, &settings(&url)).await;
    let ask = async |token: &str| {
        let (runs, answer) =
            delivered(&lambda, &function, &with(token).to_string(), &created().to_string()).await;
        (runs, status(&answer))
    };
    assert_eq!(ask(&old.token("alice", 60)).await, (true, 201));
    assert_eq!(issuer.fetches(), 1);
    // Within the pause after a fetch, an unknown key is invalid, and isn't asked for again.
    for _ in 0..5 {
        assert_eq!(ask(&new.token("alice", 60)).await, (false, 401));
    }
    assert_eq!(issuer.fetches(), 1);
    assert_eq!(ask(&old.token("alice", 60)).await, (false, 201));
}

#[tokio::test]
async fn unreachable_keys_get_status_503() {
    let key = Key::new("a", Algorithm::ES256);
    let issuer = Issuer::start(&[&key]).await;
    *issuer.reply.lock().unwrap() = None;
    let lambda = Lambda::start().await;
    let url = issuer.url();
    let function = Function::start(&lambda, &settings(&url)).await;
    let begun = Instant::now();
    let event = with(&key.token("alice", 60)).to_string();
    let (_, refused) = delivered(&lambda, &function, &event, "").await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(status(&refused), 503);
    assert!(header(&refused, "retry-after").is_some(), "{refused:?}");
    // A request that isn't protected doesn't ask the issuer.
    let mut unprotected = with(&key.token("alice", 60));
    unprotected["headers"]
        .as_object_mut()
        .unwrap()
        .retain(|name, _| !name.eq_ignore_ascii_case("idempotency-key"));
    let fetches = issuer.fetches();
    let (runs, answer) =
        delivered(&lambda, &function, &unprotected.to_string(), &created().to_string()).await;
    assert!(runs && status(&answer) == 201 && issuer.fetches() == fetches, "{answer:?}");
    for broken in ["<html>", "{}", "{\"keys\":[]}"] {
        *issuer.reply.lock().unwrap() = Some(broken.into());
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let (_, refused) = delivered(&lambda, &function, &event, "").await;
        assert_eq!(status(&refused), 503, "{broken}");
    }
    issuer.publish(&[&key]);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let (runs, answer) = delivered(&lambda, &function, &event, &created().to_string()).await;
    assert!(runs && status(&answer) == 201, "{answer:?}");
    // Known keys don't need the issuer.
    *issuer.reply.lock().unwrap() = None;
    let (runs, answer) = delivered(&lambda, &function, &event, "").await;
    assert!(!runs && status(&answer) == 201, "{answer:?}");
}

/// Serves `body` by TLS, with a certificate for `localhost`. Returns the URL, and the file of the certificate's
/// authority. `None` without openssl.
async fn https(body: String) -> Option<(String, String)> {
    let folder = fresh_path();
    std::fs::create_dir(&folder).unwrap();
    let openssl = |arguments: &str| {
        let mut command = std::process::Command::new("openssl");
        command
            .args(arguments.split(' '))
            .current_dir(&folder)
            .output()
            .is_ok_and(|made| made.status.success())
    };
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    let is_made = openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=tests"))
        && openssl(&format!("req {key} -keyout own.key -out own.csr -subj /CN=own"))
        && openssl(
            "x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out own.pem",
        );
    if !is_made {
        testkit::skip::skip("this test needs openssl, which is missing or failed; apt-get install openssl");
        return None;
    }
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let chain = CertificateDer::pem_slice_iter(&read("own.pem")).collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read("own.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that doesn't trust the certificate ends the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    Some((format!("https://localhost:{port}/keys"), folder.join("ca.pem").display().to_string()))
}

#[tokio::test]
async fn keys_come_only_from_trusted_servers() {
    let key = Key::new("a", Algorithm::ES256);
    let Some((url, authority)) = https(jwks(&[&key])).await else { return };
    let request = with(&key.token("alice", 60));
    let trusting = [settings(&url), vec![("SSL_CERT_FILE", &authority)]].concat();
    requests(&trusting, &[(request.clone(), Runs), (request.clone(), Replays)]).await;
    requests(&settings(&url), &[(request, Refuses(503))]).await;
}

#[tokio::test]
async fn keys_in_a_file_verify() {
    let key = Key::new("a", Algorithm::ES256);
    let file = fresh_path();
    std::fs::write(&file, jwks(&[&key])).unwrap();
    let path = file.display().to_string();
    let all = [(with(&key.token("alice", 60)), Runs), (with(&key.token("alice", 99)), Replays)];
    requests(&settings(&path), &all).await;
}

#[tokio::test]
async fn init_connects_ahead_unless_it_ends_in_a_snapshot() {
    let key = Key::new("a", Algorithm::ES256);
    for (initialization, is_ahead) in [("on-demand", true), ("snap-start", false)] {
        for is_extension in [false, true] {
            // Returns the requests of the init, and those after an event.
            let counted = async || {
                let (issuer, (_database, wire)) = (Issuer::start(&[&key]).await, table().await);
                let (endpoint, url, lambda) = (wire.endpoint(), issuer.url(), Lambda::start().await);
                let counts = || {
                    let exchanges = wire.log().exchanges();
                    let warm_ups = exchanges.iter().filter(|it| it.first_attempt && it.is_warm_up());
                    (warm_ups.count(), issuer.fetches())
                };
                let more = [("AWS_LAMBDA_INITIALIZATION_TYPE", initialization)];
                let all = [&on_table(&endpoint)[..], &settings(&url), &more].concat();
                let function = match is_extension {
                    true => extension(&lambda, &all).await,
                    false => Function::start(&lambda, &all).await,
                };
                if is_ahead {
                    let asked = async {
                        while counts() != (1, 1) {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    };
                    let _ = tokio::time::timeout(Duration::from_secs(5), asked).await;
                } else {
                    assert!(function.gets_nothing().await);
                }
                let of_init = counts();
                let event = with(&key.token("alice", 60)).to_string();
                let (ran, _) = delivered(&lambda, &function, &event, &created().to_string()).await;
                assert!(ran, "{}", function.log());
                (of_init, counts())
            };
            let expected = if is_ahead { ((1, 1), (1, 1)) } else { ((0, 0), (0, 1)) };
            let found = unpaused(counted, |found| *found == expected).await;
            assert_eq!(found, expected, "{initialization}, extension: {is_extension}");
        }
    }
}
