//! Runs this test program as a Lambda function. Its work takes as long as the event says, under short leases.

use std::{env, time::Duration};

use lambda_idempotency::{Idempotency, Key, current};
use lambda_idempotency_rehearsal::clock;
use lambda_runtime::{
    Error, LambdaEvent, run_concurrent,
    tower::{ServiceBuilder, service_fn},
    tracing,
};
use serde::{Deserialize, Serialize};

/// The line that the handler logs when it starts.
pub(crate) const MARK: &str = "work begins";
/// The line that the handler logs before it returns.
pub(crate) const END: &str = "work ends";

/// The lease if the deadline isn't known.
pub(crate) const FALLBACK: Duration = Duration::from_secs(20);
pub(crate) const GRACE: Duration = Duration::from_secs(3);
pub(crate) const MARGIN: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Work {
    pub(crate) id: String,
    /// How long the first attempt takes, in ms. Later attempts take no time.
    pub(crate) millis: u64,
    /// Whether the work blocks its thread, so that nothing in the process can cut it off.
    pub(crate) blocks: bool,
}

/// The command that starts this program as a function.
pub(crate) fn command() -> String {
    let program = env::current_exe().unwrap();
    format!("{} --ignored --nocapture --exact any_work::as_a_function", program.display())
}

/// The line that an attempt logs repeatedly while it works.
pub(crate) fn tick(id: &str, attempt: u64) -> String {
    format!("working on {id}, attempt {attempt}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "not a test: other tests start it as a function"]
async fn as_a_function() {
    if env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        serve().await.unwrap();
    }
}

async fn serve() -> Result<(), Error> {
    tracing::init_default_subscriber();
    let builder = Idempotency::builder_from_env().await?;
    let builder = builder.settings(|s| {
        s.lease_fallback = FALLBACK;
        s.lease_grace = GRACE;
        s.skew_margin = MARGIN;
    });
    let layer = builder.build()?.events(|work: &Work| Key::new(&work.id));
    run_concurrent(ServiceBuilder::new().layer(layer).service(service_fn(handle))).await
}

async fn handle(event: LambdaEvent<Work>) -> Result<String, Error> {
    let Work { id, millis, blocks } = event.payload;
    let attempt = u64::from(current().ok_or("no claim: wrap `handle` in the layer")?.attempt());
    tracing::info!("{MARK}");
    if attempt == 1 {
        let (step, end) = (Duration::from_millis(50), clock::now_ms() + millis);
        while clock::now_ms() < end {
            tracing::info!("{}", tick(&id, attempt));
            if blocks { std::thread::sleep(step) } else { clock::pause(step).await }
        }
    }
    tracing::info!("{}", tick(&id, attempt));
    tracing::info!("{END}");
    Ok(format!("{id}, attempt {attempt}"))
}
