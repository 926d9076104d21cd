//! The cases to measure.

use crate::{
    cases::{ByHand, Effort, Failure, KEY, LOCAL_CACHE, Run, Wire, completed_item, refusal_with},
    events::{Content, Delivery, Event, Sent, Side, batch, http},
};

/// The cases, by their names on the command line and in the tables.
pub(crate) const CASES: [(&str, Case); 23] = [
    ("first-bare", Case::FirstByHand(Effort::Bare)),
    ("first-timeouts", Case::FirstByHand(Effort::Timeouts)),
    ("first-careful", Case::FirstByHand(Effort::Careful)),
    ("first-run", Case::FirstRun),
    ("duplicate-bare", Case::DuplicateByHand(Effort::Bare)),
    ("duplicate-timeouts", Case::DuplicateByHand(Effort::Timeouts)),
    ("duplicate-careful", Case::DuplicateByHand(Effort::Careful)),
    ("duplicate-run", Case::DuplicateRun),
    ("duplicate-cached", Case::DuplicateCached),
    ("batch-first-bare", Case::Batch(Side::ByHand, Delivery::First)),
    ("batch-first-run", Case::Batch(Side::Library, Delivery::First)),
    ("batch-again-bare", Case::Batch(Side::ByHand, Delivery::Again)),
    ("batch-again-run", Case::Batch(Side::Library, Delivery::Again)),
    ("http-1k-alone", Case::Http(Sent::Alone, Content::Kilobyte)),
    ("http-1k-get", Case::Http(Sent::Get, Content::Kilobyte)),
    ("http-1k-no-key", Case::Http(Sent::NoKey, Content::Kilobyte)),
    ("http-1k-key", Case::Http(Sent::Key, Content::Kilobyte)),
    ("http-1m-alone", Case::Http(Sent::Alone, Content::Base64)),
    ("http-1m-get", Case::Http(Sent::Get, Content::Base64)),
    ("http-1m-no-key", Case::Http(Sent::NoKey, Content::Base64)),
    ("http-1m-json-alone", Case::Http(Sent::Alone, Content::Json)),
    ("http-1m-json", Case::Http(Sent::Key, Content::Json)),
    ("http-1m-raw", Case::Http(Sent::KeyRaw, Content::Json)),
];

/// A case to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// A PutItem and an UpdateItem.
    FirstByHand(Effort),
    /// `Operation::run`, which claims, runs and completes.
    FirstRun,
    /// A PutItem whose condition fails, with the completed item in the answer.
    DuplicateByHand(Effort),
    /// `Operation::run`, which replays the record.
    DuplicateRun,
    /// `Operation::run`, which replays from the local cache. It sends no request, so no case by hand matches it.
    DuplicateCached,
    /// An SQS event of 100 records, all at once.
    Batch(Side, Delivery),
    /// An event of an HTTP API.
    Http(Sent, Content),
}

/// A case, ready to be repeated.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// By hand.
    ByHand(Box<ByHand>),
    /// Through the library.
    Run(Box<Run>),
    /// A whole event.
    Event(Event),
}

impl Prepared {
    /// Prepares `case`, and runs it once to check that a duplicate gets the recorded answer and a first run doesn't.
    ///
    /// # Errors
    ///
    /// If the check fails.
    pub(crate) async fn new(case: Case) -> Result<Self, Failure> {
        let item = completed_item().await?;
        let refusal = || Wire::Refuses(refusal_with(&item));
        let prepared = match case {
            Case::FirstByHand(effort) => Self::ByHand(Box::new(ByHand::new(Wire::Applies, effort, &item)?)),
            Case::DuplicateByHand(effort) => Self::ByHand(Box::new(ByHand::new(refusal(), effort, &item)?)),
            Case::FirstRun => Self::Run(Box::new(Run::new(Wire::Applies, 0)?)),
            Case::DuplicateRun => Self::Run(Box::new(Run::new(refusal(), 0)?)),
            Case::DuplicateCached => {
                let run = Run::new(Wire::Applies, LOCAL_CACHE)?;
                // This wire applies every claim, so only the cached copy can make the next run a duplicate.
                Box::pin(run.once(KEY)).await?;
                Self::Run(Box::new(run))
            }
            Case::Batch(side, delivery) => Self::Event(batch(side, delivery).await?),
            Case::Http(sent, content) => Self::Event(http(sent, content)?),
        };
        let is_duplicate = matches!(
            case,
            Case::DuplicateByHand(_)
                | Case::DuplicateRun
                | Case::DuplicateCached
                | Case::Batch(_, Delivery::Again)
        );
        if prepared.once().await? != is_duplicate {
            return Err(format!("{case:?}: a first run was replayed, or a duplicate ran").into());
        }
        Ok(prepared)
    }

    /// Runs the case once. Returns whether the answer came from the record.
    ///
    /// # Errors
    ///
    /// The SDK's error or the library's.
    pub(crate) async fn once(&self) -> Result<bool, Failure> {
        match self {
            Self::ByHand(by_hand) => Box::pin(by_hand.once()).await,
            Self::Run(run) => Box::pin(run.once(KEY)).await,
            Self::Event(event) => event.once().await,
        }
    }
}
