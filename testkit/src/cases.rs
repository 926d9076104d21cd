//! The type of an HTTP contract case, and the code that runs it, in process or through a real function. `clauses.rs`
//! has the cases.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use tokio::net::TcpListener;

use crate::{
    api::{Layered, PAGE},
    front_ends::{Sent, event, set_header},
};

/// Requests in order, with the expected answers.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The clauses of the `Idempotency-Key` draft that this case covers.
    pub clauses: &'static [&'static str],
    /// The behaviour that this case shows.
    pub says: &'static str,
    /// The layer's configuration.
    pub layered: Layered,
    /// The requests.
    pub steps: &'static [Step],
}

/// One request with its expected answer.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The request.
    pub sent: Sent,
    /// The expected answer.
    pub then: Then,
    /// Requests sent while this request's handler runs.
    pub meanwhile: &'static [Self],
}

/// The expected answer of a request, from the handler or the layer.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// The handler answers, with this status.
    Runs(u16),
    /// The layer replays the answer of the case's last run, with this status.
    Replays(u16),
    /// The layer refuses, with this status and code.
    Refuses(u16, &'static str),
    /// The first answer if the front end knows the caller, or else the second.
    ByCaller(&'static Self, &'static Self),
}

/// The actual answer to a request.
#[derive(Clone, Debug)]
pub struct Found {
    /// The status.
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

/// The API that the cases run against.
pub trait Api {
    /// Sends an event to a process. If `is_busy`, the first process is running a handler, so a second process gets
    /// the event.
    fn send(&self, event: Value, is_busy: bool) -> impl Future<Output = Found>;

    /// The number of handler runs.
    fn runs(&self) -> impl Future<Output = usize>;

    /// Whether [`runs`](Self::runs) counts a run that answers with this status. The example function `payments` counts
    /// only runs that make a payment.
    fn counts(&self, status: u16) -> bool;
}

impl Case {
    /// Whether the example function `payments` can run this case. `payments` uses the default layer, and chooses its
    /// own status.
    pub fn is_for_payments(&self) -> bool {
        let asks = |step: &Step| {
            !step.sent.status.is_empty() || !step.sent.ahead.is_empty() || !step.meanwhile.is_empty()
        };
        self.layered == Layered::Plain && !self.steps.iter().any(asks)
    }

    /// Runs the case with keys that end in `own`, so that no other run shares them.
    pub async fn walk(&self, front_end: &str, own: u64, api: &impl Api) {
        let before = api.runs().await;
        let walk = Walk { case: self, front_end, own, api };
        let mut ran = Vec::new();
        for step in self.steps {
            if step.meanwhile.is_empty() {
                walk.step(step, false, None, &mut ran).await;
            } else {
                walk.held(step, &mut ran).await;
            }
        }
        let counted = ran.iter().filter(|found| api.counts(found.status)).count();
        assert_eq!(api.runs().await - before, counted, "{}: the number of handler runs", walk.name());
    }
}

/// The end of the keys in the table of cases. Each run replaces it with its own number.
const NODE: &str = "6894a57f9324";

/// The time limit for a held step, longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(30);

struct Walk<'a, A> {
    case: &'a Case,
    front_end: &'a str,
    own: u64,
    api: &'a A,
}

impl<A: Api> Walk<'_, A> {
    fn name(&self) -> String {
        format!("{}, {}, through {}", self.case.clauses.join(" and "), self.case.says, self.front_end)
    }

    async fn step(&self, step: &Step, is_busy: bool, gate: Option<&str>, ran: &mut Vec<Found>) {
        let mut event = event(self.front_end, step.sent);
        set_header(&mut event, "hold", gate);
        set_header(&mut event, "layered", Some(&self.case.layered.name()));
        let event = event.to_string().replace(NODE, &format!("{:012x}", self.own));
        let found = self.api.send(serde_json::from_str(&event).unwrap(), is_busy).await;
        let nobody = self.front_end == "alb";
        if let Err(problem) = step.then.is(&found, self.case.layered, nobody, ran.last()) {
            panic!("{}: {problem}\nsent: {:?}\nfound: {found:?}", self.name(), step.sent);
        }
        if step.then.runs(nobody) {
            ran.push(found);
        }
    }

    /// Runs a step whose handler waits until the steps in `meanwhile` have run.
    async fn held(&self, step: &Step, ran: &mut Vec<Found>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = listener.local_addr().unwrap().to_string();
        let meanwhile = async {
            let held = listener.accept().await.unwrap();
            for other in step.meanwhile {
                self.step(other, true, None, &mut Vec::new()).await;
            }
            drop(held);
        };
        let both = async { tokio::join!(self.step(step, false, Some(&gate), ran), meanwhile) };
        let ended = tokio::time::timeout(LIMIT, both).await;
        assert!(ended.is_ok(), "{}: the step with a waiting handler timed out", self.name());
    }
}

impl Then {
    fn runs(&self, nobody: bool) -> bool {
        match self {
            Self::Runs(_) => true,
            Self::Replays(_) | Self::Refuses(..) => false,
            Self::ByCaller(known, unknown) => (if nobody { unknown } else { known }).runs(nobody),
        }
    }

    fn is(&self, found: &Found, layered: Layered, nobody: bool, ran: Option<&Found>) -> Result<(), String> {
        let marker = found.headers.get("idempotent-replayed").map(String::as_str);
        let (status, replays) = match self {
            Self::ByCaller(known, unknown) => {
                return (if nobody { unknown } else { known }).is(found, layered, nobody, ran);
            }
            Self::Refuses(status, code) => {
                expect("the header `Idempotent-Replayed`", marker, None)?;
                expect("the status", found.status, *status)?;
                return found.is_problem(code, layered);
            }
            Self::Runs(status) => (status, false),
            Self::Replays(status) => (status, true),
        };
        expect("the header `Idempotent-Replayed`", marker, replays.then_some("true"))?;
        expect("the status", found.status, *status)?;
        let Some(ran) = ran.filter(|_| replays) else { return Ok(()) };
        for name in ["location", "content-type"] {
            expect(name, found.headers.get(name), ran.headers.get(name))?;
        }
        expect("the body", &found.body, &ran.body)
    }
}

/// The documentation page of an API that doesn't name its own.
const DEFAULT_PAGE: &str =
    "https://docs.rs/lambda-idempotency/latest/lambda_idempotency/guide/idempotency_specification/index.html";

impl Found {
    /// Checks for complete problem details, as RFC 9457 defines them.
    fn is_problem(&self, code: &str, layered: Layered) -> Result<(), String> {
        let header = |name: &str| self.headers.get(name).map(String::as_str);
        let problem: Value = serde_json::from_str(&self.body).map_err(|error| error.to_string())?;
        expect("the media type", header("content-type"), Some("application/problem+json"))?;
        expect("the code", problem["code"].as_str(), Some(code))?;
        expect("the problem's status", problem["status"].as_u64(), Some(self.status.into()))?;
        let page = if layered == Layered::Required { PAGE } else { DEFAULT_PAGE };
        expect("the type", problem["type"].as_str(), Some(&*format!("{page}#{code}")))?;
        let link = format!("<{page}>; rel=\"describedby\"; type=\"text/html\"");
        expect("the link", header("link"), Some(&*link))?;
        let wait = header("retry-after").map(|wait| wait.parse().unwrap_or(0_u64));
        expect("the presence of `Retry-After`", wait.is_some(), problem["retryable"] == true)?;
        expect("a `Retry-After` of 1 to 60 seconds", wait.is_none_or(|wait| (1..=60).contains(&wait)), true)?;
        expect(
            "whether this code has a `Retry-After`",
            wait.is_some(),
            matches!(code, "in-progress" | "store-unavailable"),
        )
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found:?}, not {expected:?}")) }
}
