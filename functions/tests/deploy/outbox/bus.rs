//! A fake EventBridge on loopback, with `PutEvents` only. It accepts events, refuses some of them, loses its response,
//! or never responds.

use std::sync::{Arc, Mutex, PoisonError};

use lambda_idempotency_testing::Fault;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::http_server::{Received, Reply, Server};

/// How the bus treats the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Treatment {
    #[default]
    Accepts,
    /// The bus refuses some of the events, and accepts the others.
    RefusesSome,
    Fault(Fault),
}

/// The bus, and the events that are on it, in the order of their arrival.
pub(super) struct Bus {
    server: Server,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    accepted: Mutex<Vec<Value>>,
    next: Mutex<Treatment>,
    /// Notifies when a request has arrived that the bus never answers.
    reached: Notify,
}

impl Bus {
    pub(super) async fn start() -> Self {
        let state = Arc::new(State::default());
        let serving = Arc::clone(&state);
        let server = Server::start(move |received| {
            let state = Arc::clone(&serving);
            async move { state.reply(&received) }
        });
        Self { server: server.await, state }
    }

    pub(super) fn url(&self) -> String {
        self.server.url("")
    }

    /// Sets the treatment of the next request. Returns the treatment that was set before.
    pub(super) fn next(&self, treatment: Treatment) -> Treatment {
        std::mem::replace(&mut *self.state.next.lock().unwrap_or_else(PoisonError::into_inner), treatment)
    }

    /// Waits until a request arrives that the bus never answers.
    pub(super) async fn reached(&self) {
        self.state.reached.notified().await;
    }

    /// The events that the bus accepted, with their detail as JSON.
    pub(super) fn events(&self) -> Vec<Value> {
        self.state.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl State {
    fn reply(&self, received: &Received) -> Reply {
        assert_eq!(received.headers["x-amz-target"], "AWSEvents.PutEvents");
        let request: Value = serde_json::from_slice(&received.body).unwrap();
        let entries = request["Entries"].as_array().unwrap();
        assert!((1..=10).contains(&entries.len()) && received.body.len() <= 300_000);
        let treatment = std::mem::take(&mut *self.next.lock().unwrap_or_else(PoisonError::into_inner));
        match treatment {
            Treatment::Fault(Fault::Silence) => {}
            Treatment::Fault(Fault::Refuse) => {
                return whole(400, &json!({ "__type": "ValidationException", "message": "refused" }));
            }
            _ => return self.accept(entries, treatment),
        }
        self.reached.notify_one();
        Reply::Silence
    }

    fn accept(&self, entries: &[Value], treatment: Treatment) -> Reply {
        let mut results = Vec::new();
        // `RefusesSome` refuses the second, the fifth and the eighth event of a request, or a request's only event.
        let refused = usize::from(entries.len() > 1);
        for (nth, entry) in entries.iter().enumerate() {
            if treatment == Treatment::RefusesSome && nth % 3 == refused {
                results.push(json!({ "ErrorCode": "ThrottlingException", "ErrorMessage": "slow down" }));
                continue;
            }
            let mut event = entry.clone();
            event["Detail"] = serde_json::from_str(entry["Detail"].as_str().unwrap()).unwrap();
            let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
            accepted.push(event);
            // EventBridge gives a new id to each event that it accepts.
            results.push(json!({ "EventId": format!("event-{}", accepted.len()) }));
        }
        let failed = results.iter().filter(|result| result.get("EventId").is_none()).count();
        match treatment {
            Treatment::Fault(Fault::SilenceAfter) => {
                self.reached.notify_one();
                Reply::Silence
            }
            Treatment::Fault(Fault::LoseAnswer) => Reply::Dropped,
            _ => whole(200, &json!({ "FailedEntryCount": failed, "Entries": results })),
        }
    }
}

fn whole(status: u16, body: &Value) -> Reply {
    let headers = vec![("content-type".to_owned(), "application/x-amz-json-1.1".to_owned())];
    Reply::Whole(status, headers, body.to_string().into_bytes())
}
