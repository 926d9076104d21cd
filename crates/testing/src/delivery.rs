//! [`Delivery`]: the effects, the requests and the answer of one delivery.

use std::{fmt, panic::Location, sync::Arc};

use lambda_idempotency_core::{ErrorKind, StoredKey};

use super::{
    drawing::Event, effect::Effect, function::Answer, picture, point::Point, stage::How, story, world::World,
};

/// The effects, the requests and the answer of one delivery.
#[derive(Clone, Debug)]
#[must_use = "check what the delivery did"]
pub struct Delivery {
    index: usize,
    how: How,
    effects: Vec<Effect>,
    has_run: bool,
    requests: usize,
    points: Vec<Point>,
    keys: Vec<StoredKey>,
    story: Vec<String>,
    drawing: Vec<Event>,
}

impl Delivery {
    pub(super) fn new(world: &Arc<World>, index: usize, how: How) -> Self {
        let state = world.state();
        let delivered = &state.deliveries[index];
        let effects = state.effects.iter().filter(|effect| effect.delivery == index).map(Effect::from);
        Self {
            index,
            how,
            effects: effects.collect(),
            has_run: delivered.shows_run(),
            requests: delivered.requests,
            points: delivered.reached.clone(),
            keys: delivered.keys.clone(),
            story: story::lines(&state.trace, &state.effects, &state.deliveries),
            drawing: picture::events(&state.trace, &state.effects, &state.deliveries),
        }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The answer. `None` if the process died, or the delivery is paused.
    pub fn answer(&self) -> Option<&Answer> {
        match &self.how {
            How::Answered(answer) => Some(answer),
            How::Died | How::Held(_) => None,
        }
    }

    /// The effects that happened in this delivery.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Whether the handler ran. True if the delivery claimed a key, sent an outcome without a claim, or called the
    /// [ledger](super::Ledger) from an operation's handler. A call to the ledger from a spawned task counts too, unless
    /// the store refused the delivery's only claim.
    pub fn has_run(&self) -> bool {
        self.has_run
    }

    /// How many requests the delivery sent to the store.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// The points that the delivery reached, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The keys that the delivery asked the store for.
    pub fn keys(&self) -> &[StoredKey] {
        &self.keys
    }

    /// Checks that the handler ran and succeeded.
    ///
    /// # Panics
    ///
    /// If the check fails. The message lists everything that happened in the test.
    #[track_caller]
    pub fn assert_ran(&self) -> &Self {
        self.check(self.has_run && self.answer().is_some_and(Answer::is_done), "run and succeed")
    }

    /// Checks that the answer came from the record: it's a success, and the handler didn't [run](Self::has_run).
    ///
    /// # Panics
    ///
    /// If the check fails. The message lists everything that happened in the test.
    #[track_caller]
    pub fn assert_replayed(&self) -> &Self {
        self.check(!self.has_run && self.answer().is_some_and(Answer::is_done), "be answered from the record")
    }

    /// Checks that this library refused the delivery with an error of this kind, or with the error's HTTP response, and
    /// that a function which passes the error on keeps its type, or replaces it by the function's own type.
    ///
    /// # Panics
    ///
    /// If a check fails. The message lists everything that happened in the test.
    #[track_caller]
    pub fn assert_refused(&self, kind: ErrorKind) -> &Self {
        let (is_refused, kind) =
            (self.answer().is_some_and(|answer| answer.is_refused_as(kind)), kind.as_str());
        self.check(is_refused, &format!("be refused as {kind}"));
        let untyped = self.answer().and_then(Answer::untyped);
        let expected = format!(
            "report the type `Idempotency.{kind}` to Lambda. The handler made a text of the library's error; pass on the \
             error itself, with `?`"
        );
        self.check(untyped.is_none(), &expected)
    }

    /// Checks that the process died.
    ///
    /// # Panics
    ///
    /// If the process didn't die, for example because it never reached the point of the fault.
    #[track_caller]
    pub fn assert_died(&self) -> &Self {
        self.check(self.how == How::Died, "die")
    }

    #[track_caller]
    fn check(&self, holds: bool, expected: &str) -> &Self {
        if !holds {
            let ran = if self.has_run { "the handler ran" } else { "nothing shows that the handler ran" };
            let what = format!("delivery {} should {expected}, but {ran}, and {self}", self.index + 1);
            let page = || {
                let section = picture::section("1 everything so far".to_owned(), &[&what], &self.drawing);
                picture::failure("A delivery did something else", &what, &[section])
            };
            let drawing = picture::kept(Location::caller(), page);
            panic!("{what}\n{}{drawing}", self.story.join("\n"));
        }
        self
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            How::Answered(answer) => write!(f, "the answer was {answer}"),
            How::Died => f.write_str("its process died"),
            How::Held(fault) => write!(f, "it's paused ({fault})"),
        }
    }
}
