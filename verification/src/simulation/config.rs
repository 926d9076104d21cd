//! A schedule: derived from a seed, and written as one line.

use std::{fmt, str::FromStr, time::Duration};

use super::trouble::{Circumstance, Outage, Trouble, outage_named};
use crate::random::Random;

/// The largest skew, in ms, at which all promises hold: the library's default.
pub const SKEW_MARGIN: i64 = 2000;
/// Calls to the store end this long before the deadline: the library's default.
pub const RESERVE: Duration = Duration::from_millis(250);
/// If a handler returns inside the reserve, its single settlement call ends this long before the deadline: a fifth of
/// the reserve.
pub const HARD_FLOOR: Duration = Duration::from_millis(50);
/// How long a settlement is retried if no deadline ends it earlier: the library's default.
pub const SETTLE_WITHIN: Duration = Duration::from_secs(30);
/// How the store is deliberately broken, if it is. The simulation must catch each way to break it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// The store isn't broken.
    #[default]
    None,
    /// The store settles any record, even another owner's or a settled one, as Powertools does.
    SettleUnconditionally,
    /// The store applies takeovers and reclaims without checking that the record is still as the executor read it.
    ReplaceUnconditionally,
    /// The store grants a claim although the key has a record.
    ClaimUnconditionally,
    /// The store gives any record the requested lease, whoever owns it and even if it's settled.
    ExtendUnconditionally,
    /// The store lets a conclusion replace any record.
    ConcludeUnconditionally,
    /// The store applies the handler's own writes even if the condition on the record fails.
    EffectUnconditionally,
}

/// The precaution that's removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Undone {
    /// No precaution is removed.
    #[default]
    Nothing,
    /// A settlement isn't retried.
    Retries,
    /// Calls to the store may last until the deadline, without a reserve for the answer.
    AnswerReserve,
    /// Neither calls to the store nor handlers are cut off.
    CutOffs,
    /// A pause before a retry isn't shortened, however little time is left.
    ShortPauses,
    /// A write that the store rejects as invalid is sent again without the response.
    Refusals,
    /// Ambiguous errors are treated as definite.
    Doubts,
    /// Releases are reported as applied, but never reach the store. So a claim whose response was lost stays in the
    /// store.
    GivingBack,
    /// A record forgets that an attempt was interrupted.
    Interruptions,
    /// Under at-most-once, a claim has an expiry.
    EndlessClaims,
    /// The library keeps its time limits by the wall clock alone.
    SecondClocks,
    /// An executor sees an expiry in every claim, so an at-least-once executor takes over an at-most-once claim.
    OthersClaims,
}

impl Undone {
    /// All variants, by name.
    pub const ALL: [(Self, &str); 12] = [
        (Self::Nothing, "nothing"),
        (Self::Retries, "settlements_are_not_retried"),
        (Self::AnswerReserve, "calls_end_at_the_deadline"),
        (Self::CutOffs, "calls_are_not_cut_off"),
        (Self::ShortPauses, "pauses_are_not_clipped"),
        (Self::Refusals, "refusals_drop_the_response"),
        (Self::Doubts, "doubts_are_treated_as_definite"),
        (Self::GivingBack, "claims_in_doubt_are_not_released"),
        (Self::Interruptions, "interruptions_are_forgotten"),
        (Self::EndlessClaims, "at_most_once_claims_expire"),
        (Self::SecondClocks, "limits_trust_the_wall_clock"),
        (Self::OthersClaims, "at_most_once_claims_are_taken_over"),
    ];

    /// The variant's name.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }

    /// The variant with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, of)| *of == name).map(|(one, _)| one)
    }
}

/// How the deliveries of a schedule are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// Claims protect the deliveries. The handler's effect happens while the handler runs, outside any transaction.
    #[default]
    Claims,
    /// Claims protect the deliveries. The handler's effect is part of one transaction with its outcome.
    Transactions,
    /// Some deliveries run under a claim, and others without one. Either way, one transaction commits effect and
    /// outcome.
    Mixed,
}

impl Way {
    const ALL: [(Self, &str); 3] =
        [(Self::Claims, "claims"), (Self::Transactions, "transactions"), (Self::Mixed, "mixed")];
}

impl Sabotage {
    /// All sabotages, by name.
    pub const ALL: [(Self, &str); 7] = [
        (Self::None, "none"),
        (Self::SettleUnconditionally, "settle"),
        (Self::ReplaceUnconditionally, "replace"),
        (Self::ClaimUnconditionally, "claim"),
        (Self::ExtendUnconditionally, "extend"),
        (Self::ConcludeUnconditionally, "conclude"),
        (Self::EffectUnconditionally, "effect"),
    ];
}

/// The user's settings that a schedule varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// How long an outcome is replayed, in seconds.
    pub retention: u64,
    /// Whether a handler's error is recorded.
    pub records: bool,
    /// Whether a delivery waits for another delivery's outcome.
    pub waits: bool,
    /// Whether each process keeps copies of settled records.
    pub caches: bool,
    /// Whether a handler runs without protection when the store fails.
    pub unprotected: bool,
    /// Whether some deliveries use `begin` and the `Claim` instead of `run`.
    pub begins: bool,
    /// Whether an operator settles claims, even while their handlers run.
    pub operates: bool,
    /// Whether the platform lets a process run past its deadline, as Managed Instances do.
    pub lets_run: bool,
}

impl Choices {
    /// The retentions, in seconds: 90 seconds (a little longer than the longest lease), five minutes, an hour, a day
    /// (the default), and ninety days.
    pub const RETENTIONS: [u64; 5] = [90, 300, 3600, 86_400, 90 * 86_400];
    /// The default settings, but with a retention of five minutes.
    pub const NONE: Self = Self {
        retention: 300,
        records: false,
        waits: false,
        caches: false,
        unprotected: false,
        begins: false,
        operates: false,
        lets_run: false,
    };

    fn random(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x1b_87_35_93_cc_9e_2d_51);
        let mut is_so = |of: u64| random.below(of) == 0;
        let chosen = Self {
            records: is_so(4),
            waits: is_so(4),
            caches: is_so(4),
            unprotected: is_so(6),
            begins: is_so(4),
            operates: is_so(6),
            lets_run: is_so(2),
            retention: 0,
        };
        // At least half of the schedules have a retention so short that it can end during the schedule.
        let retention = if is_so(2) { 300 } else { *random.pick(&Self::RETENTIONS).unwrap_or(&300) };
        Self { retention, ..chosen }
    }

    fn flags(&mut self) -> [(&'static str, &mut bool); 7] {
        [
            ("records", &mut self.records),
            ("waits", &mut self.waits),
            ("caches", &mut self.caches),
            ("unprotected", &mut self.unprotected),
            ("begins", &mut self.begins),
            ("operates", &mut self.operates),
            ("lets_run", &mut self.lets_run),
        ]
    }

    /// Returns variants of the choices, each with one setting as in [`NONE`](Self::NONE).
    fn smaller(self) -> Vec<Self> {
        let mut all = Vec::new();
        for nth in 0..self.to_owned().flags().len() {
            let mut less = self;
            let is_less = std::mem::take(less.flags()[nth].1);
            all.extend(is_less.then_some(less));
        }
        if self.retention != Self::NONE.retention {
            all.push(Self { retention: Self::NONE.retention, ..self });
        }
        all
    }
}

/// One schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The seed of everything that the other fields don't decide.
    pub seed: u64,
    /// The number of executors.
    pub executors: u32,
    /// The number of keys.
    pub keys: u32,
    /// The number of deliveries per executor.
    pub deliveries: u32,
    /// The troubles that can happen, one bit for each [`Trouble`].
    pub faults: u32,
    /// Whether the schedule runs under at-most-once.
    pub at_most_once: bool,
    /// Whether every second process has a version of the function with the other execution.
    pub mixes: bool,
    /// How deliveries are protected.
    pub way: Way,
    /// Whether leases are short, and the library extends them while handlers run.
    pub extends: bool,
    /// The user's settings.
    pub choices: Choices,
    /// Whether the executors share processes in pairs. Such a process handles two deliveries concurrently.
    pub shares: bool,
    /// How the store fails in this schedule's outages. Only schedules of a campaign (see [`outages`](super::outages)) have outages,
    /// and they have no other faults.
    pub outage: Option<Outage>,
    /// How the store is broken, if it is.
    pub sabotage: Sabotage,
    /// The library's precaution that's removed, if any.
    pub undone: Undone,
}

impl Config {
    /// The schedule of a seed. Most schedules are small, since a few executors and keys are enough for most bugs.
    /// Some schedules are large.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x51_7c_c1_b7_27_22_0a_95);
        let (executors, keys) = match random.below(100) {
            0 => (random.between(9, 64), random.between(1, 1000)),
            1..=9 => (random.between(4, 16), random.between(1, 20)),
            _ => (random.between(2, 5), random.between(1, 2)),
        };
        // Each trouble is in half of the schedules. `SkewBeyond`, under which only fencing is promised, is in
        // an eighth.
        let mut faults = random.bits() as u32 & ((1 << Trouble::ALL.len() as u32) - 1);
        if random.below(4) != 0 {
            faults &= !Trouble::from(Circumstance::SkewBeyond).bit();
        }
        // At least a quarter of the schedules have none of the troubles in `UNRECORDING`, so that the audit can check
        // their answers more strictly.
        if random.below(4) == 0 {
            faults &= !Trouble::UNRECORDING.iter().fold(0, |all, trouble| all | trouble.bit());
        }
        let deliveries = random.between(1, 4) as u32;
        let at_most_once = random.below(4) == 0;
        let way = random.pick(&Way::ALL).map_or(Way::Claims, |(way, _)| *way);
        Self {
            seed,
            executors: executors as u32,
            keys: keys as u32,
            deliveries,
            faults,
            at_most_once,
            way,
            extends: random.below(3) == 0,
            choices: Choices::random(seed),
            shares: random.below(4) == 0,
            mixes: random.below(6) == 0,
            outage: None,
            sabotage: Sabotage::None,
            undone: Undone::Nothing,
        }
    }

    /// The schedule of a seed in a campaign: outages of one kind, and no process crashes or freezes.
    pub fn of_campaign(seed: u64, outage: Outage) -> Self {
        let mut random = Random::new(seed ^ 0x2b_7e_15_16_28_ae_d2_a6);
        // A short lease together with skewed clocks may leave an executor less time than it assumes. So a campaign's
        // schedule never has both.
        let extends = random.below(4) == 0;
        let is_skewed = !extends && random.below(2) == 0;
        Self {
            seed,
            executors: random.between(1, 4) as u32,
            keys: random.between(1, 2) as u32,
            deliveries: random.between(1, 3) as u32,
            faults: if is_skewed { Trouble::from(Circumstance::Skew).bit() } else { 0 },
            at_most_once: random.below(8) == 0,
            mixes: false,
            way: if random.below(4) == 0 { Way::Transactions } else { Way::Claims },
            extends,
            choices: Choices::NONE,
            shares: random.below(2) == 0,
            outage: Some(outage),
            sabotage: Sabotage::None,
            undone: Undone::Nothing,
        }
    }

    /// Whether this executor's function runs at most once.
    pub fn is_at_most_once(&self, executor: u32) -> bool {
        // The executors of one process have the same version of the function.
        let process = if self.shares { executor / 2 } else { executor };
        self.at_most_once != (self.mixes && process % 2 == 1)
    }

    /// Whether a handler runs without a claim when the store fails. In a schedule with an at-most-once executor, it
    /// doesn't. With transactions it doesn't either, since its writes would have no outcome to commit with.
    pub fn may_run_unprotected(&self) -> bool {
        self.choices.unprotected && !self.at_most_once && !self.mixes && self.way == Way::Claims
    }

    /// Whether some deliveries use `begin` and the `Claim`.
    pub fn may_begin(&self) -> bool {
        self.choices.begins && self.way == Way::Claims
    }

    /// Whether this fault or circumstance can happen.
    pub fn has(&self, trouble: impl Into<Trouble>) -> bool {
        self.faults & trouble.into().bit() != 0
    }

    /// Returns variants of the schedule, each smaller or simpler in one respect.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all: Vec<Self> = Trouble::ALL
            .into_iter()
            .filter(|trouble| self.has(*trouble))
            .map(|trouble| Self { faults: self.faults & !trouble.bit(), ..*self })
            .collect();
        if self.extends {
            all.push(Self { extends: false, ..*self });
        }
        if self.shares {
            all.push(Self { shares: false, ..*self });
        }
        if self.mixes {
            all.push(Self { mixes: false, ..*self });
        }
        all.extend(self.choices.smaller().into_iter().map(|choices| Self { choices, ..*self }));
        if self.way == Way::Mixed {
            all.push(Self { way: Way::Transactions, ..*self });
        }
        for (executors, keys, deliveries) in [
            (self.executors / 2, self.keys, self.deliveries),
            (self.executors - 1, self.keys, self.deliveries),
            (self.executors, self.keys / 2, self.deliveries),
            (self.executors, self.keys - 1, self.deliveries),
            (self.executors, self.keys, self.deliveries - 1),
        ] {
            if executors > 0 && keys > 0 && deliveries > 0 {
                all.push(Self { executors, keys, deliveries, ..*self });
            }
        }
        all
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, executors, keys, deliveries, faults, at_most_once, way, extends, shares, .. } = self;
        let Self { outage, sabotage, undone, mixes, .. } = self;
        let way = Way::ALL.iter().find(|(one, _)| one == way).map_or("", |(_, name)| name);
        if let Some((_, name)) =
            Sabotage::ALL.iter().find(|(one, _)| one == sabotage && *one != Sabotage::None)
        {
            write!(f, "sabotage={name} ")?;
        }
        if *undone != Undone::Nothing {
            write!(f, "undone={} ", undone.name())?;
        }
        if let Some(outage) = outage {
            write!(f, "outage={} ", outage.name())?;
        }
        write!(
            f,
            "seed={seed} executors={executors} keys={keys} deliveries={deliveries} faults={faults:#x} \
             at_most_once={at_most_once} mixes={mixes} way={way} extends={extends} shares={shares}"
        )?;
        let mut choices = self.choices;
        write!(f, " retention={}", choices.retention)?;
        choices.flags().iter().try_for_each(|(name, is_set)| write!(f, " {name}={is_set}"))
    }
}

impl FromStr for Config {
    type Err = String;

    /// Reads what [`Display`](fmt::Display) writes; missing fields come from the seed.
    fn from_str(line: &str) -> Result<Self, String> {
        let value =
            |name: &str| line.split_whitespace().find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let number =
            |name: &str, text: &str| text.parse().map_err(|_| format!("{name}={text} isn't a number"));
        let seed = value("seed").ok_or("a schedule needs seed=NUMBER")?;
        let mut config = Self::from_seed(seed.parse().map_err(|_| format!("seed={seed} isn't a number"))?);
        let shown = config.to_string();
        if let Some(valueless) = line.split_whitespace().find(|part| !part.contains('=')) {
            return Err(format!("{valueless} has no value"));
        }
        let name_of = |part: &'_ str| part.split_once('=').map_or(part, |(name, _)| name).to_owned();
        let mut known: Vec<_> = shown.split_whitespace().map(name_of).collect();
        known.extend(["sabotage", "undone", "outage"].map(str::to_owned));
        if let Some(unknown) = line.split_whitespace().map(name_of).find(|name| !known.contains(name)) {
            return Err(format!("{unknown} isn't a field of a schedule"));
        }
        for (name, field) in [
            ("executors", &mut config.executors),
            ("keys", &mut config.keys),
            ("deliveries", &mut config.deliveries),
        ] {
            if let Some(text) = value(name) {
                *field = number(name, text)?;
                if *field == 0 {
                    return Err(format!("{name} must be at least 1"));
                }
            }
        }
        if let Some(text) = value("faults") {
            config.faults = u32::from_str_radix(text.trim_start_matches("0x"), 16)
                .map_err(|_| format!("faults={text} isn't a hexadecimal number"))?;
        }
        for (name, field) in [
            ("at_most_once", &mut config.at_most_once),
            ("mixes", &mut config.mixes),
            ("extends", &mut config.extends),
            ("shares", &mut config.shares),
        ]
        .into_iter()
        .chain(config.choices.flags())
        {
            if let Some(text) = value(name) {
                *field = text.parse().map_err(|_| format!("{name}={text} is neither true nor false"))?;
            }
        }
        if let Some(text) = value("retention") {
            config.choices.retention =
                text.parse().map_err(|_| format!("retention={text} isn't a number"))?;
        }
        if let Some(text) = value("outage") {
            let outage = outage_named(text);
            config.outage = Some(outage.ok_or_else(|| format!("outage={text} isn't a known outage"))?);
        }
        if let Some(text) = value("undone") {
            config.undone =
                Undone::named(text).ok_or_else(|| format!("undone={text} isn't a known precaution"))?;
        }
        if let Some(text) = value("way") {
            let known = Way::ALL.iter().find(|(_, name)| *name == text);
            config.way = known.ok_or_else(|| format!("way={text} isn't a known way"))?.0;
        }
        if let Some(text) = value("sabotage") {
            let known = Sabotage::ALL.iter().find(|(_, name)| *name == text);
            config.sabotage = known.ok_or_else(|| format!("sabotage={text} isn't a known sabotage"))?.0;
        }
        Ok(config)
    }
}
