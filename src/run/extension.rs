//! Extends a claim's lease while its handler runs.

use std::future::pending;

use crate::run::{
    claim::{Claim, Extended},
    watch::CutOff,
};

/// Extends the claim's lease whenever a third of its length has passed, for as long as this future is polled.
///
/// A failed extension is retried after a twelfth of the length, so that several attempts fit in before the handler is
/// cut off. The future ends when the claim is lost.
pub(super) async fn keep(claim: &mut Claim, cut_off: &CutOff) {
    let limits = *claim.limits();
    let Some(length) = limits.lease_extension else { return pending().await };
    let interval = length / 3;
    // Part of the lease has passed already: acquiring the claim took time. If an `on_declined` closure runs now, the
    // handler has run before it.
    let due = claim.held().lock.lease_until.saturating_sub(length - interval);
    let mut wait = claim.driver().now().until(due);
    loop {
        let clock = claim.driver().clock();
        clock.sleep(wait).await;
        let until = limits.lease_from(clock.now(), length);
        if until <= claim.held().lock.lease_until {
            // The lease already ends as late as the deadline allows, or the clock was set back. So don't extend it.
            return pending().await;
        }
        wait = match claim.extend_until(until).await {
            Extended::Until(lease_until) => {
                cut_off.move_to(limits.cut_off(lease_until));
                interval
            }
            Extended::NotNow => length / 12,
            Extended::Lost => return,
        };
    }
}
