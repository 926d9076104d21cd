//! Processes die and stand still, at every point of a run and at moments that nobody chose, and the effects are counted.
//!
//! The function under test is a real one, of this package: `net-function`, behind the library's event layer, in processes
//! under the rehearsal's Runtime API. It can be made to stand at each point of a run ([`point`]); the harness then
//! kills it there, or freezes it until after its lease ([`scenario`]). And it is killed and frozen at random ([`kills`]).
//! Every effect is a line in a ledger, and the [`judge`] has the last word: one effect, and one more for each crash
//! between an effect and its completion.
//!
//! Where each of the ways is tested in which a run can break off (the lost and the late answers are the wire net's):
//!
//! | what happens | killed at | frozen beyond the lease at | so that |
//! |---|---|---|---|
//! | nothing of the claim is sent | `entered`, `before_claim_sent` | the same | one effect; a claim that is sent late finds the outcome |
//! | the claim is made, its answer never read | `after_claim_applied` | the same | one effect, under the next claim; a claim with no time left is given back |
//! | crash after the claim, before the effect | `before_effect` | the same | one effect; a handler whose time is over is cut off before it |
//! | **crash between effect and completion** | `after_effect`, `before_completion_sent` | the same | two effects: the gap |
//! | the completion is fenced | | `before_completion_sent` | the late run answers with its successor's outcome |
//! | the completion is made, its answer never read | `after_completion_applied` | the same | one effect |
//! | answered before the completion is stored | `answered` | the same | one effect: it never is |
//! | the release is lost | `before_release_sent` | the same | one effect, after the lease |
//! | the release is made | `after_release_applied` | the same | one effect, at once |
//! | the same for a claim of a released key | `before_reclaim_sent`, `after_reclaim_applied` | the same | one effect |
//! | the same for a takeover | `before_takeover_sent`, `after_takeover_applied` | the same | one effect |
//!
//! Panics, dropped futures and a store that is down are the engine's own tests' and the wire net's.
//!
//! Where the effect is in the completion's own transaction, or is put with the finished record without a claim
//! ([`form`]), there is no gap: its keys are judged by [`judge::Promise::ExactlyOnce`].
//!
//! The harness kills nothing because it is slow. It lets processes go on beyond their deadlines, as only some platforms do,
//! where the library cuts its handlers off: then every SIGKILL is one of the schedule's.

pub mod backend;
mod fleet;
pub mod form;
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

use lambda_idempotency_cli::{
    problem::{Context, Result},
    rehearse::function::Function,
};

/// Names the function under test, where it is built already.
pub const BUILT: &str = "NET_FUNCTION_BUILT";

/// Builds the function under test, in the profile that this program was itself built in; or takes the one that
/// [`BUILT`] names.
///
/// # Errors
///
/// If cargo cannot build it.
pub async fn build_function() -> Result<Function> {
    if let Ok(program) = std::env::var(BUILT) {
        return Ok(Function::at(&program));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = std::env::current_exe().context("the place of this program")?;
    // Cargo calls the folder after the profile; of its own ones, `dev` alone has another.
    let folder = program.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let profile = folder.filter(|name| *name != "debug").unwrap_or("dev");
    let choice = ["--package", env!("CARGO_PKG_NAME"), "--profile", profile];
    Function::build(&workspace, job::FUNCTION, &choice).await
}
