//! A real PostgreSQL on a free loopback port, for the tests of one process. The server ends with the process, even if
//! the process is killed.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use crate::{ports::free_port, skip::skip};

use lambda_idempotency::store::{
    Owner, StoreBuilder,
    postgres::{
        PostgresStore,
        tokio_postgres::{self, Client},
    },
};

pub(crate) const PASSWORD: &str = "correct-horse";
/// The environment variable that names a folder with a new server's data. Tests copy the data, instead of running
/// `initdb`.
const TEMPLATE: &str = "IDEMPOTENCY_TEST_POSTGRES_DATA";
/// How to install PostgreSQL.
const INSTALL: &str = "install PostgreSQL: apt-get install postgresql (its servers don't need to run)";
/// The shell script that runs the server. It stops the server when the script's standard input closes, which happens
/// even if the tests' process is killed. A line of input starts, stops or crashes the server, or makes it a standby.
const SUPERVISOR: &str = r#"
trap : HUP INT TERM
run() {
    "$1" -D "$2/data" -k "" >>"$2/log" 2>&1 &
    server=$!
}
end() {
    [ -z "$server" ] || { kill "-$1" $server; wait $server; }
    server=
}
server=
while read -r line; do
    case $line in
        standby) end INT; touch "$2/data/standby.signal"; run "$@" ;;
        stop) end INT ;;
        crash) end QUIT ;;
        start) end INT; run "$@" ;;
    esac
done
end QUIT
rm -rf "$2"
"#;

/// A PostgreSQL server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    log: PathBuf,
    /// The server runs until the supervisor's input closes.
    supervisor: Child,
}

/// The user that runs the server if the tests run as root, since PostgreSQL refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Server {
    /// The server that all tests of this process share. If PostgreSQL isn't installed, prints a message and returns
    /// `None`, or panics if `CI` is `true`.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start("")).as_ref()
    }

    /// Starts another server, with these additional lines of configuration.
    pub fn start(configuration: &str) -> Option<Self> {
        Self::start_with(configuration, &[])
    }

    /// Starts another server, with these files in its data folder. Only the server's user can read the files.
    pub fn start_with(configuration: &str, files: &[(&str, &[u8])]) -> Option<Self> {
        let programs = installed()?;
        let name = format!("idempotency-postgres-{}", Owner::random().unwrap());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let user = other_user();
        if let Some(user) = user {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid)).unwrap();
        }
        let data = folder.join("data");
        make_data(&programs, &folder, user);
        for (name, content) in files {
            let path = data.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some(user) = user {
                std::os::unix::fs::chown(&path, Some(user.uid), Some(user.gid)).unwrap();
            }
        }
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nfsync = off\nmax_connections = 200\nshared_buffers = 32MB\n\
             autovacuum = off\nshared_preload_libraries = 'pg_stat_statements'\n{configuration}\n"
        );
        fs::OpenOptions::new()
            .append(true)
            .open(data.join("postgresql.conf"))
            .unwrap()
            .write_all(settings.as_bytes())
            .unwrap();
        Some(Self::run(&programs, folder, user, "ready to accept connections"))
    }

    /// Starts a standby that follows this server until the standby is promoted.
    pub fn standby(&self) -> Self {
        let programs = programs().unwrap();
        let folder = std::env::temp_dir().join(format!("idempotency-standby-{}", Owner::random().unwrap()));
        fs::create_dir(&folder).unwrap();
        let user = other_user();
        if let Some(user) = user {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid)).unwrap();
        }
        let mut copy = command(&programs.join("pg_basebackup"), &folder, user);
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--host=127.0.0.1"]);
        copy.args(["--username=test", &format!("--port={}", self.port)]).env("PGPASSWORD", PASSWORD);
        let made = copy.arg("--pgdata").arg(folder.join("data")).output().unwrap();
        assert!(made.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&made.stderr));
        Self::run(&programs, folder, user, "ready to accept read-only connections")
    }

    /// Starts the server in `folder`, and waits until the server's log contains `ready`.
    fn run(programs: &Path, folder: PathBuf, user: Option<User>, ready: &str) -> Self {
        let mut supervisor = command(Path::new("/bin/sh"), &folder, user);
        supervisor.args(["-c", SUPERVISOR, "sh"]).arg(programs.join("postgres")).arg(&folder);
        // In its own process group, the supervisor doesn't get the terminal's interrupt. The tests get the
        // interrupt and end, which ends the supervisor too.
        supervisor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let log = folder.join("log");
        let mut server = Self { port: 0, log, supervisor: supervisor.spawn().unwrap() };
        // Another process may take the free port before the server does.
        for _ in 0..5 {
            server.port = free_port();
            let settings = folder.join("data/postgresql.conf");
            let mut settings = fs::OpenOptions::new().append(true).open(settings).unwrap();
            settings.write_all(format!("port = {}\n", server.port).as_bytes()).unwrap();
            server.start_again();
            if server.says(ready) {
                return server;
            }
        }
        panic!("PostgreSQL didn't start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default());
    }

    /// Begins to stop the server, which ends its sessions. Committed data stays.
    pub fn stop(&mut self) {
        self.tell("stop");
    }

    /// Begins to stop the server as in a crash, without notice to its sessions.
    pub fn crash(&mut self) {
        self.tell("crash");
    }

    /// Begins to start the server again. If the server still runs, this stops it first.
    pub fn start_again(&mut self) {
        self.tell("start");
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.supervisor.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Makes the server a standby that rejects writes, as after a failover.
    pub fn become_standby(&mut self) {
        self.tell("standby");
        assert!(self.says("ready to accept read-only connections"), "the server didn't become a standby");
    }

    /// Waits until the server's log contains `what` and the server accepts connections. A connection alone isn't
    /// enough, since a starting server accepts connections too, but rejects their queries.
    fn says(&self, what: &str) -> bool {
        for _ in 0..600 {
            let is_ready = fs::read_to_string(&self.log).is_ok_and(|log| log.contains(what));
            if is_ready && TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// The server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server's database at `port`, which is the server's own port or a proxy's.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://test:{PASSWORD}@127.0.0.1:{port}/postgres")
    }

    /// The URL of the server's database.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Creates a store on a new table that no other test uses. Its timeouts are long, unless `configure` changes them.
    pub async fn store(
        &self,
        configure: impl FnOnce(StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore>,
    ) -> PostgresStore {
        let builder = patient(PostgresStore::builder(self.url()).table(fresh_table()));
        let store = configure(builder).build().unwrap();
        store.create_table().await.unwrap();
        store
    }

    /// Opens a connection that bypasses the stores.
    pub async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

/// Makes the server's data in `folder`. `initdb` takes longer than most tests, so a program that runs each test in its
/// own process sets [`TEMPLATE`]. The first test then copies its new data to the folder that the variable names. The
/// other tests copy the data from there.
fn make_data(programs: &Path, folder: &Path, user: Option<User>) {
    let (data, template) = (folder.join("data"), std::env::var_os(TEMPLATE).map(PathBuf::from));
    if let Some(template) = template.as_ref().filter(|template| template.exists()) {
        return copy(template, &data);
    }
    fs::write(folder.join("password"), PASSWORD).unwrap();
    let mut initdb = command(&programs.join("initdb"), folder, user);
    initdb.args(["--auth=scram-sha-256", "--username=test", "--no-sync", "--locale=C", "--encoding=UTF8"]);
    initdb.arg("--pwfile").arg(folder.join("password")).arg("--pgdata").arg(&data);
    let made = initdb.output().unwrap();
    if !made.status.success() {
        let _removed = fs::remove_dir_all(folder);
        panic!("initdb failed: {}", String::from_utf8_lossy(&made.stderr));
    }
    if let Some(template) = template {
        let complete = template.with_extension(Owner::random().unwrap().to_string());
        copy(&data, &complete);
        // Another process may have written the template first.
        if fs::rename(&complete, template).is_err() {
            fs::remove_dir_all(complete).unwrap();
        }
    }
}

/// Copies a folder with its owner and permissions.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ended = self.supervisor.wait();
    }
}

/// Configures long timeouts, since a busy machine may pause the server or the test for seconds. The lock timeout must
/// be less than the statement timeout.
pub fn patient(builder: StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore> {
    let minute = Duration::from_secs(60);
    builder.connect_timeout(minute).statement_timeout(minute).lock_timeout(minute / 2)
}

/// A table name that no other test uses.
pub fn fresh_table() -> String {
    format!("test_{}", Owner::random().unwrap())
}

pub(crate) fn command(program: &Path, folder: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Whether PostgreSQL is installed. If it isn't, prints a message, or panics if `CI` is `true`.
pub fn is_installed() -> bool {
    installed().is_some()
}

fn installed() -> Option<PathBuf> {
    let programs = programs();
    if programs.is_none() {
        skip(format_args!("this test needs PostgreSQL, which isn't installed; {INSTALL}"));
    }
    programs
}

/// The folder with PostgreSQL's programs: that of the newest version from Debian's packages, or else the first one in
/// `PATH`.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    debian.sort_by_key(|bin| bin.parent()?.file_name()?.to_str()?.parse::<u32>().ok());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path);
    debian
        .into_iter()
        .rev()
        .chain(path)
        .find(|bin| bin.join("initdb").exists() && bin.join("postgres").exists())
}

/// The user to run the server as, if this process is root.
pub(crate) fn other_user() -> Option<User> {
    if fs::metadata("/proc/self").is_ok_and(|me| me.uid() != 0) {
        return None;
    }
    let mut users = String::new();
    fs::File::open("/etc/passwd").unwrap().read_to_string(&mut users).unwrap();
    ["postgres", "nobody"].into_iter().find_map(|name| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse::<u32>);
        Some(User { uid: numbers.next()?.ok()?, gid: numbers.next()?.ok()? })
    })
}
