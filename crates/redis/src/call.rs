//! One request of the store: its attempts, and whether the write may have been applied.

use std::sync::atomic::Ordering;

use redis::{Cmd, Pipeline, Value, cmd};

use super::{
    RedisStore,
    cluster::slot,
    connection::{Live, Node},
    fault::{Class, Fault},
    transition::{Check, Transition},
};
use lambda_idempotency_core::store::{StoreError, toolkit::Stopwatch, toolkit::within};

/// The maximum number of attempts without redirection: one over the open connection, and one over a new connection if
/// the open one is dead. More aren't needed here, since the library retries a failed call with backoff.
const MAX_ATTEMPTS: usize = 2;
/// The maximum number of redirections. A consistent cluster needs one.
const MAX_REDIRECTIONS: usize = 5;

/// The kind of request on one record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request<'a> {
    Transition(&'a Transition<'a>),
    Read,
}

/// The script's answer if it applied the write, although it couldn't check the eviction policy.
const UNCHECKED: &str = "UNKNOWN";

impl Request<'_> {
    /// Whether this request can have an answer of this kind.
    fn is_answered_by(self, answer: &Value, check: Check) -> bool {
        match answer {
            Value::Array(_) => true,
            Value::Int(1) => matches!(self, Self::Transition(_)),
            Value::SimpleString(text) => text == UNCHECKED && check == Check::All,
            _ => false,
        }
    }
}

impl RedisStore {
    /// Sends `request` for the record under `key`, and returns Redis's answer.
    ///
    /// A transition that may have been applied is sent again. It's applied at most once, however many copies
    /// arrive, and however late, because its condition doesn't hold a second time.
    pub(super) async fn call(&self, key: &str, request: Request<'_>) -> Result<Value, StoreError> {
        let mut maybe_applied = false;
        let attempts = self.attempts(key, request, &mut maybe_applied);
        let answer = within(self.inner.operation_timeout, attempts).await;
        let answer = answer.unwrap_or_else(|| Err(Fault::new(Class::TimedOut, self.inner.nodes.seed())));
        // A read writes nothing, so it's never ambiguous.
        answer.map_err(|fault| fault.into_error(maybe_applied && !matches!(request, Request::Read)))
    }

    async fn attempts(
        &self,
        key: &str,
        request: Request<'_>,
        maybe_applied: &mut bool,
    ) -> Result<Value, Fault> {
        let (nodes, connector) = (&self.inner.nodes, &self.inner.connector);
        let (mut attempts, mut redirections) = (0, 0);
        let mut redirected: Option<(std::sync::Arc<Node>, bool)> = None;
        loop {
            let (node, asks) = match redirected.take() {
                Some(redirected) => redirected,
                None => (nodes.of(slot(key), connector).await?, false),
            };
            attempts += 1;
            let fault = match self.attempt(&node, key, request, asks, maybe_applied).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            match &fault.class {
                Class::Elsewhere { .. } if !nodes.is_cluster() => {
                    return Err(Fault::new(Class::IsCluster, &node.address));
                }
                Class::Elsewhere { node, permanent } if redirections < MAX_REDIRECTIONS => {
                    if *permanent {
                        nodes.forget();
                    }
                    redirected = Some((nodes.at(node), !permanent));
                    (attempts, redirections) = (0, redirections + 1);
                }
                // Another node may have taken over this node's slots.
                Class::NotReached if nodes.is_cluster() && attempts < MAX_ATTEMPTS => nodes.forget(),
                _ if fault.may_pass_at_once() && attempts < MAX_ATTEMPTS => nodes.forget(),
                _ => return Err(fault),
            }
        }
    }

    /// Sends the request to `node` once, after `ASKING` if `asks` is set. Sets `maybe_applied` before the request is
    /// sent, and restores the earlier value if Redis certainly didn't apply the request.
    async fn attempt(
        &self,
        node: &Node,
        key: &str,
        request: Request<'_>,
        asks: bool,
        maybe_applied: &mut bool,
    ) -> Result<Value, Fault> {
        let live = node.connection(&self.inner.connector).await?;
        let before = std::mem::replace(maybe_applied, true);
        let (check, watch) = (self.check_of(request, &live), Stopwatch::start());
        let answer = within(self.inner.connector.timeout, sent(&live, node, key, request, check, asks)).await;
        let answer = match answer {
            Some(Ok(answer)) if request.is_answered_by(&answer, check) => {
                if check != Check::Nothing && !matches!(answer, Value::Array(_)) {
                    live.set_checked();
                }
                if matches!(answer, Value::SimpleString(_)) {
                    self.warn_of_unknown_policy(node);
                    return Ok(Value::Int(1));
                }
                return Ok(answer);
            }
            Some(Ok(_)) => Err(Fault::new(Class::Unreadable, &node.address)),
            Some(Err(fault)) => Err(fault),
            None => Err(Fault::new(Class::TimedOut, &node.address)),
        };
        if let Err(fault) = &answer {
            *maybe_applied = before || !fault.is_definite();
            if fault.ends_connection() {
                node.discard(&live);
            }
            if matches!(fault.class, Class::Lost | Class::TimedOut) {
                self.inner.nodes.discard_silent_for(watch.read());
            }
        }
        answer
    }

    /// What `request` has to check. The first claim over each connection checks the server, in its own round trip: the
    /// server behind an address may change at a fail-over.
    fn check_of(&self, request: Request<'_>, live: &Live) -> Check {
        match request {
            Request::Transition(transition) if transition.claims() && !live.is_checked() => {
                if self.inner.accepts_eviction { Check::Commands } else { Check::All }
            }
            _ => Check::Nothing,
        }
    }

    /// Warns once that the eviction policy is unknown. The store goes on: some services never say their policy, and the
    /// permission to ask for it isn't among those that the store needs.
    fn warn_of_unknown_policy(&self, node: &Node) {
        if self.inner.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            target: "lambda_idempotency", event = "eviction_unknown", server = %node.address,
            "the eviction policy of Redis is unknown: if it isn't noeviction, Redis removes live records when its memory \
             is full, and their operations run again. Let the user run INFO (+info), or check maxmemory-policy and add \
             eviction=accepted to the URL"
        );
    }
}

async fn sent(
    live: &Live,
    node: &Node,
    key: &str,
    request: Request<'_>,
    check: Check,
    asks: bool,
) -> Result<Value, Fault> {
    let send = async |command| send(live, node, command, asks).await;
    match request {
        Request::Read => send(cmd("HGETALL").arg(key).take()).await,
        Request::Transition(transition) => match send(transition.by_digest(key, check)).await {
            // Redis has restarted, or has flushed its scripts.
            Err(fault) if fault.class == Class::NoScript => send(transition.by_source(key, check)).await,
            answer => answer,
        },
    }
}

async fn send(live: &Live, node: &Node, command: Cmd, asks: bool) -> Result<Value, Fault> {
    if !asks {
        return live.send(&command, &node.address).await;
    }
    // While a slot is being moved to a node, the node accepts a request for that slot only directly after `ASKING`.
    let mut commands = Pipeline::new();
    commands.cmd("ASKING").add_command(command);
    live.send_all(&commands, 2, &node.address).await
}
