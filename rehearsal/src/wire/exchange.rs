//! A request in the log of the proxy.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use lambda_idempotency_testing::Fault;

use super::{meaning::Meaning, way::HttpWay};

/// One request and what happened to it. Payloads aren't kept.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// When the request came, as the time since the proxy started.
    pub at: Duration,
    /// The operation, such as `PutItem`.
    pub operation: String,
    /// Whether the request is for the table of records. If the proxy has no rules, every request is.
    pub to_store: bool,
    /// The request's part in the protocol.
    pub meaning: Meaning,
    /// Whether the request also writes to the table of payments.
    pub pays: bool,
    /// The number of the port at which the request came: each process of the function has its own.
    pub port: usize,
    /// Whether the rules hold the request back, or held it.
    pub is_held: bool,
    /// Whether the record in a refusal has the owner of the request: the sender's earlier attempt was applied.
    pub is_own: bool,
    /// Whether the request is the first attempt of its SDK call. Later attempts are the SDK's own retries.
    pub first_attempt: bool,
    /// The `id` of the item that the request puts or that its key names, if it has one.
    pub id: Option<String>,
    /// A transaction's token. DynamoDB applies transactions with the same token once.
    pub token: Option<String>,
    /// How the wire broke the request, if it did.
    pub fault: Option<HttpWay>,
    /// The server's answer, if the server got the request and answered.
    pub served: Option<Served>,
    /// When the answer was completely written, if it was sent.
    pub answered: Option<Duration>,
}

/// The server's answer, and when it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The time since the proxy started.
    pub at: Duration,
    /// The answer's status.
    pub status: u16,
    /// The name of the error.
    pub error: Option<String>,
}

impl Exchange {
    /// Whether the server applied the write or answered the read.
    #[must_use]
    pub fn applied(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.status == 200)
    }

    /// Whether the request is the read by which a function connects during its init.
    #[must_use]
    pub fn is_warm_up(&self) -> bool {
        self.id.as_ref().is_some_and(|id| id.contains("/warm-up#"))
    }

    /// Whether the request has a fault that can make a call fail.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        let fault = self.fault.map(HttpWay::amounts_to);
        !matches!(fault, None | Some(Fault::Slow | Fault::HideRecord))
    }

    /// Whether the server rejected the request because of its condition.
    #[must_use]
    pub fn refused(&self) -> bool {
        let error = self.served.as_ref().and_then(|served| served.error.as_deref());
        error.is_some_and(|error| error.contains("ConditionalCheckFailed"))
    }
}

impl Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6.1} ms  {:12}", self.at.as_secs_f64() * 1e3, self.meaning)?;
        match &self.served {
            Some(Served { at, status, error }) => {
                write!(f, "  served at {:.1}: {status}", at.as_secs_f64() * 1e3)?;
                if let Some(error) = error {
                    write!(f, " {error}")?;
                }
            }
            None => f.write_str("  not served")?,
        }
        match self.fault {
            Some(fault) => write!(f, "  << {fault}"),
            None if self.answered.is_none() => f.write_str("  (not answered)"),
            None => Ok(()),
        }
    }
}
