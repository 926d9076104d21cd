//! A Redis on loopback: Debian's `redis-server`, or any program of that name, started by the test.
//!
//! The server ends with the test process, even if the process is killed. A shell script starts the server, waits until
//! its own standard input closes, and then stops the server. This module uses only the standard library, so it needs
//! no feature.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use crate::{ports::free_port, skip::skip};

/// The shell script that runs the server. When the script's standard input closes, it stops the server and deletes the
/// server's files. A line of input stops, kills or starts the server, or makes the script keep the files.
const SUPERVISOR: &str = r#"
trap : HUP INT TERM
folder=$1; shift
run() {
    redis-server "$@" >>"$folder/log" 2>&1 &
    server=$!
}
end() {
    [ -z "$server" ] || { kill "-$1" "$server"; wait "$server"; } 2>/dev/null
    server=
}
run "$@"
while read -r line; do
    case $line in
        stop) end TERM ;;
        crash) end KILL ;;
        start) run "$@" ;;
        keep) keep=1 ;;
    esac
done
end KILL
[ -n "$keep" ] || rm -rf "$folder"
"#;

/// A server with its own data, in memory only unless its settings say otherwise.
#[derive(Debug)]
pub struct RedisServer {
    supervisor: Child,
    address: SocketAddr,
    tls_port: u16,
    folder: PathBuf,
}

/// The server that a test binary's tests share. If `redis-server` isn't installed, returns `None`, or panics if `CI`
/// is `true`.
pub fn shared() -> Option<&'static RedisServer> {
    static SHARED: OnceLock<Option<RedisServer>> = OnceLock::new();
    SHARED.get_or_init(|| RedisServer::start(&[])).as_ref()
}

/// Whether `program` is installed. If it isn't, prints a message, or panics in CI.
pub fn has(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok() {
        return true;
    }
    skip(format_args!("{program} is missing; install it: apt-get install {package}"));
    false
}

/// Whether Redis is installed. If it isn't, prints a message, or panics in CI.
pub fn is_installed() -> bool {
    has("redis-server", "redis-server")
}

impl RedisServer {
    /// Starts a server with the settings that all tests share, and with `settings`, in the form
    /// `["--name", "value", …]`.
    pub fn start(settings: &[&str]) -> Option<Self> {
        Self::start_in(&new_folder(), settings, false)
    }

    /// Starts a server with a second port for TLS. `settings` name files in `folder`, such as the server's certificate.
    /// When the server is dropped, the folder is deleted.
    pub fn start_with_tls(folder: &Path, settings: &[&str]) -> Option<Self> {
        Self::start_in(folder, settings, true)
    }

    fn start_in(folder: &Path, settings: &[&str], has_tls: bool) -> Option<Self> {
        if !is_installed() {
            let _ = fs::remove_dir_all(folder);
            return None;
        }
        for _ in 0..20 {
            if let Some(server) = Self::start_once(folder, settings, has_tls) {
                return Some(server);
            }
        }
        panic!("redis-server didn't start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default());
    }

    /// Tries once to start the server. Another process may take the free port before the server does. The caller then
    /// tries again, with another port.
    fn start_once(folder: &Path, settings: &[&str], has_tls: bool) -> Option<Self> {
        let (port, tls_port) = (free_port(), if has_tls { free_port() } else { 0 });
        let (port_text, tls_text) = (port.to_string(), tls_port.to_string());
        let in_memory =
            ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"];
        let mut arguments = vec!["--port", &port_text, "--tls-port", &tls_text];
        arguments.extend(in_memory);
        arguments.push(folder.to_str().expect("a folder in UTF-8"));
        arguments.extend(settings);
        Self::spawn(folder, port, tls_port, &arguments)
    }

    /// Starts a Sentinel that watches `primary` under the name `records`. It needs no other Sentinel to promote a
    /// replica. If the primary doesn't answer, the Sentinel waits a minute before it starts a failover, since a busy
    /// machine may only pause the primary. A test that kills the primary then shortens `down-after-milliseconds`.
    pub fn sentinel_of(primary: SocketAddr) -> Self {
        let folder = new_folder();
        for _ in 0..20 {
            let port = free_port();
            let file = folder.join("sentinel.conf");
            let settings = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor records {} {} 1\n\
                 sentinel down-after-milliseconds records 60000\nsentinel failover-timeout records 3000\n",
                folder.display(),
                primary.ip(),
                primary.port()
            );
            fs::write(&file, settings).expect("a file in the folder");
            let arguments = [file.to_str().expect("a folder in UTF-8"), "--sentinel"];
            if let Some(sentinel) = Self::spawn(&folder, port, 0, &arguments) {
                return sentinel;
            }
        }
        panic!("the Sentinel didn't start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default());
    }

    /// Starts `redis-server` with these arguments, and waits until it accepts connections.
    fn spawn(folder: &Path, port: u16, tls_port: u16, arguments: &[&str]) -> Option<Self> {
        fs::create_dir_all(folder).expect("a folder for the server");
        // An earlier attempt that failed leaves its log.
        let _ = fs::remove_file(folder.join("log"));
        let supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(folder)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // In its own process group, the supervisor doesn't get the terminal's interrupt. The tests get the
            // interrupt and end, which ends the supervisor too.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let (address, folder) = (([127, 0, 0, 1], port).into(), folder.to_owned());
        let mut server = Self { supervisor, address, tls_port, folder: folder.clone() };
        for _ in 0..3_000 {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            if ["Ready to accept connections", "Server initialized", "+monitor master"]
                .iter()
                .any(|ready| log.contains(ready))
            {
                if TcpStream::connect(server.address).is_ok() {
                    return Some(server);
                }
            } else if log.contains("Failed listening") || log.contains("FATAL CONFIG") {
                eprintln!("{log}");
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // Keep the folder's files for the next attempt.
        server.tell("keep");
        None
    }

    /// Begins to stop the server, which saves its data if its settings say so.
    pub fn stop(&mut self) {
        self.tell("stop");
    }

    /// Kills the server.
    pub fn crash(&mut self) {
        self.tell("crash");
    }

    /// Begins to start the stopped server, with the same port and folder.
    pub fn start_again(&mut self) {
        self.tell("start");
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.supervisor.stdin.as_mut().expect("a pipe"), "{line}").expect("the supervisor runs");
    }

    /// The server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's URL, without a password.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The server's TLS port.
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The folder with the server's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a command, and returns its answer as text: one line per array element, and an error with a `-` in front.
    pub fn run(&self, command: &[&str]) -> String {
        self.run_as(&[], command)
    }

    /// Like [`run`](Self::run), but first sends AUTH with `credentials`, unless they're empty.
    pub fn run_as(&self, credentials: &[&str], command: &[&str]) -> String {
        let mut stream = TcpStream::connect(self.address).expect("the server accepts connections");
        let mut request = Vec::new();
        if !credentials.is_empty() {
            let auth: Vec<&str> = ["AUTH"].iter().chain(credentials).copied().collect();
            request.extend(packed(&auth));
        }
        request.extend(packed(command));
        stream.write_all(&request).expect("the server takes a command");
        let mut reader = BufReader::new(stream);
        if !credentials.is_empty() {
            assert_eq!(answer(&mut reader), "OK");
        }
        answer(&mut reader)
    }

    /// How often the server has run `command`, by its own count.
    pub fn calls(&self, command: &str) -> u64 {
        let statistics = self.run(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let line = statistics.lines().find_map(|line| line.strip_prefix(&prefix));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }
}

/// Closes the supervisor's standard input, so that the supervisor stops the server.
impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// A folder that no other test uses.
pub fn new_folder() -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("idempotency-redis-{}-{count}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    folder
}

fn packed(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).into_bytes());
    }
    bytes
}

fn answer(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("an answer");
    let (kind, rest) = line.trim_end().split_at(1.min(line.len()));
    match kind {
        "+" | ":" => rest.to_owned(),
        "$" if rest == "-1" => "(nil)".to_owned(),
        "$" => {
            let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
            reader.read_exact(&mut bytes).expect("the complete answer");
            bytes.truncate(bytes.len() - 2);
            String::from_utf8_lossy(&bytes).into_owned()
        }
        "*" => {
            let count = rest.parse().unwrap_or(0);
            (0..count).map(|_| answer(reader)).collect::<Vec<_>>().join("\n")
        }
        _ => line.trim_end().to_owned(),
    }
}
