//! Keeps the operations of a round together: a long fault begins when all their handlers have started, and the
//! operations continue when it's over.

use std::{sync::Arc, time::Duration};

use lambda_idempotency_rehearsal::clock;
use tokio::sync::{Barrier, watch};

/// The time that an invocation has left when the fault begins, except for the time that the handlers take to start.
pub(super) const TIME_LEFT: Duration = Duration::from_secs(30);
/// One operation's part in a round.
#[derive(Clone, Debug)]
pub(super) struct Long {
    pub(super) round: Arc<Round>,
    /// How long after all handlers have started this operation's handler returns.
    pub(super) returns_after: Duration,
    pub(super) settle_within: Option<Duration>,
}

/// A round of operations, which all go through one long fault.
#[derive(Debug)]
pub(super) struct Round {
    /// All handlers have started.
    started: Barrier,
    /// Whether the fault is over, and the server answers again.
    is_over: watch::Sender<bool>,
}

impl Round {
    /// Creates a round of this many operations.
    pub(super) fn new(operations: u32) -> Self {
        let parties = usize::try_from(operations).unwrap_or(usize::MAX).saturating_add(1);
        Self { started: Barrier::new(parties), is_over: watch::Sender::new(false) }
    }

    /// Waits until all handlers have started.
    pub(super) async fn all_have_started(&self) {
        self.started.wait().await;
    }

    /// Lets the operations continue, because the fault is over, and the server answers again.
    pub(super) fn end(&self) {
        self.is_over.send_replace(true);
    }
}

impl Long {
    /// Waits in the handler until it should return.
    pub(super) async fn handle(&self) {
        self.round.all_have_started().await;
        clock::pause(self.returns_after).await;
    }

    /// Waits until the fault is over, and the server answers again.
    pub(super) async fn is_over(&self) {
        // The wait fails only if the sender is dropped, and this round owns the sender.
        let _ = self.round.is_over.subscribe().wait_for(|is_over| *is_over).await;
    }
}
