//! The function's process: started behind the proxy, with the signals that this process gets, and ended with its code.

use std::{ffi::OsString, io, net::SocketAddr, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

/// The variable that tells a runtime where the Runtime API is.
pub(crate) const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";

/// Starts the function's runtime, which finds the proxy at `address`.
///
/// # Errors
///
/// If there's no such program, or it can't be started.
pub(crate) fn start(command: &[OsString], address: SocketAddr) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(program).args(arguments).env(RUNTIME_API, address.to_string()).spawn()
}

/// Waits for the process to end, and passes signals on to it. Returns the exit code as a shell does.
///
/// # Errors
///
/// If the process can't be waited for.
pub(crate) async fn ended(mut child: Child) -> io::Result<u8> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    loop {
        let signal = tokio::select! {
            ended = child.wait() => return ended.map(code),
            _ = terminate.recv() => "TERM",
            _ = interrupt.recv() => "INT",
            _ = hang_up.recv() => "HUP",
        };
        let Some(id) = child.id() else { continue };
        pass(signal, id).await;
    }
}

/// Sends a signal. The standard library can only kill, and a call to the C library would be unsafe code.
async fn pass(signal: &str, id: u32) {
    let sent = Command::new("/bin/kill").args(["-s", signal, &id.to_string()]).status().await;
    if !sent.is_ok_and(|status| status.success()) {
        tracing::warn!(signal, "couldn't pass a signal on to the function");
    }
}

fn code(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(of_signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
