//! Checks that a second signal ends `idempotency-rehearse` while the DynamoDB of `--endpoint-url` doesn't answer
//! DeleteTable, and that the library itself installs no signal handlers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{self, Command, Stdio},
    sync::mpsc::{self, Sender},
    thread,
    time::Duration,
};

#[cfg(target_os = "linux")]
use lambda_idempotency_rehearsal::{self as rehearsal, Arguments};

const SOON: Duration = Duration::from_secs(60);

/// Answers every request except DeleteTable as if the table existed and were active.
fn serve(listener: &TcpListener, deleting: &Sender<&str>) {
    let mut stalled = Vec::new();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        if read(&stream).contains("DynamoDB_20120810.DeleteTable") {
            stalled.push(stream);
            let _ = deleting.send("deleting");
            continue;
        }
        let body = r#"{"Table":{"TableStatus":"ACTIVE"}}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    }
}

/// Reads a whole request, and returns its head.
fn read(stream: &TcpStream) -> String {
    let (mut reader, mut head, mut length) = (BufReader::new(stream), String::new(), 0_usize);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    head
}

fn send(signal: &str, process: u32) {
    let kill = format!("kill -s {signal} {process}");
    assert!(Command::new("sh").arg("-c").arg(kill).status().unwrap().success());
}

#[test]
fn second_signal_ends_a_stalled_removal() {
    interrupt_twice("TERM", "INT");
}

#[test]
fn closed_terminal_interrupts_the_rehearsal() {
    interrupt_twice("HUP", "QUIT");
}

fn interrupt_twice(first: &str, second: &str) {
    let folder = env::temp_dir().join(format!("interrupted-{first}-{}", process::id()));
    fs::create_dir(&folder).unwrap();
    let (event, started) = (folder.join("event.json"), folder.join("started"));
    fs::write(&event, "{}").unwrap();
    assert!(Command::new("mkfifo").arg(&started).status().unwrap().success());
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let function = format!("echo started > {}; exec sleep 600", started.display());

    let (reached, steps) = mpsc::channel();
    let deleting = reached.clone();
    thread::spawn(move || serve(&listener, &deleting));
    let rehearsal = Command::new(env!("CARGO_BIN_EXE_idempotency-rehearse"))
        .args(["--endpoint-url", &url, "--event"])
        .arg(&event)
        .args(["--", "sh", "-c", &function])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Opening the pipe blocks until the function opens it, too.
    thread::spawn(move || fs::read(started).map(|_| reached.send("started")));
    assert_eq!(steps.recv_timeout(SOON), Ok("started"));
    send(first, rehearsal.id());
    assert_eq!(steps.recv_timeout(SOON), Ok("deleting"));
    send(second, rehearsal.id());
    let ended = rehearsal.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{printed}");
    assert!(printed.contains("interrupted before all tables were deleted"), "{printed}");
    fs::remove_dir_all(folder).unwrap();
}

/// A test binary that rehearses must still end when it gets a signal.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn library_leaves_signals_to_its_caller() {
    let event = env::temp_dir().join(format!("no-handlers-{}.json", process::id()));
    fs::write(&event, "{}").unwrap();
    let words = ["--event", event.to_str().unwrap(), "--", "sh", "-c", "exit 1"];
    let arguments = Arguments::parse(&words).unwrap();
    let problem = rehearsal::faults(&arguments).await.unwrap_err().to_string();
    fs::remove_file(event).unwrap();
    assert!(problem.contains("ended before it asked for its first event"), "{problem}");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    for (name, number) in [("HUP", 1), ("INT", 2), ("QUIT", 3), ("TERM", 15)] {
        assert_eq!(caught & (1 << (number - 1)), 0, "the process catches SIG{name}");
    }
}
