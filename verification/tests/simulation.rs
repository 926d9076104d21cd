//! The bounded form of the simulation. The long form is `verification simulate`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use lambda_idempotency_verification::simulation::{
    campaign,
    config::{Choices, Config, Sabotage, Undone, Way},
    outages, simulate,
    trouble::{Circumstance, Fault, OUTAGES, Outage, Trouble},
};

#[test]
fn twenty_thousand_schedules_pass_and_reach_everything() {
    let figures = campaign(0, 20_000, |config| config).unwrap_or_else(|report| panic!("{report}"));
    for (trouble, struck) in Trouble::ALL.into_iter().zip(figures.struck) {
        // Skew isn't an event: clocks are skewed from the beginning.
        let constant = [Circumstance::Skew, Circumstance::SkewBeyond].map(Trouble::from);
        assert!(constant.contains(&trouble) || struck > 0, "{trouble:?} never happened");
    }
    for (what, count) in [
        ("a repeated effect", figures.repeated),
        ("a takeover", figures.takeovers),
        ("a reclaim", figures.reclaims),
        ("a fenced completion", figures.fenced),
        ("a transaction", figures.committed),
        ("a declined transaction", figures.declined),
        ("a conclusion without a claim", figures.concluded),
        ("an applied transaction that's sent again", figures.repeats_known),
        ("an extension", figures.extended),
        ("a crash", figures.crashes),
    ] {
        assert!(count > 0, "{what} never happened");
    }
}

#[test]
fn no_takeover_or_crash_without_faults() {
    let figures =
        campaign(0, 500, |config| Config { faults: 0, ..config }).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!((figures.takeovers, figures.crashes), (0, 0));
}

#[test]
fn equal_seeds_play_identical_schedules() {
    for seed in 0..50 {
        let config = Config::from_seed(seed);
        let (first, again) = (simulate(config, true), simulate(config, true));
        assert_eq!((first.digest, &first.trace), (again.digest, &again.trace), "{config}");
        assert!(!first.trace.is_empty(), "{config}: nothing happened");
        assert_eq!(config.to_string().parse(), Ok(config));
    }
    assert_ne!(simulate(Config::from_seed(1), false).digest, simulate(Config::from_seed(2), false).digest);
}

#[test]
fn each_broken_store_fails_a_shrunk_schedule() {
    for sabotage in Sabotage::ALL.into_iter().skip(1).map(|(sabotage, _)| sabotage) {
        let report = match campaign(0, 20_000, |config| Config { sabotage, ..config }) {
            Ok(figures) => panic!("{sabotage:?} wasn't caught in {figures}"),
            Err(report) => report,
        };
        assert!(report.trace.len() < 60, "the schedule of {sabotage:?} wasn't shrunk:\n{report}");
        let line = report.to_string();
        let line = line.rsplit("replay ").next().unwrap().trim_matches('\'');
        let again = simulate(line.parse().unwrap(), true);
        assert_eq!((again.digest, &again.violation), (report.digest, &report.violation), "{line}");
    }
}

/// The short form of `verification campaign`.
#[test]
fn short_outages_repeat_no_effect() {
    for outage in OUTAGES {
        let figures =
            outages::play(outage, 0, 3000).unwrap_or_else(|report| panic!("{outage:?}: {report:?}"));
        assert_eq!(figures.repeated, 0, "{outage:?}");
        let (all, long): (u64, u64) = (figures.outages.iter().sum(), figures.outages[5..].iter().sum());
        assert!(all > 1000 && long * 10 >= all * 3, "{outage:?}: {long} of {all} outages are long");
    }
}

/// A campaign's schedule in which clocks are set back too.
fn set_back(seed: u64, outage: Outage) -> Config {
    let faults = Trouble::from(Circumstance::SetBack).bit();
    Config { faults, shares: false, ..Config::of_campaign(seed, outage) }
}

#[test]
fn set_back_clocks_leave_outages_harmless() {
    for outage in OUTAGES {
        let figures = campaign(0, 1500, |config| set_back(config.seed, outage));
        let figures = figures.unwrap_or_else(|report| panic!("{outage:?}: {report}"));
        assert_eq!(figures.repeated, 0, "{outage:?}");
    }
}

/// A schedule's line lists its troubles as bits, so a trouble's bit must never change.
#[test]
fn troubles_keep_their_bits() {
    for (trouble, bit) in [
        (Trouble::from(Fault::LoseRequest), 0),
        (Fault::Conflict.into(), 5),
        (Fault::Freeze.into(), 7),
        (Circumstance::Skew.into(), 8),
        (Circumstance::Parts.into(), 16),
        (Fault::Unstorable.into(), 17),
        (Circumstance::Declined.into(), 20),
        (Fault::Slow.into(), 21),
        (Circumstance::SetBack.into(), 22),
    ] {
        assert_eq!(trouble.bit(), 1 << bit, "{trouble:?}");
    }
    assert_eq!(Trouble::from(Fault::Outage).bit(), 0, "no schedule has this fault");
}

fn caught(undone: Undone, schedule: impl Fn(Config) -> Config) -> &'static str {
    match campaign(0, 20_000, |config| Config { undone, ..schedule(config) }) {
        Ok(figures) => panic!("{undone:?} wasn't caught in {figures}"),
        Err(report) => report.violation.as_ref().unwrap().rule,
    }
}

#[test]
fn campaigns_catch_each_removed_precaution() {
    for (undone, outage, rule) in [
        (Undone::Retries, Outage::Throttle, "an answered operation is completed"),
        (Undone::Retries, Outage::LoseRequest, "an answered operation is completed"),
        (Undone::AnswerReserve, Outage::Silence, "answers are in time"),
        (Undone::CutOffs, Outage::Silence, "answers are in time"),
        (Undone::ShortPauses, Outage::Throttle, "answers are in time"),
        (Undone::Refusals, Outage::Refuse, "an answered operation is completed"),
        (Undone::Doubts, Outage::LoseAnswer, "a refused claim is released"),
        (Undone::GivingBack, Outage::LoseAnswer, "a refused claim is released"),
    ] {
        let by = caught(undone, |config| Config::of_campaign(config.seed, outage));
        assert_eq!(by, rule, "{undone:?} in {outage:?}");
    }
    let by = caught(Undone::SecondClocks, |config| set_back(config.seed, Outage::Silence));
    assert_eq!(by, "answers are in time", "a clock is set back while a settlement gets no answer");
}

#[test]
fn simulation_catches_each_removed_precaution() {
    let only = |troubles: &[Trouble]| {
        let faults = troubles.iter().fold(0, |all, trouble| all | trouble.bit());
        let choices = Choices::NONE;
        move |config| Config {
            faults,
            way: Way::Claims,
            at_most_once: false,
            mixes: false,
            extends: false,
            choices,
            shares: false,
            ..config
        }
    };
    for (undone, troubles, rule) in [
        (Undone::Retries, &[Fault::Throttle.into()][..], "a repeated effect has a reason"),
        (
            Undone::Interruptions,
            &[Fault::Die.into(), Circumstance::HandlerError.into()],
            "an interrupted attempt is reported",
        ),
        (Undone::Interruptions, &[Circumstance::Panic.into()], "an interrupted attempt is reported"),
    ] {
        assert_eq!(caught(undone, only(troubles)), rule, "{undone:?} with {troubles:?}");
    }
    let hanging = only(&[Circumstance::Hang.into()]);
    let lets_run = Choices { lets_run: true, ..Choices::NONE };
    let by = caught(Undone::CutOffs, |config| Config { choices: lets_run, ..hanging(config) });
    assert_eq!(by, "answers are in time");
    // A clock is set back while a handler hangs, while a delivery waits, and while a lease is extended.
    let set_back = only(&[Circumstance::SetBack.into(), Circumstance::Hang.into()]);
    let waits = Choices { waits: true, ..Choices::NONE };
    for (choices, extends) in [(lets_run, false), (waits, false), (lets_run, true)] {
        let by = caught(Undone::SecondClocks, |config| Config { choices, extends, ..set_back(config) });
        assert_eq!(by, "answers are in time", "{choices:?}, extends: {extends}");
    }
    let once = only(&[Fault::Die.into(), Circumstance::Sweep.into()]);
    let by = caught(Undone::EndlessClaims, |config| Config { at_most_once: true, ..once(config) });
    assert_eq!(by, "at most once");
    // The at-least-once executors don't see that a claim is an at-most-once claim.
    let mixed = only(&[Fault::Die.into()]);
    let by = caught(Undone::OthersClaims, |config| Config { mixes: true, ..mixed(config) });
    assert_eq!(by, "at most once");
}
