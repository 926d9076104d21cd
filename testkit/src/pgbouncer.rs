//! A real PgBouncer in transaction mode, in front of a PostgreSQL server. It listens on a free loopback port, and ends
//! with the tests' process.

use std::{
    fs,
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use lambda_idempotency::store::Owner;

use super::{
    ports::free_port,
    postgres::{PASSWORD, Server, command, other_user},
    skip::skip,
};

/// How to install PgBouncer.
const INSTALL: &str = "install PgBouncer: apt-get install pgbouncer (its service doesn't need to run)";
/// The shell script that runs the pooler. It stops the pooler when the script's standard input closes, which happens
/// when the tests' process ends.
const SUPERVISOR: &str = r#"
trap : HUP INT TERM
"$1" -q "$2/pgbouncer.ini" >>"$2/log" 2>&1 &
read -r line
# A shell's background process ignores INT and QUIT.
kill -TERM $!
wait $!
rm -rf "$2"
"#;

/// A pooler with few sessions. Each transaction runs in any free session.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    supervisor: Child,
}

impl PgBouncer {
    /// Starts a pooler in front of `server`, with this many sessions per user and these additional lines of
    /// configuration. If PgBouncer isn't installed, returns `None`, or panics if `CI` is `true`.
    pub fn before(server: &Server, sessions: u32, configuration: &str) -> Option<Self> {
        let Some(program) = program() else {
            skip(format_args!("this test needs PgBouncer, which isn't installed; {INSTALL}"));
            return None;
        };
        let folder = std::env::temp_dir().join(format!("idempotency-pgbouncer-{}", Owner::random().unwrap()));
        let user = other_user();
        for _ in 0..5 {
            fs::create_dir(&folder).unwrap();
            if let Some(user) = user {
                std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid)).unwrap();
            }
            let (port, shown) = (free_port(), folder.display());
            let settings = format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
                 unix_socket_dir =\nauth_type = trust\nauth_file = {shown}/users\npool_mode = transaction\n\
                 default_pool_size = {sessions}\nmax_client_conn = 200\n{configuration}\n",
                server.port()
            );
            fs::write(folder.join("pgbouncer.ini"), settings).unwrap();
            // The tests' role, and the role `limited`, which some tests create.
            fs::write(folder.join("users"), format!("\"test\" \"{PASSWORD}\"\n\"limited\" \"{PASSWORD}\"\n"))
                .unwrap();
            let mut supervisor = command(Path::new("/bin/sh"), &folder, user);
            supervisor.args(["-c", SUPERVISOR, "sh"]).arg(&program).arg(&folder);
            supervisor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
            // If the pooler doesn't answer, its `drop` removes the folder, so that the next round can create the folder
            // again.
            let mut pooler = Self { port, supervisor: supervisor.spawn().unwrap() };
            if pooler.answers() {
                return Some(pooler);
            }
        }
        panic!("PgBouncer didn't start");
    }

    fn answers(&mut self) -> bool {
        (0..1200).any(|_| {
            thread::sleep(Duration::from_millis(25));
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        })
    }

    /// The pooler's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ended = self.supervisor.wait();
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.exists())
}
