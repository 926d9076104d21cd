//! TLS with the test's own certificate authority, made by `openssl`.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use lambda_idempotency::store::{PutOutcome, Store, StoreBuilder, StoreErrorKind, redis::RedisStore};

use super::fixtures::{chain, claim, complete, completed, fresh_key, hasty, started};
use testkit::redis::{RedisServer, has, new_folder};

fn openssl(folder: &Path, arguments: &str) {
    let status = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "openssl {arguments}");
}

/// Starts a server with a TLS port, and a certificate for `127.0.0.1` and `localhost`. Returns the server, and the
/// authority's certificate.
fn secure_server() -> Option<(RedisServer, Vec<u8>)> {
    if !has("openssl", "openssl") {
        return None;
    }
    let folder = new_folder();
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&folder, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=tests"));
    openssl(&folder, &format!("req {key} -keyout redis.key -out redis.csr -subj /CN=redis"));
    openssl(
        &folder,
        "x509 -req -in redis.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out redis.pem",
    );
    let authority = fs::read(folder.join("ca.pem")).unwrap();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (file("redis.pem"), file("redis.key"), file("ca.pem"));
    let settings = [
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
    ];
    let server = RedisServer::start_with_tls(&folder, &settings)?;
    Some((server, authority))
}

/// Configures timeouts for a busy machine, where a handshake may take seconds.
fn patient(builder: StoreBuilder<RedisStore>) -> StoreBuilder<RedisStore> {
    builder.attempt_timeout(Duration::from_secs(20)).operation_timeout(Duration::from_secs(60))
}

#[tokio::test]
async fn tls_verifies_authority_and_name() {
    let Some((server, authority)) = secure_server() else { return };
    let port = server.tls_port();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("rediss://{host}:{port}");
        let store = patient(RedisStore::builder(&url).root_certificates(authority.clone())).build().unwrap();
        let key = fresh_key();
        assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
        assert_eq!(store.read(&key).await.unwrap(), Some(started()));
        assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
        assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(completed())));
    }
    // The URL can name the file of the authority's certificate instead, for example in an environment variable.
    let file = server.folder().join("ca.pem");
    let url = format!("rediss://127.0.0.1:{port}?sslrootcert={}", file.display());
    let store = patient(RedisStore::builder(url)).build().unwrap();
    assert_eq!(claim(&store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
    let error = RedisStore::new(format!("rediss://127.0.0.1:{port}?sslrootcert=/no/such.pem")).unwrap_err();
    assert!(error.to_string().contains("\"/no/such.pem\" can't be read"), "{error}");
    // One store connects to an address that isn't in the certificate. The other store doesn't know the authority.
    let url = format!("rediss://:secret@127.0.0.1:{port}");
    let by_another_name = format!("rediss://:secret@127.0.0.2:{port}");
    let other = patient(RedisStore::builder(by_another_name).root_certificates(authority.clone()));
    let mut untrusted = vec![(other.build().unwrap(), "certificate")];
    // If the machine has no root certificates, building this store fails.
    untrusted.extend(patient(RedisStore::builder(&url)).build().map(|store| (store, "UnknownIssuer")));
    for (store, says) in untrusted {
        let error = claim(&store, &fresh_key()).await.unwrap_err();
        if error.kind() == StoreErrorKind::Unavailable && chain(&error).contains("refused") {
            continue; // This machine has one loopback address only.
        }
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{}", chain(&error));
        assert!(!error.is_maybe_applied());
        assert!(error.to_string().contains("couldn't be trusted"), "{error}");
        assert!(chain(&error).contains(says), "{}", chain(&error));
        assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn tls_on_one_side_only_is_reported() {
    let Some((server, authority)) = secure_server() else { return };
    let error =
        claim(&hasty(&format!("redis://127.0.0.1:{}", server.tls_port())), &fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    let url = format!("rediss://{}", server.address());
    let store = RedisStore::builder(url).root_certificates(authority).build().unwrap();
    let error = claim(&store, &fresh_key()).await.unwrap_err();
    assert!(!error.is_maybe_applied(), "{}", chain(&error));
    assert!(error.to_string().contains("TLS"), "{}", chain(&error));
}
