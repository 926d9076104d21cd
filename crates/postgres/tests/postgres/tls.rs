//! TLS, on a server with its own certificate.

use std::{fs, process::Command};

use lambda_idempotency::store::{Store as _, StoreErrorKind, postgres::PostgresStore};
use testkit::puts;
use testkit::skip::skip;

use super::fixtures::{Server, key, lock, make, patient, server};

const RSA: [&str; 2] = ["-newkey", "rsa:2048"];

/// Creates a private key and a self-signed certificate for `localhost`, with these `openssl` options.
fn certificate(folder: &std::path::Path, options: &[&str]) -> Option<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(options)
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join("server.key"))
        .arg("-out")
        .arg(folder.join("server.crt"))
        .output();
    match made {
        Ok(made) if made.status.success() => Some(()),
        _ => {
            skip("this test needs openssl, which is missing or failed; apt-get install openssl");
            None
        }
    }
}

#[tokio::test]
async fn certificates_are_verified_by_the_given_root() {
    let folder = std::env::temp_dir().join(super::fixtures::fresh_table());
    fs::create_dir(&folder).unwrap();
    let Some(()) = certificate(&folder, &RSA) else { return };
    let (key_pem, pem) =
        (fs::read(folder.join("server.key")).unwrap(), fs::read(folder.join("server.crt")).unwrap());
    let Some(server) = Server::start_with("ssl = on", &[("server.key", &key_pem), ("server.crt", &pem)])
    else {
        return;
    };
    let url = |mode: &str| server.url().replace("127.0.0.1", "localhost") + "?sslmode=" + mode;
    let builder = |mode| patient(PostgresStore::builder(url(mode)));

    let file = folder.join("server.crt").display().to_string();
    let verified = format!("{}&sslrootcert={file}&prepared=true", url("verify-full"));
    let store = patient(PostgresStore::builder(verified)).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("tls"), &puts::claim(lock())).await;
    let client = builder("require").root_certificates(pem).build().unwrap();
    assert!(client.read(&key("tls")).await.unwrap().is_some());
    let sessions = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                    WHERE s.ssl AND a.application_name = 'lambda-idempotency'";
    let count: i64 = server.client().await.query_one(sessions, &[]).await.unwrap().get(0);
    assert_eq!(count, 2);

    // The system doesn't trust the certificate. Both modes refuse it, and don't fall back to plaintext.
    for mode in ["require", "prefer"] {
        let error = builder(mode).build().unwrap().read(&key("tls")).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false), "{error:?}");
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
    // The certificate isn't valid for another host.
    let other = url("require").replace("localhost", "127.0.0.1");
    let pem = fs::read(folder.join("server.crt")).unwrap();
    let store = patient(PostgresStore::builder(other)).root_certificates(pem).build().unwrap();
    assert_eq!(store.read(&key("tls")).await.unwrap_err().kind(), StoreErrorKind::Rejected);
    assert!(builder("disable").build().unwrap().read(&key("tls")).await.unwrap().is_some());
    fs::remove_dir_all(&folder).unwrap();
}

/// The URLs of hosted PostgreSQL ask for channel binding: the client binds its login to the server's certificate. The
/// server rejects a binding to any certificate but its own. No binding is defined for an Ed25519 certificate.
#[tokio::test]
async fn channel_binding_is_used_where_required() {
    let p384 = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-sha384"];
    let ed25519 = ["-newkey", "ed25519"];
    let rsa512 = ["-newkey", "rsa:2048", "-sha512"];
    for (options, is_bound) in [(&RSA[..], true), (&rsa512, true), (&p384, true), (&ed25519, false)] {
        let folder = std::env::temp_dir().join(super::fixtures::fresh_table());
        fs::create_dir(&folder).unwrap();
        let Some(()) = certificate(&folder, options) else { return };
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        let (key_pem, pem) = (read("server.key"), read("server.crt"));
        fs::remove_dir_all(&folder).unwrap();
        let files = [("server.key", &key_pem[..]), ("server.crt", &pem[..])];
        let Some(server) = Server::start_with("ssl = on", &files) else { return };
        let url = server.url().replace("127.0.0.1", "localhost") + "?sslmode=require&channel_binding=";
        let store = |binding: &str| {
            let builder = PostgresStore::builder(format!("{url}{binding}")).root_certificates(pem.clone());
            patient(builder).build().unwrap()
        };
        store("prefer").create_table().await.unwrap();
        store("disable").read(&key("bound")).await.unwrap();
        let read = store("require").read(&key("bound")).await;
        if is_bound {
            assert_eq!(read.unwrap(), None, "{options:?}");
            continue;
        }
        let error = read.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains("offers no channel binding"), "{error}");
    }
}

#[tokio::test]
async fn required_tls_refuses_plaintext_servers() {
    let server = server!();
    let store = patient(PostgresStore::builder(server.url() + "?sslmode=require")).build().unwrap();
    let error = store.read(&key("tls")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("sslmode=disable"), "{error}");
    let store = server.store(|builder| builder).await;
    let builder = PostgresStore::builder(server.url() + "?sslmode=prefer").table(store.table());
    assert_eq!(patient(builder).build().unwrap().read(&key("tls")).await.unwrap(), None);
}
