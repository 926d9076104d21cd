//! Kills and freezes processes, at every point of a run and at random moments, and counts the effects.
//!
//! The function under test is a real one from this package: `verification-function`, behind the library's event layer,
//! in processes under the rehearsal's Runtime API. A process can pause at each point of a run ([`point`]). There,
//! the harness kills it, or freezes it until after its lease ([`scenario`]). The harness also kills and freezes
//! processes at random moments ([`kills`]). Every effect is a line in a ledger. The [`judge`] allows one effect,
//! plus one more for each crash in the gap between an effect and the completion that records it.
//!
//! This table lists the ways in which a run can be interrupted, and the points where the check tests each. The wire
//! check covers lost and late answers.
//!
//! | what happens | killed at | frozen beyond the lease at | result |
//! |---|---|---|---|
//! | the claim isn't sent | `entered`, `before_claim_sent` | `entered`, `before_claim_sent` | one effect; a late claim finds the outcome |
//! | the claim's answer is never read | `after_claim_applied` | `after_claim_applied` | one effect, under the next claim |
//! | crash after the claim, before the effect | `before_effect` | `before_effect` | one effect; a late handler is cut off |
//! | **crash between effect and completion** | `after_effect`, `before_completion_sent` | `after_effect`, `before_completion_sent` | two effects |
//! | the completion is fenced | | `before_completion_sent` | the late run replays its successor's outcome |
//! | the completion's answer is never read | `after_completion_applied` | `after_completion_applied` | one effect |
//! | the answer isn't sent | `answered` | `answered` | one effect: the completion was stored before |
//! | the release is lost | `before_release_sent` | `before_release_sent` | one effect, once the lease has expired |
//! | the release is applied | `after_release_applied` | `after_release_applied` | one effect, without a wait for the lease |
//! | a reclaim is interrupted | `before_reclaim_sent`, `after_reclaim_applied` | `before_reclaim_sent`, `after_reclaim_applied` | one effect |
//! | a takeover is interrupted | `before_takeover_sent`, `after_takeover_applied` | `before_takeover_sent`, `after_takeover_applied` | one effect |
//!
//! After a freeze, the library releases a claim with no time left, and cuts off a handler whose time is over.
//!
//! The library's own tests and the wire check cover panics, dropped futures and a store that is down.
//!
//! If one transaction writes the effect and the outcome, there's no gap between them, with or without a claim
//! ([`form`]). The judge then allows exactly one effect ([`judge::Promise::ExactlyOnce`]).
//!
//! The harness never kills a process for being slow, so every SIGKILL comes from the schedule. Processes run beyond
//! their deadlines, as on some platforms, so the library itself must cut its handlers off.

pub mod backend;
pub mod effects;
mod fleet;
pub mod form;
pub mod gateway;
pub mod job;
pub mod judge;
pub mod kills;
pub mod ledger;
pub mod point;
pub mod record;
pub mod sabotage;
pub mod scenario;
mod story;

use std::path::Path;

use lambda_idempotency_rehearsal::{
    function::Function,
    problem::{Context, Result},
};

/// The environment variable with the path of an already built function under test.
pub const BUILT: &str = "NET_FUNCTION_BUILT";

/// Builds the function under test in this program's own build profile, or returns the one that [`BUILT`] names.
///
/// # Errors
///
/// If cargo can't build it.
pub async fn build_function() -> Result<Function> {
    if let Ok(program) = std::env::var(BUILT) {
        return Ok(Function::at(&program));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = std::env::current_exe().context("couldn't find this program's path")?;
    // Cargo names the folder after the profile. Only the profile `dev` is in a folder with another name: `debug`.
    let folder = program.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let profile = folder.filter(|name| *name != "debug").unwrap_or("dev");
    Function::build(&workspace, job::FUNCTION, &["--profile", profile]).await
}
