//! Virtual time. Only this file reads a clock or waits.

use std::{future::Future, time::Duration};

/// A runtime whose time is virtual: when nothing else is left to do, the time jumps to the next timer.
#[derive(Debug)]
pub(crate) struct VirtualTime {
    /// `Some` until the runtime is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    start: tokio::time::Instant,
}

impl VirtualTime {
    /// Starts a runtime whose time begins at zero.
    ///
    /// # Errors
    ///
    /// The operating system has no resources for a runtime.
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let start = {
            let _inside = runtime.enter();
            tokio::time::Instant::now()
        };
        Ok(Self { runtime: Some(runtime), start })
    }

    /// Runs `future` to completion. Call this only outside any other runtime.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        self.runtime.as_ref().map(|runtime| runtime.block_on(future))
    }

    /// The instant at which this runtime's time begins.
    pub(crate) fn beginning(&self) -> VirtualBeginning {
        VirtualBeginning(self.start)
    }
}

impl Drop for VirtualTime {
    fn drop(&mut self) {
        // An ordinary drop of a runtime panics inside an asynchronous test.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The instant at which a [`VirtualTime`] begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualBeginning(tokio::time::Instant);

impl VirtualBeginning {
    /// The virtual time that has passed since this instant. Call this only in code that the same [`VirtualTime`] runs.
    pub(crate) fn passed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Sleeps in the virtual time of the runtime that the caller runs in.
#[expect(clippy::disallowed_methods, reason = "only this file sleeps")]
pub(crate) async fn virtual_sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}
