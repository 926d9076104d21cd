//! A server that restarts, a primary that fails over to its standby, and a full disk: which records survive.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use lambda_idempotency::{
    StoredKey,
    store::{
        Lock, Outcome, PutOutcome, Record, State, Status, Store as _, StoreErrorKind, StoredResponse,
        postgres::PostgresStore,
    },
};
use testkit::puts;

use super::fixtures::{Server, completion, fresh_table, key, lock, make, server};

/// A call may take this long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until the condition `sql` holds at `server`.
async fn until(server: &Server, sql: &str) {
    let client = server.client().await;
    for _ in 0..600 {
        if client.query_one(&format!("SELECT {sql}"), &[]).await.unwrap().get::<_, bool>(0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("this never became true: {sql}");
}

/// Creates a store on a new table. The store's URL has both servers, the standby first.
async fn on_both(primary: &Server, standby: &Server, attributes: &str) -> PostgresStore {
    let (own, other) = (format!(":{}/", primary.port()), standby.port());
    let hosts = primary.url().replace(&own, &format!(":{other},127.0.0.1:{}/", primary.port()));
    let builder = PostgresStore::builder(hosts + attributes).table(fresh_table());
    let store = builder.connect_timeout(PATIENCE).statement_timeout(PATIENCE).build().unwrap();
    store.create_table().await.unwrap();
    store
}

/// Reads the record, and retries while the server is unavailable.
async fn found(store: &PostgresStore, name: &str) -> Option<Record> {
    for _ in 0..600 {
        match store.read(&key(name)).await {
            Ok(record) => return record,
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server is still unavailable");
}

/// Completes the claim, and retries while the server is unavailable. A call may also report the server as unavailable
/// because it used a connection that the crash has cut.
async fn settle(store: &PostgresStore, key: &StoredKey, lock: &Lock) {
    let completion = completion(lock);
    for _ in 0..600 {
        match store.put(key, &completion).await {
            Ok(settled) => return assert_eq!(settled, PutOutcome::Applied),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server is still unavailable");
}

/// Waits until nothing listens at the server's port.
async fn until_gone(server: &Server) {
    for _ in 0..3000 {
        if std::net::TcpStream::connect(("127.0.0.1", server.port())).is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the server is still running");
}

#[tokio::test]
async fn a_killed_server_keeps_its_records() {
    let Some(mut server) = Server::start("") else { return };
    let store = server.store(|builder| builder).await;
    let lock = lock();
    make(&store, &key("done"), &puts::claim(lock.clone())).await;
    make(&store, &key("done"), &completion(&lock)).await;
    make(&store, &key("begun"), &puts::claim(lock.clone())).await;
    server.crash();
    until_gone(&server).await;
    server.start_again();
    assert_eq!(found(&store, "done").await.unwrap().status(), Status::Completed);
    settle(&store, &key("begun"), &lock).await;
}

/// With asynchronous replication, the primary may acknowledge writes that its standby never gets.
#[tokio::test]
async fn an_asynchronous_standby_can_lose_writes() {
    let Some(mut primary) = Server::start("") else { return };
    let standby = primary.standby();
    let store = on_both(&primary, &standby, "?target_session_attrs=read-write").await;
    let (key, lock) = (key("half"), lock());
    make(&store, &key, &puts::claim(lock.clone())).await;
    until(&standby, &format!("to_regclass('{}') IS NOT NULL", store.table())).await;
    until(&standby, &format!("EXISTS (SELECT FROM {})", store.table())).await;
    // The standby stops receiving writes.
    let operator = standby.client().await;
    operator.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
    until(&standby, "pg_reload_conf()").await;
    until(&standby, "NOT EXISTS (SELECT FROM pg_stat_wal_receiver)").await;
    make(&store, &key, &completion(&lock)).await;

    primary.crash();
    until_gone(&primary).await;
    until(&standby, "pg_promote()").await;
    assert_eq!(found(&store, "half").await.unwrap().status(), Status::Started, "the completion is lost");
}

/// A 4 MB file system.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts the file system. If this process may not mount, prints a message and returns `None`.
    fn new(uid: u32, gid: u32) -> Option<Self> {
        let folder = std::env::temp_dir().join(fresh_table());
        fs::create_dir(&folder).unwrap();
        let options = format!("size=4m,mode=0700,uid={uid},gid={gid}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder);
        if mount.output().is_ok_and(|done| done.status.success()) {
            return Some(Self(folder));
        }
        eprintln!("SKIPPED: this test mounts a small file system, which only root can do");
        let _removed = fs::remove_dir(&folder);
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.0).output();
        // If the server is still running, it may have written files to the folder after the unmount.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_until_freed() {
    let server = server!();
    let operator = server.client().await;
    let folder: String = operator.query_one("SHOW data_directory", &[]).await.unwrap().get(0);
    let owner = fs::metadata(folder).unwrap();
    let Some(disk) = SmallDisk::new(owner.uid(), owner.gid()) else { return };
    let store = server.store(|builder| builder).await;
    let table = store.table();
    let space = format!("CREATE TABLESPACE {table}_s LOCATION '{}'", disk.0.display());
    operator.batch_execute(&space).await.unwrap();
    operator.batch_execute(&format!("ALTER TABLE {table} SET TABLESPACE {table}_s")).await.unwrap();
    let lock = lock();
    make(&store, &key("kept"), &puts::claim(lock.clone())).await;
    make(&store, &key("kept"), &completion(&lock)).await;

    let mut state = 7_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let response: Vec<u8> = (0..200_000).map(|_| noise()).collect();
    let outcome = Outcome::Retained(StoredResponse::new(response.into()));
    let large = Record { state: State::Completed(outcome), ..super::fixtures::finished() };
    let small = super::fixtures::lock();
    for write in [puts::conclude(None, large), puts::claim(small)] {
        let mut refused = None;
        for nth in 0..20_000 {
            match store.put(&key(&format!("{nth} {}", write.record().status().as_str())), &write).await {
                Ok(written) => assert_eq!(written, PutOutcome::Applied),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let refused = refused.expect("a full disk must refuse a write");
        assert_eq!((refused.kind(), refused.is_maybe_applied()), (StoreErrorKind::Unavailable, false));
        assert!(format!("{refused:?}").contains("53100"), "{refused:?}");
    }
    assert_eq!(found(&store, "kept").await.unwrap().status(), Status::Completed);
    let replayed = store.put(&key("kept"), &puts::claim(super::fixtures::lock())).await.unwrap();
    assert!(matches!(replayed, PutOutcome::Refused(Some(record)) if record.owner == lock.owner));

    // Moves the table to a larger disk.
    operator.batch_execute(&format!("ALTER TABLE {table} SET TABLESPACE pg_default")).await.unwrap();
    make(&store, &key("after"), &puts::claim(lock.clone())).await;
    operator.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
    operator.batch_execute(&format!("DROP TABLESPACE {table}_s")).await.unwrap();
}

/// The store finds the primary among the hosts in its URL, and the promoted standby after a failover. It does
/// so with and without `target_session_attrs`. The URL lists the standby first.
#[tokio::test]
async fn a_promoted_standby_is_found() {
    for attributes in ["?target_session_attrs=read-write", ""] {
        let Some(mut primary) = Server::start("") else { return };
        let standby = primary.standby();
        let store = on_both(&primary, &standby, attributes).await;
        let (key, lock) = (key("kept"), lock());
        make(&store, &key, &puts::claim(lock.clone())).await;
        let table = store.table();
        let has_followed = format!("to_regclass('{table}') IS NOT NULL");
        until(&standby, &has_followed).await;
        until(&standby, &format!("EXISTS (SELECT FROM {table})")).await;

        primary.crash();
        until_gone(&primary).await;
        until(&standby, "pg_promote()").await;
        let began = Instant::now();
        settle(&store, &key, &lock).await;
        assert!(began.elapsed() < 3 * PATIENCE, "{:?}", began.elapsed());
        let record = store.read(&key).await.unwrap().unwrap();
        assert_eq!((record.status(), record.owner), (Status::Completed, lock.owner));
        make(&store, &super::fixtures::key("new"), &puts::claim(super::fixtures::lock())).await;
    }
}

/// The store stops waiting for a silent host early enough to try the next host.
#[tokio::test]
async fn silent_hosts_leave_time_for_others() {
    let Some(server) = Server::shared() else { return };
    let own = format!("127.0.0.1:{}/", server.port());
    // Fills the socket's queue, so that the kernel drops further connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = socket.listen(1).unwrap();
    let address = silent.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(one)) =
        tokio::time::timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address)).await
    {
        queued.push(one);
    }
    let hosts = server.url().replace(&own, &format!("{address},{own}"));
    let store = PostgresStore::builder(hosts + "?sslmode=disable").table(fresh_table());
    let store = store.connect_timeout(PATIENCE).statement_timeout(PATIENCE).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("next"), &puts::claim(lock())).await;
}
