//! At random moments, kills some processes, and freezes others until after their leases.
//!
//! A seed fixes the schedule: the jobs, which processes to kill or freeze, and when, as a fraction of a run's ordinary
//! length. The machine's timing decides which code runs at that moment, so one seed can interrupt different code each
//! time.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lambda_idempotency_rehearsal::{
    clock,
    function::Function,
    problem::{Context, Problem, Result},
};
use testkit::random::Random;
use tokio::task::JoinSet;

use super::{
    backend::Backend,
    fleet::{Fleet, Handed},
    form::Form,
    job::Job,
    judge::{Deed, Finding, Promise, Said, Violation},
    sabotage::Sabotage,
    story::{Frozen, Story},
};

/// How many keys the check works on at one time. Most of them wait for a lease to end.
const KEYS: usize = 40;
/// Replaces `KEYS` behind the layer, whose leases last longer, and before questions, which wait for effects to arrive.
const MANY_KEYS: usize = 160;
/// The percentage of deliveries whose process the harness plans to kill. If the harness only kills, `FROZEN` replaces it.
const KILLED: u64 = 60;
/// The percentage of deliveries whose process the harness plans to kill or freeze. Behind the layer and with
/// a gateway, it only kills.
const FROZEN: u64 = 70;
/// The percentage of redeliveries that don't wait for the lease.
const IMPATIENT: u64 = 20;
/// The assumed length of a run in µs, until a run has been measured.
const FIRST_GUESS_US: u64 = 60_000;
/// Up to this many slow runs aren't a violation, even if there are few keys: one pause of the machine can cause them.
const FEW_SLOW: u64 = 20;
/// The check stops after this many violations.
const ENOUGH: usize = 10;
/// While the check hasn't seen what its form is for, it goes on, up to this many times the number of kills. Which code
/// a kill interrupts depends on the machine, so a small number of kills can miss any one moment.
const GOES_ON: u64 = 20;

/// The size of the check, and its seed.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// How many processes to kill at least.
    pub kills: u64,
    /// The seed of the schedule.
    pub seed: u64,
}

/// The results on one server.
#[derive(Debug)]
pub struct Figures {
    /// The server.
    pub server: String,
    /// Where the effects are.
    pub form: Form,
    /// The seed.
    pub seed: u64,
    /// Keys judged.
    pub keys: u64,
    /// Processes killed.
    pub kills: u64,
    /// Processes frozen.
    pub freezes: u64,
    /// The sum of all keys' findings.
    pub found: Finding,
    /// The violations.
    pub violations: Vec<Violation>,
    /// The problem that ended the check early, after it had found violations. Without violations, the check returns the
    /// problem as its error.
    pub problem: Option<Problem>,
    /// How long the check took.
    pub wall: Duration,
}

impl Figures {
    /// Adds the problem that ended the check to the figures. If they contain no violations, returns the problem as an
    /// error instead.
    fn ended_by(self, problem: Problem) -> Result<Self> {
        if self.violations.is_empty() {
            return Err(Problem::new(format!("{}, seed {}: {problem}", self.server, self.seed)));
        }
        Ok(Self { problem: Some(problem), ..self })
    }

    /// Whether the check has seen a violation, or what the form is for.
    fn shown(&self) -> Result<()> {
        match missing(self.form, &self.found, self.keys) {
            Some(words) if self.violations.is_empty() => Err(Problem::new(format!(
                "{}: {words}, so the check has shown nothing\n{self}",
                self.form.name()
            ))),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, form, seed, keys, kills, freezes, found, violations, problem, wall } = self;
        let Finding { killed_before, killed_in_the_gap, killed_after, .. } = found;
        let name = form.name();
        writeln!(f, "{server}, {name}: {kills} kills and {freezes} freezes over {keys} keys (seed {seed})")?;
        writeln!(f, "  killed before the effect      {killed_before:>7}")?;
        writeln!(f, "  killed in the gap             {killed_in_the_gap:>7}")?;
        writeln!(f, "  killed after the completion   {killed_after:>7}")?;
        writeln!(f, "  claims after a key's first    {:>7}", found.later_claims)?;
        writeln!(f, "  frozen in the gap, and fenced {:>7}", found.fenced)?;
        writeln!(f, "  slower than their deadline    {:>7}", found.slow)?;
        writeln!(f, "  crashes in the gap            {:>7}", found.crashes_in_the_gap)?;
        let effects = found.effects;
        match form.promise() {
            Promise::AtLeastOnce => {
                let gap = found.crashes_in_the_gap;
                writeln!(
                    f,
                    "  effects                       {effects:>7}  (allowed: {keys} keys + {gap} crashes in the gap)"
                )?;
            }
            Promise::ExactlyOnce => {
                writeln!(
                    f,
                    "  effects                       {effects:>7}  (allowed: {keys} keys, one each)"
                )?;
            }
            Promise::Reconciled | Promise::Unreconciled => {
                writeln!(f, "  charges                       {effects:>7}  (for {keys} keys)")?;
            }
        }
        if form.gateway().is_some() {
            found.write_charges(f, *keys, form.promise())?;
        }
        writeln!(f, "  violations                    {:>7}", violations.len())?;
        if let Some(problem) = problem {
            writeln!(f, "  ended early: {problem}")?;
        }
        write!(f, "  wall time                     {:>7.1} s", wall.as_secs_f32())
    }
}

/// One run of the check on one server.
#[derive(Debug)]
struct Throw {
    fleet: Arc<Fleet>,
    numbers: Numbers,
    kills: AtomicU64,
    freezes: AtomicU64,
    /// How long an undisturbed run lasts, in µs, as a moving mean.
    ordinary_us: AtomicU64,
    judged: Mutex<Judged>,
}

#[derive(Debug, Default)]
struct Judged {
    keys: u64,
    found: Finding,
    violations: Vec<Violation>,
}

/// Kills `numbers.kills` processes on each server, or more until it has seen what the form is for, and returns the
/// figures of each server.
///
/// # Errors
///
/// If the check breaks off before it has found a violation, or hasn't seen what the form is for.
pub async fn check(
    function: &Function,
    backends: Vec<Backend>,
    numbers: Numbers,
    sabotage: Option<Sabotage>,
    form: Form,
) -> Result<Vec<Figures>> {
    let mut figures = Vec::new();
    for backend in backends {
        let fleet = Fleet::new(backend, function, sabotage, form).await?;
        let throw = Arc::new(Throw {
            fleet: Arc::clone(&fleet),
            numbers,
            kills: AtomicU64::new(0),
            freezes: AtomicU64::new(0),
            ordinary_us: AtomicU64::new(FIRST_GUESS_US),
            judged: Mutex::default(),
        });
        let started = clock::start();
        let thrown = throw.run().await;
        let disbanded = fleet.disband().await;
        let thrown = thrown.and(disbanded);
        let mut of_server = throw.figures(started.elapsed());
        let thrown = thrown.and_then(|()| of_server.shown());
        of_server.violations.extend(too_many_slow(of_server.found.slow, of_server.keys));
        if thrown.is_ok() && of_server.violations.is_empty() {
            let late = fleet.effects.keys().await?.into_iter();
            let words = |key| format!("key {key}: an effect appeared after all deliveries had been answered");
            of_server.violations.extend(late.map(|key| Violation::new(words(key))));
        }
        if let Err(problem) = thrown {
            of_server = of_server.ended_by(problem)?;
        }
        figures.push(of_server);
    }
    Ok(figures)
}

/// Returns a violation if too many runs answered so late that another run repeated their effect. A pause of the machine
/// can explain a few slow runs, but not many: it delays only the processes that run at that time. If the library never
/// recorded an outcome in time, there would be far more.
fn too_many_slow(slow: u64, keys: u64) -> Option<Violation> {
    (slow > FEW_SLOW && slow > keys / 2).then(|| {
        Violation::new(format!(
            "{slow} runs over {keys} keys answered so late that another run repeated their effect. Either the \
             library records outcomes too late, or the machine is too busy: run the check again on an idle machine"
        ))
    })
}

/// Names the event that this form's check must see, and hasn't seen yet.
fn missing(form: Form, found: &Finding, keys: u64) -> Option<&'static str> {
    match form.promise() {
        _ if form.claims() && found.later_claims == 0 => Some("no claim was taken over"),
        Promise::Reconciled if found.happened == 0 => Some("no question found a charge"),
        Promise::Reconciled if found.absent == 0 => Some("no question found that there's no charge"),
        Promise::Unreconciled if found.effects <= keys => Some("nothing was charged twice"),
        _ => None,
    }
}

/// The harness's action on a delivery, if the delivery isn't answered before a random moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Spared,
    Killed,
    Frozen,
}

impl Fate {
    const fn drawn(random: &mut Random, form: Form) -> Self {
        match random.below(100) {
            0..KILLED => Self::Killed,
            KILLED..FROZEN if !form.freezes() => Self::Killed,
            KILLED..FROZEN => Self::Frozen,
            _ => Self::Spared,
        }
    }
}

/// The result of a delivery.
#[derive(Debug)]
enum Came {
    Said(Said),
    Frozen(Box<Frozen>),
}

impl Throw {
    /// Works on `KEYS` keys at a time (behind the layer, `MANY_KEYS`), until enough processes were killed or enough
    /// violations were found.
    async fn run(self: &Arc<Self>) -> Result<()> {
        let mut keys = JoinSet::new();
        let mut number = 0;
        let at_once = if self.fleet.form().freezes() { KEYS } else { MANY_KEYS };
        // Each key's process is killed about once. More keys at a time would exceed the number of kills.
        let at_once = at_once.min(usize::try_from(self.numbers.kills / 2).unwrap_or(KEYS).max(8));
        loop {
            while keys.len() < at_once && self.has_kills_left() {
                number += 1;
                keys.spawn(Arc::clone(self).key(number));
            }
            match keys.join_next().await {
                Some(done) => done.context("a key's task panicked")??,
                None => return Ok(()),
            }
            // Don't wait for the other keys: the violations so far are enough, and a sabotaged function never answers
            // some keys.
            if self.has_enough() {
                return Ok(());
            }
        }
    }

    fn has_enough(&self) -> bool {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner).violations.len() >= ENOUGH
    }

    fn has_kills_left(&self) -> bool {
        let kills = self.kills.load(Ordering::SeqCst);
        let judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = judged.violations.is_empty()
            && missing(self.fleet.form(), &judged.found, judged.keys).is_some()
            && kills < self.numbers.kills * GOES_ON;
        (kills < self.numbers.kills || goes_on) && judged.violations.len() < ENOUGH
    }

    /// Makes all deliveries of one key, and judges the key.
    async fn key(self: Arc<Self>, number: u64) -> Result<()> {
        let mut random = Random::new(self.numbers.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let job = Job {
            key: format!("key-{number}"),
            before_ms: 1 + random.below(10),
            after_ms: 1 + random.below(30),
            first_fails: random.percent(10),
        };
        let story = Story::new(Arc::clone(&self.fleet), job);
        let mut deliverers = JoinSet::new();
        for _ in 0..=random.below(2) {
            let random = Random::new(random.bits());
            deliverers.spawn(Arc::clone(&self).deliver_until_answered(Arc::clone(&story), random));
        }
        while let Some(done) = deliverers.join_next().await {
            done.context("a delivery's task panicked")??;
        }
        self.judge(&story).await
    }

    /// Delivers the event until it's answered, as a queue does, and kills or freezes some of the processes. Separate
    /// tasks thaw the frozen ones. At the end, delivers the event without interruptions until it's answered.
    async fn deliver_until_answered(self: Arc<Self>, story: Arc<Story>, mut random: Random) -> Result<()> {
        let mut frozen = JoinSet::new();
        let mut tries = 0;
        while self.has_kills_left() {
            let came = self.deliver(&story, &mut random, story.limit_after(tries)).await?;
            match came {
                Came::Said(said) if !story.is_to_come_again(&said) => break,
                Came::Said(_) => {}
                Came::Frozen(still) => {
                    let (story, later) = (Arc::clone(&story), random.below(80));
                    frozen.spawn(async move {
                        clock::pause_until(still.stale_at + later).await;
                        story.thaw(*still).await
                    });
                }
            }
            tries += 1;
            if random.percent(IMPATIENT) {
                clock::pause(Duration::from_millis(random.below(60))).await;
            } else {
                story.wait_for_lease().await?;
                clock::pause(Duration::from_millis(random.below(10))).await;
            }
        }
        while let Some(done) = frozen.join_next().await {
            done.context("a frozen process's task panicked")??;
        }
        story.deliver_until_answered().await
    }

    /// Makes one delivery. Kills or freezes its process at a random moment, or does nothing to the process.
    async fn deliver(&self, story: &Story, random: &mut Random, limit: Duration) -> Result<Came> {
        let _slot = self.fleet.slot().await?;
        let mut process = self.fleet.process().await?;
        let fate = Fate::drawn(random, self.fleet.form());
        // Up to 1.3 times the ordinary length, so that some moments fall at the very end of a run.
        let moment = self.ordinary_us.load(Ordering::SeqCst) * 13 / 10 * random.below(1_000) / 1_000;
        let (started, delivered_at) = (clock::start(), clock::now_ms());
        let mut handed = story.hand_to(&mut process, limit);

        let said = match fate {
            Fate::Spared => Some(process.said(&mut handed).await?),
            _ => process.said_within(&mut handed, Duration::from_micros(moment)).await,
        };
        match (said, fate) {
            (Some(said), _) => {
                self.measure(&handed, &said, started.elapsed());
                self.fleet.give_back(process).await;
                Ok(Came::Said(story.note(&handed, Deed::Spared, said)))
            }
            (None, Fate::Frozen) => {
                self.freezes.fetch_add(1, Ordering::SeqCst);
                let frozen = story.freeze(process, handed, delivered_at, limit).await?;
                Ok(Came::Frozen(Box::new(frozen)))
            }
            (None, _) => {
                self.kills.fetch_add(1, Ordering::SeqCst);
                Ok(Came::Said(story.kill(process, handed).await?))
            }
        }
    }

    /// Adds the run's length to the moving mean if the run answered with its own response. A replay takes less time.
    fn measure(&self, handed: &Handed, said: &Said, time: Duration) {
        let is_own_response = serde_json::to_vec(&handed.run).is_ok_and(|own| *said == Said::Response(own));
        if is_own_response {
            let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let mean = self.ordinary_us.load(Ordering::SeqCst);
            self.ordinary_us.store((mean * 15 + time.min(1_000_000)) / 16, Ordering::SeqCst);
        }
    }

    async fn judge(&self, story: &Story) -> Result<()> {
        let case = story.case(self.fleet.form().promise()).await?;
        let verdict = case.judge();
        if verdict.is_ok() {
            self.fleet.effects.forget(&case.key).await?;
        }
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        judged.keys += 1;
        match verdict {
            Ok(finding) => judged.found += finding,
            Err(violation) => judged.violations.push(violation),
        }
        Ok(())
    }

    fn figures(&self, wall: Duration) -> Figures {
        let Judged { keys, found, violations } =
            std::mem::take(&mut *self.judged.lock().unwrap_or_else(PoisonError::into_inner));
        Figures {
            server: self.fleet.server().to_owned(),
            form: self.fleet.form(),
            seed: self.numbers.seed,
            keys,
            kills: self.kills.load(Ordering::SeqCst),
            freezes: self.freezes.load(Ordering::SeqCst),
            found,
            violations,
            problem: None,
            wall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(violations: Vec<Violation>) -> Figures {
        Figures {
            server: "a server".into(),
            form: Form::Ledger,
            seed: 7,
            keys: 1,
            kills: 1,
            freezes: 0,
            found: Finding::default(),
            violations,
            problem: None,
            wall: Duration::ZERO,
        }
    }

    #[test]
    fn problem_is_reported_with_earlier_violations() {
        let problem = || Problem::new("the server is gone");
        let both = figures(vec![Violation::new("two effects")]).ended_by(problem()).unwrap().to_string();
        assert!(both.contains("ended early: the server is gone"), "{both}");
        let alone = figures(Vec::new()).ended_by(problem()).unwrap_err().to_string();
        assert_eq!(alone, "a server, seed 7: the server is gone");
    }

    #[test]
    fn check_that_shows_nothing_fails() {
        let words = figures(Vec::new()).shown().unwrap_err().to_string();
        assert!(
            words.starts_with("ledger: no claim was taken over, so the check has shown nothing"),
            "{words}"
        );
        assert!(figures(vec![Violation::new("two effects")]).shown().is_ok());
        let found = |happened, absent| Finding { later_claims: 1, happened, absent, ..Finding::default() };
        assert!(missing(Form::ReconciledRedis, &found(26, 0), 26).is_some());
        assert!(missing(Form::ReconciledRedis, &found(0, 1), 26).is_some());
        assert_eq!(missing(Form::ReconciledRedis, &found(25, 1), 26), None);
        assert!(missing(Form::Unreconciled, &Finding { effects: 26, ..found(0, 0) }, 26).is_some());
        assert_eq!(missing(Form::Optimistic, &Finding::default(), 1), None);
    }

    #[test]
    fn too_many_slow_runs_are_a_violation() {
        assert!(too_many_slow(10, 10).is_none(), "one pause of the machine can cause 10 slow runs");
        assert!(too_many_slow(100, 200).is_none());
        assert!(too_many_slow(101, 200).is_some());
    }
}
