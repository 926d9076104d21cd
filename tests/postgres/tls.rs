//! TLS, on a server with a certificate of its own.

use std::{fs, process::Command, time::Duration};

use lambda_idempotency::{
    Store as _,
    store::{StoreErrorKind, Write, postgres::PostgresStore},
};

use super::fixtures::{Server, key, lock, make, server};

/// A certificate for `localhost` that signs itself, and its key.
fn certificate(folder: &std::path::Path) -> Option<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join("server.key"))
        .arg("-out")
        .arg(folder.join("server.crt"))
        .output();
    match made {
        Ok(made) if made.status.success() => Some(()),
        _ => {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "openssl is missing; apt-get install openssl"
            );
            eprintln!("SKIPPED: openssl is missing, and this test needs it; apt-get install openssl");
            None
        }
    }
}

#[tokio::test]
async fn a_certificate_is_verified_by_the_root_that_is_named() {
    let folder = std::env::temp_dir().join(super::fixtures::fresh_table());
    fs::create_dir(&folder).unwrap();
    let Some(()) = certificate(&folder) else { return };
    let (key_pem, pem) =
        (fs::read(folder.join("server.key")).unwrap(), fs::read(folder.join("server.crt")).unwrap());
    let Some(server) = Server::start_with("ssl = on", &[("server.key", &key_pem), ("server.crt", &pem)])
    else {
        return;
    };
    let url = |mode: &str| server.url().replace("127.0.0.1", "localhost") + "?sslmode=" + mode;
    let builder = |mode| PostgresStore::builder(url(mode)).statement_timeout(Duration::from_secs(5));

    let file = folder.join("server.crt").display().to_string();
    let store = PostgresStore::builder(format!("{}&sslrootcert={file}", url("verify-full"))).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("tls"), &Write::Claim(lock())).await;
    let client = builder("require").root_certificates(pem).build().unwrap();
    assert!(client.read(&key("tls")).await.unwrap().is_some());
    let sessions = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                    WHERE s.ssl AND a.application_name = 'lambda-idempotency'";
    let count: i64 = server.client().await.query_one(sessions, &[]).await.unwrap().get(0);
    assert_eq!(count, 2);

    // The system does not trust it; and if a server offers TLS, no mode goes on without it.
    for mode in ["require", "prefer"] {
        let error = builder(mode).build().unwrap().read(&key("tls")).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false), "{error:?}");
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
    // Nor is it another host's.
    let other = url("require").replace("localhost", "127.0.0.1");
    let pem = fs::read(folder.join("server.crt")).unwrap();
    let store = PostgresStore::builder(other).root_certificates(pem).build().unwrap();
    assert_eq!(store.read(&key("tls")).await.unwrap_err().kind(), StoreErrorKind::Rejected);
    assert!(builder("disable").build().unwrap().read(&key("tls")).await.unwrap().is_some());
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = server!();
    let store = PostgresStore::builder(server.url() + "?sslmode=require").build().unwrap();
    let error = store.read(&key("tls")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("sslmode=disable"), "{error}");
    let store = server.store(|builder| builder).await;
    let builder = PostgresStore::builder(server.url() + "?sslmode=prefer").table(store.table());
    assert_eq!(builder.build().unwrap().read(&key("tls")).await.unwrap(), None);
}
