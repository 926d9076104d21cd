//! Runs this test program as a Lambda function, which serves the API of the table of HTTP cases. A deployed example has
//! only one configuration, but this function has all of them. The request's `layered` header names the configuration.

use std::{collections::HashMap, env, time::Duration};

use example_functions::Telemetry;
use lambda_http::{
    Error, Request,
    lambda_runtime::tower::{ServiceBuilder, ServiceExt, service_fn},
    tracing,
};
use lambda_idempotency::{Idempotency, store::dynamodb::DynamoDbStore};

use super::{
    api::{Layered, Runs, Service, api},
    stage::TABLE,
};

/// The line that a handler logs when it runs.
pub(crate) const MARK: &str = "a handler runs";

/// An endpoint with no listener.
const NOWHERE: &str = "http://127.0.0.1:1";

/// The operation timeout of the store at `NOWHERE`. It's short, since retries can't reach that store.
const SOON: Duration = Duration::from_millis(500);

/// The command that starts this program as a function.
pub(crate) fn command() -> String {
    let program = env::current_exe().unwrap();
    format!("{} --ignored --nocapture --exact any_api::as_a_function", program.display())
}

#[tokio::test]
#[ignore = "not a test: other tests start it as a function"]
async fn as_a_function() {
    if env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        serve().await.unwrap();
    }
}

async fn serve() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let runs = Runs::telling(|| tracing::info!("{MARK}"));
    let mut services = HashMap::new();
    for layered in Layered::ALL {
        let engine = match layered {
            Layered::Down => {
                let store = DynamoDbStore::builder(TABLE).endpoint_url(NOWHERE).operation_timeout(SOON);
                Idempotency::builder(store.build().await?)
            }
            _ => Idempotency::builder_from_env().await?,
        };
        services.insert(layered.name(), api(layered, engine, &runs).0);
    }
    let choose = move |request: Request| {
        let layered = request.headers()["layered"].to_str().unwrap();
        Service::clone(&services[layered]).oneshot(request)
    };
    let flushing = ServiceBuilder::new().map_result(telemetry.flush_before());
    lambda_http::run_concurrent(flushing.service(service_fn(choose))).await
}
