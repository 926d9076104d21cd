//! [`survive`]: delivers an event in hundreds of schedules with faults, in virtual time.

mod asked;
mod judge;
mod plan;
mod play;
mod together;
mod vary;

pub use judge::{Finding, Mistake};

use std::{fmt, io, ops::Range, panic::Location, sync::Arc, time::Duration};

use super::{
    bench::{Bench, TIMEOUT},
    drawing::counted,
    event::Event,
    fields,
    function::Function,
    picture,
    point::Point,
    world::outside_runtime,
};
use judge::{Expected, judge, judge_first};
use plan::{calm, drawn, singles};
pub(super) use play::{Played, Subject, in_turn};
use play::{play, undisturbed};

/// The minimum number of schedules that `survive` plays, unless the test sets the number of schedules.
const SCHEDULES: u64 = 300;
/// The minimum number of schedules with faults drawn from a seed, unless the test sets the number of schedules.
const DRAWN: u64 = 100;
/// The time from the other deliveries to the last duplicate: Lambda keeps an asynchronous event for up to six hours
/// ("Error handling for asynchronous invocation", AWS Lambda developer guide).
const LATE: Duration = Duration::from_secs(6 * 60 * 60);
/// The time from the other deliveries to an HTTP client's last retry.
const LATE_REQUEST: Duration = Duration::from_secs(5 * 60);

/// Delivers `event` to the function in hundreds of schedules. Some have one fault and then a duplicate: together, they
/// have every fault at every point of a run. The others have combinations of faults, drawn from a seed. Then it
/// delivers the event with one field changed, for at most 80 fields. See [the module](super#survive).
///
/// `make` builds the function, once for each process.
///
/// # Panics
///
/// If the operating system can't start a thread or a runtime. The function's mistakes cause no panic: they're in the
/// report.
pub fn survive(make: impl Fn(&Bench) -> Function + Sync, event: &Event) -> Report {
    Survival::default().play(make, event)
}

/// The settings of [`survive`].
#[derive(Clone, Copy, Debug)]
#[must_use = "settings do nothing until you call `play`"]
pub struct Survival {
    /// `None` plays every schedule with at most one fault, and some with drawn faults.
    schedules: Option<u64>,
    seed: Option<u64>,
    timeout: Duration,
    late: Option<Duration>,
}

impl Default for Survival {
    fn default() -> Self {
        Self { schedules: None, seed: None, timeout: TIMEOUT, late: None }
    }
}

impl Survival {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of schedules. By default, every schedule with at most one fault is played, and at least 100
    /// others, or more if the total would be less than 300.
    ///
    /// The first schedules have at most one fault each, and cover every fault at every point. If your number leaves
    /// some of them out, the report of a safe function says so.
    pub fn schedules(self, schedules: u64) -> Self {
        Self { schedules: Some(schedules), ..self }
    }

    /// Plays only the schedule with this number. A report lists the number as the finding's seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets how long an invocation may take. Default: 30 seconds.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets how long after the other deliveries the last duplicate comes, in the schedule without a fault. Default: 6
    /// hours, or 5 minutes if the event is an HTTP request.
    pub fn last_duplicate_after(self, late: Duration) -> Self {
        Self { late: Some(late), ..self }
    }

    /// Plays the schedules; see [`survive`].
    ///
    /// # Panics
    ///
    /// For the same reasons as [`survive`].
    pub fn play(self, make: impl Fn(&Bench) -> Function + Sync, event: &Event) -> Report {
        let is_request = event.text().contains("\"requestContext\"");
        let late = self.late.unwrap_or(if is_request { LATE_REQUEST } else { LATE });
        let played = outside_runtime(|| {
            let mut subject = Subject { late, ..Subject::new(&make, event, self.timeout) };
            self.play_all(&mut subject)
        });
        played.unwrap_or_else(|error| panic!("`survive` couldn't start a runtime: {error}"))
    }

    fn play_all(self, subject: &mut Subject<'_>) -> io::Result<Report> {
        let mut report = Report {
            schedules: 0,
            singles: 0,
            left_out: 0,
            fields_left_out: 0,
            poison: 0,
            has_no_other: false,
            untyped: None,
            points: Vec::new(),
            findings: Vec::new(),
        };
        let event = subject.event.shared();
        let (first, expected) = report.undisturbed(subject, &event)?;
        report.add(judge_first(&first, &event, 0));
        if !first.is_done {
            return Ok(report);
        }
        subject.fails_like(&first);
        let subject = &*subject;
        report.poison = first.given_up.len();
        report.points = points_of(&first);
        let (singles, points) = (singles(&report.points), report.points.len());
        let plan_of = |seed: u64| match usize::try_from(seed).ok().and_then(|nth| singles.get(nth)) {
            Some(plan) => plan.clone(),
            None => drawn(seed, &singles, points),
        };
        let all = singles.len() as u64;
        let seeds = self.seeds(all);
        report.singles = all;
        report.left_out = all - (seeds.end.min(all) - seeds.start.min(all));
        for seed in seeds {
            let plan = plan_of(seed);
            let played = play(subject, &plan, seed, plan == calm())?;
            report.schedules += 1;
            report.add(judge(&played, &expected, &event, seed));
            let untyped =
                || played.answers.iter().find_map(|(_, answer)| answer.untyped().map(str::to_owned));
            report.untyped = report.untyped.take().or_else(untyped);
        }
        if self.seed.is_none() {
            report.has_no_other = subject.event.other_one().is_none();
            vary::others(subject, &first, &expected, &mut report)?;
        }
        Ok(report)
    }

    /// Returns the numbers of the schedules to play. A schedule with a number below `singles` has at most one fault.
    fn seeds(self, singles: u64) -> Range<u64> {
        match (self.seed, self.schedules) {
            (Some(seed), _) => seed..seed.saturating_add(1),
            (None, Some(schedules)) => 0..schedules,
            (None, None) => 0..SCHEDULES.max(singles.saturating_add(DRAWN)),
        }
    }
}

fn points_of(played: &Played) -> Vec<Point> {
    played.deliveries.first().map(|delivery| delivery.reached.clone()).unwrap_or_default()
}

/// The result of [`survive`].
#[derive(Clone, Debug)]
#[must_use = "call `assert_safe`, or check the findings"]
pub struct Report {
    schedules: u64,
    /// How many schedules have at most one fault.
    singles: u64,
    /// How many of these weren't played.
    left_out: u64,
    /// How many of the event's fields weren't changed.
    fields_left_out: usize,
    /// How many of the batch's records fail in every delivery.
    poison: usize,
    /// Whether the test set no event of another operation.
    has_no_other: bool,
    /// The type of the first error that passed on a refusal as a text; see [`Answer::untyped`](super::Answer).
    untyped: Option<String>,
    points: Vec<Point>,
    findings: Vec<Finding>,
}

impl Report {
    /// Returns the mistakes: one of each kind, from the first schedule that shows it.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How many schedules were played, including those without a fault and those of other operations.
    pub fn schedules(&self) -> u64 {
        self.schedules
    }

    /// The points that an undisturbed delivery reaches.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Checks that there are no findings.
    ///
    /// # Panics
    ///
    /// If there's a finding. The message has the first finding's story in full. With `DRAW_FAILURES` set, the message
    /// names a page with [drawings](super#drawings).
    #[track_caller]
    pub fn assert_safe(&self) {
        if !self.findings.is_empty() {
            let drawing = picture::kept(Location::caller(), || self.to_html());
            panic!("{self}{drawing}");
        }
    }

    /// Draws each finding as a sequence diagram, on one page of HTML that loads nothing and has no script.
    pub fn to_html(&self) -> String {
        let sections: Vec<_> = self
            .findings
            .iter()
            .enumerate()
            .map(|(nth, finding)| {
                let Finding { mistake, what, advice, seed, events, .. } = finding;
                let seed = seed.map(|seed| format!("The schedule's seed: {seed}.")).unwrap_or_default();
                picture::section(format!("{} {}", nth + 1, mistake.name()), &[what, advice, &seed], events)
            })
            .collect();
        let (title, lead) = match self.findings.as_slice() {
            [] => ("This function is safe to retry", self.to_string()),
            [Finding { mistake: Mistake::FirstFailed, .. }, ..] => {
                ("The first delivery failed", "No other schedule was played.".to_owned())
            }
            found => (
                "This function isn't safe to retry",
                format!("{} schedules, {}", self.schedules, counted(found.len(), "mistake")),
            ),
        };
        picture::failure(title, &lead, &sections)
    }

    /// Plays two schedules that deliver only this event, once and without a fault. Returns the result of the first
    /// schedule, and the effects to expect.
    fn undisturbed(&mut self, subject: &Subject<'_>, event: &Arc<str>) -> io::Result<(Played, Expected)> {
        let (mut one, another) = (undisturbed(subject, event, 0)?, undisturbed(subject, event, 1)?);
        self.schedules += 2;
        let expected = Expected::of(&one, &another);
        one.failures.extend(another.failures);
        Ok((one, expected))
    }

    fn add(&mut self, found: Vec<Finding>) {
        for finding in found {
            if !self.findings.iter().any(|other| other.mistake == finding.mistake) {
                self.findings.push(finding);
            }
        }
    }
}

impl Report {
    /// Writes a report that has no findings, and says what `survive` left out.
    fn fmt_safe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, singles, left_out, fields_left_out, poison, .. } = self;
        write!(f, "{schedules} schedules: every operation happened once, and its recorded answers agree")?;
        if *poison > 0 {
            write!(
                f,
                ". But {poison} of the batch's records failed in every delivery: their source gives up on them"
            )?;
        }
        if *left_out > 0 {
            write!(
                f,
                ". But {left_out} of the {singles} schedules with at most one fault weren't played; to play them \
                 all, leave out `schedules` and `seed`"
            )?;
        }
        if *fields_left_out > 0 {
            let most = fields::MOST;
            write!(
                f,
                ". But {fields_left_out} of the event's fields weren't changed, since the limit is {most}; use a \
                 smaller sample event"
            )?;
        }
        if self.has_no_other {
            f.write_str(
                ". But no event of another operation was delivered; to check that operations are kept apart, set \
                 one with `Event::other`",
            )?;
        }
        if let Some(untyped) = &self.untyped {
            write!(
                f,
                ". But a refusal left the function as an error of the type `{untyped}`, on which no caller can match; \
                 pass on the library's error itself, with `?`"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, more)) = self.findings.split_first() else {
            return self.fmt_safe(f);
        };
        if first.mistake == Mistake::FirstFailed {
            writeln!(
                f,
                "played nothing else: `survive` needs an event that this function can handle.\n\n{first}"
            )?;
        } else {
            writeln!(
                f,
                "played {} schedules: this function isn't safe to retry.\n\n{first}",
                self.schedules
            )?;
        }
        if !more.is_empty() {
            writeln!(f, "\nAlso:")?;
        }
        for finding in more {
            writeln!(f, "- {}\n  → {}", finding.head(), finding.advice)?;
        }
        Ok(())
    }
}
