//! Passwords that change under load. No run fails that a reconnection could have saved.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lambda_idempotency::{
    Idempotency,
    store::{Store as _, StoreBuilder, StoreErrorKind, postgres::PostgresStore},
};
use testkit::load::under_load;
use tokio::sync::Mutex;

use super::fixtures::{Server, fresh_table, key, patient, server};

const ROTATIONS: usize = 20;

/// A role whose password changes. The server's password and the code's change together.
struct Role<'s> {
    server: &'s Server,
    name: String,
    table: String,
    password: Arc<Mutex<String>>,
}

impl<'s> Role<'s> {
    async fn new(server: &'s Server) -> Self {
        let table = server.store(|builder| builder).await.table();
        let name = fresh_table();
        let client = server.client().await;
        let made = format!(
            "CREATE ROLE {name} LOGIN PASSWORD 'first'; GRANT ALL ON {table}, {table}_schema TO {name}"
        );
        client.batch_execute(&made).await.unwrap();
        Self { server, name, table, password: Arc::new(Mutex::new("first".to_owned())) }
    }

    fn url(&self, password: &str) -> String {
        format!("postgres://{}{password}@127.0.0.1:{}/postgres", self.name, self.server.port())
    }

    fn store(&self, builder: StoreBuilder<PostgresStore>) -> PostgresStore {
        patient(builder.table(self.table.clone())).connections(4).build().unwrap()
    }

    /// A store that asks for the password, and counts how often.
    fn asking(&self, asked: &Arc<AtomicUsize>) -> PostgresStore {
        let (password, asked) = (Arc::clone(&self.password), Arc::clone(asked));
        let builder = PostgresStore::builder(self.url("")).password_from(move || {
            let (password, asked) = (Arc::clone(&password), Arc::clone(&asked));
            async move {
                asked.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(password.lock().await.clone())
            }
        });
        self.store(builder)
    }

    /// Changes the password, and closes the role's connections.
    async fn rotate(&self, nth: usize) {
        let mut password = self.password.lock().await;
        *password = format!("password-{nth}");
        let client = self.server.client().await;
        let (name, password) = (&self.name, &*password);
        let change = format!("ALTER ROLE {name} PASSWORD '{password}'");
        client.batch_execute(&change).await.unwrap();
        let close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
        client.query(close, &[name]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotating_passwords_fail_no_run() {
    let role = Role::new(server!()).await;
    let asked = Arc::default();
    let store = role.asking(&asked);
    let idempotency = Idempotency::builder(store).function("rotation").build().unwrap();
    let ended = under_load(&idempotency, ROTATIONS, async |nth| role.rotate(nth).await).await;
    eprintln!("{ended:?}; the password was asked for {asked:?} times");
    assert_eq!(ended.failed, 0);
    let asked = asked.load(Ordering::SeqCst);
    assert!(
        (ROTATIONS..ended.runs).contains(&asked),
        "asked {asked} times: for each connection, and not for each run"
    );
}

/// Without asking, the same load fails: the test above can fail.
#[tokio::test(flavor = "multi_thread")]
async fn fixed_passwords_fail_after_a_rotation() {
    let role = Role::new(server!()).await;
    let store = role.store(PostgresStore::builder(role.url(":first")));
    assert!(store.read(&key("before")).await.is_ok());
    role.rotate(1).await;
    // The first call may still use a connection that the server is closing.
    let _ = store.read(&key("after")).await;
    let error = store.read(&key("after")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
}

/// The code that returns the password fails: nothing was sent, and the call may succeed later.
#[tokio::test(flavor = "multi_thread")]
async fn missing_passwords_are_definite_and_transient() {
    let role = Role::new(server!()).await;
    let fails = || async { Err::<String, _>(io::Error::other("AccessDenied")) };
    let store = role.store(PostgresStore::builder(role.url("")).password_from(fails));
    let error = store.read(&key("any")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, false));
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.to_string().contains("password") && cause.contains("AccessDenied"), "{error}: {cause}");
    // A password that stays wrong is refused, as without asking.
    let wrong = || async { Ok::<_, Infallible>("wrong".to_owned()) };
    let store = role.store(PostgresStore::builder(role.url("")).password_from(wrong));
    assert_eq!(store.read(&key("any")).await.unwrap_err().kind(), StoreErrorKind::Rejected);
}
