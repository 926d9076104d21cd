//! The function's process: starts it behind the proxy, passes signals on to it, and returns its exit code.

use std::{ffi::OsString, io, net::SocketAddr, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    signal::unix::{Signal as Signals, SignalKind, signal},
};

/// The variable that tells a runtime where the Runtime API is.
pub(crate) const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";

/// The function's process, and the signals to pass on to it.
#[derive(Debug)]
pub(crate) struct Function {
    child: Child,
    terminate: Signals,
    interrupt: Signals,
    hang_up: Signals,
}

impl Function {
    /// Starts the function's runtime, which finds the proxy at `address`.
    ///
    /// # Errors
    ///
    /// If the program doesn't exist, or can't be started.
    pub(crate) fn start(command: &[OsString], address: SocketAddr) -> io::Result<Self> {
        // Install the signal handlers before the start. Without them, a signal would kill this process, and wouldn't
        // reach the function.
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hang_up = signal(SignalKind::hangup())?;
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program).args(arguments).env(RUNTIME_API, address.to_string()).spawn()?;
        Ok(Self { child, terminate, interrupt, hang_up })
    }

    /// Waits for the process to end, and passes signals on to it. Returns its exit code, or 128 + the fatal signal.
    ///
    /// # Errors
    ///
    /// If waiting for the process fails.
    pub(crate) async fn ended(mut self) -> io::Result<u8> {
        loop {
            let signal = tokio::select! {
                ended = self.child.wait() => return ended.map(code),
                _ = self.terminate.recv() => Signal::TERM,
                _ = self.interrupt.recv() => Signal::INT,
                _ = self.hang_up.recv() => Signal::HUP,
            };
            let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
            // The process may have ended just now.
            let _ = id.map(|id| kill_process(id, signal));
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(of_signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
