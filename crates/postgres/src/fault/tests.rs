//! Tests of the mapping from SQLSTATEs to errors.

use super::*;

#[test]
fn every_sqlstate_maps_to_its_kind() {
    use StoreErrorKind::{Conflict, Rejected, Unavailable, Unstorable};
    for (code, kind) in [
        ("40001", Conflict),
        ("40P01", Conflict),
        ("55P03", Conflict),
        ("25006", Unavailable),
        ("53100", Unavailable),
        ("53200", Unavailable),
        ("53300", Unavailable),
        ("57014", Unavailable),
        ("57P01", Unavailable),
        ("57P02", Unavailable),
        ("57P03", Unavailable),
        ("58030", Unavailable),
        ("08006", Unavailable),
        ("XX000", Unavailable),
        ("0A000", Unavailable),
        ("42P01", Rejected),
        ("42703", Rejected),
        ("42501", Rejected),
        ("28P01", Rejected),
        ("28000", Rejected),
        ("3D000", Rejected),
        ("26000", Rejected),
        ("25P02", Rejected),
        ("25P03", Unavailable),
        ("25P04", Unavailable),
        ("23514", Rejected),
        ("22003", Rejected),
        ("42P05", Rejected),
        ("55000", Rejected),
        ("22001", Unstorable),
        ("22021", Unstorable),
        ("22P05", Unstorable),
        ("54000", Unstorable),
        ("54011", Unstorable),
        ("", Rejected),
    ] {
        assert_eq!(Class::of_code(code).kind(), kind, "{code}");
    }
}

#[test]
fn messages_are_one_truncated_line() {
    assert_eq!(sentence("first\nsecond"), "first");
    assert_eq!(sentence(&format!("x{}", "é".repeat(400))).len(), 499);
}

#[test]
fn codes_with_specific_advice_are_classified() {
    let is = |code: &str, class: Class| assert!(Class::of_code(code) == class, "{code}");
    is("26000", Class::Pooler);
    is("42P05", Class::Pooler);
    is("42P01", Class::MissingTable);
    is("42703", Class::Unfit);
    is("42501", Class::Permission);
    is("3D000", Class::MissingDatabase);
    is("25P02", Class::FailedTransaction);
    is("28P01", Class::Credentials);
    assert!(Class::Pooler.is_quotable() && !Class::Unstorable.is_quotable());
}

#[test]
fn pool_failures_are_classified() {
    for (error, class) in [
        (PoolError::Timeout(TimeoutType::Wait), Class::NoneFree),
        (PoolError::Timeout(TimeoutType::Create), Class::NotReached),
        (PoolError::Timeout(TimeoutType::Recycle), Class::NotReached),
        (PoolError::Closed, Class::NotReached),
    ] {
        let fault = Fault::connecting(&error);
        assert!(fault.class == class && !fault.maybe_applied, "{error:?}: {fault:?}");
    }
    assert_eq!(Fault::connecting(&PoolError::Closed).cause.to_string(), "the pool is closed");
    let timeout = Fault::connecting(&PoolError::Timeout(TimeoutType::Create));
    assert_eq!(timeout.cause.to_string(), "the connection timed out");
}

#[test]
fn only_some_faults_end_the_connection() {
    let keeping =
        [Fault::missing_table(), Fault::contended(), Fault::too_large(), Fault::prepared_too_late()];
    for fault in keeping {
        assert!(!fault.ends_connection && !fault.maybe_applied && !fault.is_lost(), "{fault:?}");
    }
    for fault in [Fault::standby(), Fault::not_direct(), Fault::none_free(), Fault::timed_out()] {
        assert!(fault.ends_connection && !fault.is_lost(), "{fault:?}");
    }
    let in_doubt = Fault::contended().in_doubt();
    assert!(in_doubt.ends_connection && in_doubt.maybe_applied);
}

/// Connects to a server that answers the first message with these bytes and closes the connection. Returns the
/// fault.
async fn connecting_to(answer: &'static [u8], with: &str) -> Fault {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await.unwrap();
        stream.write_all(answer).await.unwrap();
    });
    let url = format!("host=127.0.0.1 port={port} user=u sslmode=disable {with}");
    let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
    serving.await.unwrap();
    Fault::of_connection(&connected.map(drop).unwrap_err())
}

/// The answers are messages of PostgreSQL's protocol ("Message Formats" in its documentation).
#[tokio::test]
async fn failed_connections_are_classified() {
    const GSS: &[u8] = b"R\0\0\0\x08\0\0\0\x07";
    const PLAINTEXT_PASSWORD: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
    const SCRAM: &[u8] = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0";
    const ERROR: &[u8] = b"E\0\0\0\x21SERROR\0VERROR\0C28P01\0Mwrong\0\0";
    const OPTIONS: &[u8] = b"E\0\0\0\x32SFATAL\0C08P01\0Munsupported startup parameter\0\0";
    for (answer, with, class) in [
        (GSS, "password=p", Class::Credentials),
        (PLAINTEXT_PASSWORD, "", Class::Credentials),
        (SCRAM, "password=p channel_binding=require", Class::Unbound),
        (ERROR, "password=p", Class::Credentials),
        (OPTIONS, "password=p", Class::Unlimited),
        (b"", "password=p", Class::NotReached),
    ] {
        let fault = connecting_to(answer, with).await;
        assert!(fault.class == class, "{fault:?}");
        assert!(fault.ends_connection && !fault.maybe_applied, "{fault:?}");
    }
}

/// Sends a statement that the server answers with this error. Returns the fault.
async fn answered_with(severity: &str, code: &str) -> Fault {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const READY: &[u8] = b"Z\0\0\0\x05I";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let fields = format!("{severity}\0C{code}\0Mwhy\0\0");
    let length = u32::try_from(fields.len() + 4).unwrap();
    let answer = [b"E".as_slice(), &length.to_be_bytes(), fields.as_bytes(), READY].concat();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for answer in [[b"R\0\0\0\x08\0\0\0\0".as_slice(), READY].concat(), answer] {
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let url = format!("host=127.0.0.1 port={port} user=u sslmode=disable");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    Fault::sent(&client.batch_execute("SELECT").await.unwrap_err())
}

#[tokio::test]
async fn severity_and_code_mark_ambiguous_errors() {
    for (severity, code, ends_connection, maybe_applied, is_lost) in [
        ("SERROR\0VERROR", "23505", false, false, false),
        ("SFEHLER\0VERROR", "23505", false, false, false),
        ("SERROR\0VERROR", "25006", true, false, false),
        ("SERROR\0VERROR", "26000", true, false, false),
        ("SERROR\0VERROR", "0A000", true, false, false),
        ("SERROR\0VERROR", "53100", false, false, false),
        ("SERROR\0VERROR", "57014", false, true, false),
        ("SERROR\0VERROR", "40003", false, true, false),
        ("SFATAL\0VFATAL", "57P01", true, true, true),
        ("SFATAL\0VFATAL", "57P05", true, true, true),
        ("SFATAL\0VFATAL", "08006", true, true, true),
        // An old server or a pooler sends the severity only in the language of its messages.
        ("SERROR", "23505", false, false, false),
        ("SFEHLER", "23505", true, true, false),
        ("SERROR\0VFATAL", "23505", true, true, false),
    ] {
        let fault = answered_with(severity, code).await;
        assert_eq!(
            (fault.ends_connection, fault.maybe_applied, fault.is_lost()),
            (ends_connection, maybe_applied, is_lost),
            "{severity:?} {code}"
        );
    }
}

#[test]
fn users_transactions_have_their_own_words() {
    let fault = |code: &str| Fault {
        class: Class::of_code(code),
        cause: Cause { text: String::new(), code: Some(code.to_owned()) },
        maybe_applied: false,
        ends_connection: false,
    };
    let inside = |code| fault(code).in_users_transaction().class;
    assert_eq!(inside("25006"), Class::ReadOnlyTransaction);
    assert_eq!(inside("42501"), Class::TransactionRole);
    assert_eq!(inside("40001"), Class::Conflict);
    assert_eq!(Fault::standby().in_users_transaction().class, Class::ReadOnly);
    let commit = |code| fault(code).of_commit().class;
    for (code, class) in [
        ("23503", Class::Commit),
        ("23505", Class::Commit),
        ("P0001", Class::Commit),
        ("22001", Class::Commit),
        ("40001", Class::ConflictingCommit),
        ("25P02", Class::FailedTransaction),
        ("57P01", Class::ServerError),
        ("08006", Class::Lost),
    ] {
        assert_eq!(commit(code), class, "{code}");
    }
    assert_eq!(Fault::timed_out().of_commit().class, Class::TimedOut);
    assert!(fault("23503").of_commit().message("t", "").contains("SQLSTATE 23503"));
}
