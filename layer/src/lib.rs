//! A Lambda layer that makes functions in any language idempotent.
//!
//! It's a client of Lambda's Runtime API, and a server of the same API to the function. Between the two it uses
//! `lambda-idempotency`: it claims an event's key before the function gets the event, and records the answer before
//! Lambda gets it.

mod answer;
mod batch;
mod callers;
mod child;
#[cfg(feature = "kms")]
mod cipher;
mod config;
mod described;
#[cfg(feature = "fuzz")]
pub mod edge;
mod event;
mod extension;
mod function;
mod http;
#[cfg(feature = "in-memory")]
pub mod in_memory;
mod invoke;
mod limited;
mod logs;
mod memory;
mod proxy;
mod recorded;
mod server;
mod telemetry;
mod turn;
mod upstream;

use std::{ffi::OsString, process::ExitCode, sync::Arc, time::Duration};

use config::{Config, Rules};
use extension::Extension;
use lambda_idempotency::{Idempotency, settings::Mode, store::Store};
use proxy::Proxy;
use telemetry::Telemetry;
use turn::Protection;
use upstream::{BoxError, Upstream};

const USAGE: &str = "usage: idempotency-extension [-- COMMAND ARGUMENTS…]\n\n\
                     The program puts a proxy between Lambda and the function's runtime. With a command, it runs the\n\
                     command, which starts the runtime. Without a command, it's a Lambda extension, and the wrapper\n\
                     script starts the runtime. Settings are in environment variables that begin with IDEMPOTENCY_.";

/// How long the program waits for outcomes that are being recorded, once the function's process has ended: a healthy
/// store takes milliseconds, and a restarted runtime waits for this program.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(5);
/// How long an extension waits for outcomes that are being recorded, after the event SHUTDOWN. Lambda kills the
/// extension 2,000 ms after the shutdown begins. The runtime ends first, and takes up to 500 ms of that time ("Using
/// the Lambda Extensions API to create extensions", AWS Lambda developer guide). The last 100 ms are for the program's
/// exit.
const SETTLEMENTS_AT_SHUTDOWN: Duration = Duration::from_millis(1_400);

/// Runs the program. `arguments` doesn't include the program's name.
///
/// It blocks until the function's process ends, or Lambda ends the sandbox.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.collect();
    let command = match arguments.split_first() {
        None => None,
        Some((first, command)) if first == "--" && !command.is_empty() => Some(command),
        Some(_) => {
            report(USAGE);
            return ExitCode::from(2);
        }
    };
    logs::start();
    let is_concurrent = std::env::var("AWS_LAMBDA_MAX_CONCURRENCY").is_ok_and(|most| most != "1");
    // One thread is enough for one invocation at a time, and takes less memory.
    let mut runtime = match is_concurrent {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let ended = match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(run(command)),
        Err(error) => Err(error.into()),
    };
    ended.unwrap_or_else(|error| {
        match logs::is_json() {
            true => tracing::error!("{error}"),
            false => report(&format!("idempotency-extension: {error}")),
        }
        ExitCode::FAILURE
    })
}

async fn run(command: Option<&[OsString]>) -> Result<ExitCode, BoxError> {
    let api = std::env::var(child::RUNTIME_API)
        .map_err(|_| format!("{} isn't set; run this in Lambda or its emulator", child::RUNTIME_API))?;
    let upstream = Upstream::new(api);
    let built = build(&upstream).await;
    match command {
        Some(command) => in_front(command, upstream, built).await,
        None => beside(upstream, built).await,
    }
}

/// The proxy, its protection (`None` if the mode is `off`), and the port for use as an extension.
type Built = (Proxy, Option<Arc<Protection>>, u16);

async fn build(upstream: &Upstream) -> Result<Built, String> {
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, "the idempotency layer {version} starts");
    let config = Config::of_process()?;
    if config.is_off_anyway {
        return Ok(off_anyway(config, upstream));
    }
    let store = config.store.open().await.map_err(|error| error.to_string())?;
    // In mode `off`, the library returns an error if the environment requires protection, and warns otherwise.
    let idempotency = open(&config.rules, store).await?;
    // The setting names another proxy between the layer and Lambda, from which the layer gets the invocations. The
    // Extensions API is always Lambda's own.
    let upstream = config.upstream.map_or_else(|| upstream.clone(), Upstream::new);
    let telemetry = Telemetry::start_if(config.has_metrics);
    let protection = (config.rules.settings.mode != Mode::Off)
        .then(|| Protection::new(idempotency, config.rules, upstream.clone(), telemetry));
    let protection = protection.transpose().map_err(|error| error.to_string())?;
    if let Some(protection) = protection.clone() {
        described::log(&protection);
        tokio::spawn(async move { protection.rules.callers.start(config::is_snapshotted()).await });
    }
    Ok((Proxy::new(upstream, protection.clone(), telemetry), protection, config.port))
}

/// Builds the library's `Idempotency`, with the cipher if a setting names one.
async fn open(rules: &Rules, store: Arc<dyn Store>) -> Result<Idempotency, String> {
    #[cfg(feature = "kms")]
    if let Some(key) = rules.kms_key.as_ref().filter(|_| rules.settings.mode != Mode::Off) {
        let cipher = cipher::Kms::open(key).await?;
        return rules.open_with(store, |builder| builder.cipher(cipher));
    }
    rules.open(store)
}

/// The proxy without protection, in the mode `off!`. The library would refuse the mode `off` if
/// `IDEMPOTENCY_REQUIRED=1` is set and `off!` is in the file, which the library doesn't read.
fn off_anyway(config: Config, upstream: &Upstream) -> Built {
    let telemetry = Telemetry::start_if(config.has_metrics);
    tracing::error!(
        event = "required_overridden",
        mode = "off!",
        "idempotency is switched off by IDEMPOTENCY_MODE=off!, whatever IDEMPOTENCY_REQUIRED says: every event runs, \
         duplicates too. Remove the mode when the emergency is over"
    );
    telemetry.not_enforced();
    telemetry.flush();
    let upstream = config.upstream.map_or_else(|| upstream.clone(), Upstream::new);
    (Proxy::new(upstream, None, telemetry), None, config.port)
}

/// Starts the proxy, and the function's runtime behind it.
async fn in_front(
    command: &[OsString],
    upstream: Upstream,
    built: Result<Built, String>,
) -> Result<ExitCode, BoxError> {
    let (proxy, protection, _) = match built {
        Ok(built) => built,
        Err(problem) => {
            // The caller of the function gets the error message too.
            if let Err(error) = upstream.cannot_start(&problem).await {
                tracing::error!(error = &*error, "couldn't report that the function can't start");
            }
            return Err(problem.into());
        }
    };
    let (listener, address) = server::listen(0).await?;
    tokio::spawn(server::serve(listener, proxy));
    warm_up(protection.as_ref());
    let child = child::Function::start(command, address)
        .map_err(|error| format!("{} can't be started: {error}", command[0].display()))?;
    let code = child.ended().await?;
    if let Some(protection) = protection {
        protection.function_ended();
        protection.settled(LAST_SETTLEMENTS).await;
    }
    Ok(ExitCode::from(code))
}

/// Connects to the store in the background, while the function's runtime starts.
fn warm_up(protection: Option<&Arc<Protection>>) {
    if let Some(protection) = protection.cloned() {
        tokio::spawn(async move { protection.idempotency.warm_up().await });
    }
}

/// Runs the proxy as an extension. The wrapper script starts the function's runtime.
async fn beside(upstream: Upstream, built: Result<Built, String>) -> Result<ExitCode, BoxError> {
    let extension;
    let serving = match built {
        // Listen before registering: the runtime needs the port, and starts once every extension is registered.
        Ok((proxy, protection, port)) => match server::listen(port).await {
            Ok((listener, _)) => {
                tokio::spawn(server::serve(listener, proxy));
                Ok(protection)
            }
            Err(error) => {
                Err(format!("can't listen on loopback port {port}: {error}; set another IDEMPOTENCY_PORT"))
            }
        },
        Err(problem) => Err(problem),
    };
    // Without REQUIRED, Lambda's own events show whether the runtime bypasses the layer. They cost the sandbox a request
    // per invocation. Managed Instances don't offer them.
    let is_told =
        |protection: &Arc<Protection>| !protection.rules.is_required && !protection.rules.is_managed;
    let hears_invocations = serving.as_ref().is_ok_and(|protection| protection.as_ref().is_some_and(is_told));
    extension = Extension::register(upstream, hears_invocations).await?;
    let protection = match serving {
        Ok(protection) => protection,
        Err(problem) => {
            if let Err(error) = extension.cannot_start(&problem).await {
                tracing::error!(error = &*error, "couldn't report that the extension can't start");
            }
            return Err(problem.into());
        }
    };
    warm_up(protection.as_ref());
    if let Some(protection) = protection.as_ref().filter(|protection| protection.rules.is_required) {
        // Lambda hands out no invocation until each extension has asked for its first event ("Understanding the Lambda
        // execution environment lifecycle", AWS Lambda developer guide). So while this process waits here, a runtime
        // that isn't behind the layer gets no invocation. If the runtime exits before its first request, the sandbox's
        // shutdown takes up to 2 s longer, since the event SHUTDOWN can't reach this process while it waits.
        protection.reached().await;
    }
    let invoked = || protection.as_ref().map_or((), |protection| protection.invoked());
    let is_in_order = extension.ended(invoked).await?;
    if let Some(protection) = protection {
        // Check this only after a normal end: a runtime that fails or times out during its init may send no request,
        // although the layer is in front of it.
        match is_in_order {
            true => protection.check_reached(),
            // Lambda has ended the runtime's process, or found that it has ended ("Shutdown phase", AWS Lambda developer
            // guide).
            false => protection.function_ended(),
        }
        // After a timeout, the function's last answer may still be on its way to the store.
        protection.settled(SETTLEMENTS_AT_SHUTDOWN).await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard error, which Lambda puts into the function's log.
#[expect(clippy::print_stderr, reason = "the program prints why it exits")]
fn report(text: &str) {
    eprintln!("{text}");
}
