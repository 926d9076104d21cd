//! Waits for another delivery's outcome, if the settings allow it.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{
        Begun, Engine,
        drive::{Refused, RefusedBy, spread},
    },
    error::ErrorKind,
    fingerprint::Fingerprint,
    invocation::{Invocation, refuse_within_itself},
    key::StoredKey,
    observe,
    policy::OnInProgress,
    record::Owner,
    time::Timestamp,
};

/// The first pause. Each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Claims `key`, or finds its outcome. While another claim is live, polls for as long as the settings say.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
    ) -> Result<Begun, Refused> {
        refuse_within_itself(key).inspect_err(|error| observe::refused(key, error, false))?;
        let until = self.waits_until(invocation);
        let mut asked = 0;
        loop {
            let refused = match self.ask(key, fingerprint, invocation).await {
                Ok(begun) => return Ok(begun),
                Err(refused) => refused,
            };
            if refused.error.kind() == ErrorKind::InProgress
                && let Some(until) = until
            {
                let pause = pause(asked, (self.owners)()?);
                asked += 1;
                let left = self.clock.now().until(until);
                if !left.is_zero() {
                    // The last pause ends with the budget, and one more attempt follows.
                    self.clock.sleep(pause.min(left)).await;
                    continue;
                }
            }
            observe::refused(key, &refused.error, refused.by != RefusedBy::Rule);
            return Err(refused);
        }
    }

    /// When waiting ends: at most half of the time that's left. The last attempt may find the key free, and
    /// then the handler has the other half.
    fn waits_until(&self, invocation: &Invocation) -> Option<Timestamp> {
        let OnInProgress::Wait(budget) = self.settings.on_in_progress else { return None };
        let now = self.clock.now();
        let half = invocation.deadline().map(|deadline| now.until(deadline) / 2);
        let until = now.saturating_add(half.map_or(budget, |half| half.min(budget)));
        Some(invocation.last_wait().map_or(until, |last| last.min(until)))
    }
}

/// The owner's random bits spread the waiters.
fn pause(nth: u32, owner: Owner) -> Duration {
    spread(FIRST_PAUSE.saturating_mul(1 << nth.min(5)).min(LONGEST_PAUSE), owner.as_bytes()[0])
}
