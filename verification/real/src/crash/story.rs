//! One key's deliveries, what the harness did to them, and the waits for its leases.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lambda_idempotency_rehearsal::{
    clock::{self, millis},
    problem::{Problem, Result},
};

use super::{
    fleet::{Fleet, Handed, PATIENCE, Process},
    job::{GRACE, Job, MARGIN},
    judge::{Case, Deed, Delivery, Promise, Said},
    record::Stored,
};

/// Each wait until a claim is stale lasts this much longer, because the lease must have ended *more* than the margin
/// ago.
const CLEARLY_STALE: Duration = Duration::from_millis(1);
/// After every series of this many unsuccessful deliveries, the next deliveries get more time.
const PATIENT_TRIES: u32 = 8;
/// The event is delivered again after at most this many answers that weren't recorded.
const UNRECORDED: u32 = 2;

/// The deliveries of one key.
#[derive(Debug)]
pub(super) struct Story {
    fleet: Arc<Fleet>,
    job: Job,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    deliveries: Vec<Delivery>,
    seen: Vec<Stored>,
}

/// A run whose process is frozen.
#[derive(Debug)]
pub(super) struct Frozen {
    process: Process,
    handed: Handed,
    /// When the run's claim becomes stale, in ms since the epoch. Set even if the run has no claim.
    pub(super) stale_at: u64,
}

impl Story {
    /// Creates the story of a job that hasn't been delivered yet.
    pub(super) fn new(fleet: Arc<Fleet>, job: Job) -> Arc<Self> {
        Arc::new(Self { fleet, job, told: Mutex::default() })
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time limit of a delivery after `tries` unsuccessful deliveries. The limit grows, so that a slow
    /// machine can't stall a key forever.
    pub(super) fn limit_after(&self, tries: u32) -> Duration {
        self.fleet.form().limit() * (1 + tries / PATIENT_TRIES)
    }

    /// Hands the event to a process.
    pub(super) fn hand_to(&self, process: &mut Process, limit: Duration) -> Handed {
        process.deliver(&self.job.event(), limit)
    }

    /// Delivers the event to any process, and waits for the answer.
    pub(super) async fn deliver(&self, limit: Duration) -> Result<Said> {
        let _slot = self.fleet.slot().await?;
        let mut process = self.fleet.process().await?;
        let mut handed = self.hand_to(&mut process, limit);
        let said = process.said(&mut handed).await?;
        self.fleet.give_back(process).await;
        Ok(self.note(&handed, Deed::Spared, said))
    }

    /// Delivers the event until it's answered.
    pub(super) async fn deliver_until_answered(&self) -> Result<()> {
        let patience = clock::start();
        let mut unrecorded = 0;
        for tries in 0.. {
            let said = self.deliver(self.limit_after(tries)).await?;
            if !self.is_to_come_again(&said) {
                // An answer after the deadline may not be recorded. Lambda would have killed that run.
                let is_claimed = self.look().await?.is_some_and(|record| record.lease_until.is_some());
                if !is_claimed || unrecorded == UNRECORDED {
                    return Ok(());
                }
                unrecorded += 1;
            }
            // Time alone doesn't end this loop, because a delivery may wait long for a free slot.
            if tries >= 20 && patience.elapsed() > PATIENCE {
                break;
            }
            self.wait_for_lease().await?;
        }
        let words = format!("got no answer within {} s", PATIENCE.as_secs());
        Err(Problem::new(self.case(self.fleet.form().promise()).await?.violation(&words).to_string()))
    }

    /// Whether the event must be delivered again after this answer. If not, the judge decides if the answer is allowed.
    pub(super) fn is_to_come_again(&self, said: &Said) -> bool {
        said.is_not_now() || said.is_told_failure() || said.is_unknown() || *said == Said::Nothing
    }

    /// Sends SIGKILL.
    pub(super) async fn kill(&self, mut process: Process, mut handed: Handed) -> Result<Said> {
        let said = process.kill(&mut handed).await?;
        Ok(self.note(&handed, Deed::Killed, said))
    }

    /// Sends SIGSTOP. If the process has a claim, the claim is stale once `limit`, the grace and the margin have passed
    /// since the delivery.
    pub(super) async fn freeze(
        &self,
        process: Process,
        handed: Handed,
        delivered_at: u64,
        limit: Duration,
    ) -> Result<Frozen> {
        process.freeze().await?;
        let stale_at = delivered_at + millis(limit + GRACE + MARGIN + CLEARLY_STALE);
        Ok(Frozen { process, handed, stale_at })
    }

    /// Sends SIGCONT, and waits for the process's answer.
    pub(super) async fn thaw(&self, frozen: Frozen) -> Result<Said> {
        let Frozen { mut process, mut handed, .. } = frozen;
        let _slot = self.fleet.slot().await?;
        process.thaw().await?;
        let said = process.said(&mut handed).await?;
        self.fleet.give_back(process).await;
        Ok(self.note(&handed, Deed::Froze, said))
    }

    /// Notes the result of a delivery.
    pub(super) fn note(&self, handed: &Handed, deed: Deed, said: Said) -> Said {
        let delivery =
            Delivery { run: handed.run.clone(), deed, said: said.clone(), said_at: clock::now_ms() };
        self.told().deliveries.push(delivery);
        said
    }

    /// Reads the record. If it's completed, remembers it: the judge checks that the outcome is still there at the end.
    pub(super) async fn look(&self) -> Result<Option<Stored>> {
        let record = self.fleet.record(&self.job.key).await?;
        if let Some(record) = record.as_ref().filter(|record| record.is_completed()) {
            self.told().seen.push(record.clone());
        }
        Ok(record)
    }

    /// Waits until the current claim is stale, if there is one. The wait has a limit, in case the lease is wrong.
    pub(super) async fn wait_for_lease(&self) -> Result<()> {
        if let Some(lease_until) = self.look().await?.and_then(|record| record.lease_until) {
            // The lease of a run that didn't know includes that time.
            let is_included = self.told().deliveries.last().is_some_and(|last| last.said.is_unknown());
            let arrives = if is_included { Duration::ZERO } else { self.fleet.arrives() };
            let stale_at = lease_until.saturating_add(millis(arrives + MARGIN + CLEARLY_STALE));
            clock::pause_until(stale_at.min(clock::now_ms() + millis(PATIENCE / 10))).await;
        }
        Ok(())
    }

    /// Collects the evidence at the end.
    pub(super) async fn case(&self, promise: Promise) -> Result<Case> {
        let lines = self.fleet.effects.lines(&self.job.key).await?;
        let log = self.fleet.effects.log(&self.job.key).await;
        let record = self.fleet.record(&self.job.key).await?;
        let told = self.told();
        Ok(Case {
            key: self.job.key.clone(),
            promise,
            lines,
            log,
            deliveries: told.deliveries.clone(),
            seen: told.seen.clone(),
            record,
        })
    }
}
