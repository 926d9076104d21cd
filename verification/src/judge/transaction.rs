//! Checks that an ambiguous transaction is resent unchanged, and that different transactions have different
//! tokens.

use lambda_idempotency::{
    protocol::{Action, Event, Fault},
    store::PutOutcome,
};

use super::Step;
use crate::{
    invariants::{Flaws, Invariant},
    under_test::{Purpose, Sent, fits},
};

impl Step<'_> {
    /// Whether the last request is a transaction, or a conclusion without a transaction. Both are resent
    /// unchanged.
    pub(super) fn is_commit(&self) -> bool {
        self.has_run() && self.sent.is_some_and(is_commit)
    }

    /// Whether `action` resends the last request.
    pub(super) fn repeats(&self, action: &Action) -> bool {
        sent_by(action).is_some_and(|sent| self.sent == Some(&sent))
    }

    /// Checks that an ambiguous request is resent unchanged, and that a different request has another token.
    pub(super) fn token(&self, flaws: &mut Flaws) {
        let Some(next) = sent_by(self.action).filter(is_commit) else { return };
        let Some(before) = self.sent.filter(|before| is_commit(before)) else { return };
        let is_doubtful = matches!(self.event, Event::Failed(Fault { maybe_applied: true, .. }));
        let is_in_doubt = self.is_in_doubt || is_doubtful;
        let is_kept = if next == *before {
            // A transaction is resent only if it's ambiguous. A conclusion without writes has no token to
            // change.
            is_in_doubt || next.submission.is_none()
        } else {
            let is_named_anew = next.submission.is_none() || next.token() != before.token();
            is_named_anew && (!is_in_doubt || self.cannot_be_made(before))
        };
        flaws.unless(is_kept, Invariant::TokenKept);
    }

    /// Whether the event proves that the earlier request can no longer be applied.
    fn cannot_be_made(&self, before: &Sent) -> bool {
        match self.event {
            Event::Answered(PutOutcome::Refused(record)) | Event::Found(record) => {
                !fits(&before.put, record.as_ref())
            }
            _ => false,
        }
    }
}

fn is_commit(sent: &Sent) -> bool {
    sent.submission.is_some() || Purpose::of(&sent.put) == Purpose::Conclude
}

fn sent_by(action: &Action) -> Option<Sent> {
    let (put, submission) = match action {
        Action::Put(put) => (put, None),
        Action::Commit { put, submission } => (put, Some(*submission)),
        _ => return None,
    };
    Some(Sent { put: put.clone(), submission })
}
