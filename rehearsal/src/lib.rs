//! The rehearsal: runs a function as it would be deployed, delivers events to it twice, concurrently, and across
//! crashes and lost responses, and reports the outcome as a table.
//!
//! [`main`] is the command. Its parts are public, because other packages' tests use them: the embedded DynamoDB
//! ([`database`]), a proxy that breaks the wire to it ([`wire`]), and functions in processes that can be frozen and
//! killed, behind an emulator of Lambda's Runtime API ([`function`]). These parts have no stable API.

pub mod answer;
mod batch;
pub mod clock;
mod columns;
pub mod database;
mod drawn;
pub mod dynamodb;
pub mod event;
pub mod expect;
pub mod function;
pub mod http;
mod judge;
mod measured;
pub mod problem;
mod report;
pub mod runs;
mod runtime_api;
mod stage;
mod steps;
pub mod wire;

use std::{
    ffi::OsString,
    future::poll_fn,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
    task::Poll,
};

use clap::{Args, FromArgMatches as _};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Mutex,
};

use crate::problem::{Context, Problem, Result};
use batch::Orders;
use database::{Database, Tables};
use event::{Event, Events};
use expect::{Expect, Source};
use function::Function;
use report::Row;
use stage::World;

/// Options of a rehearsal.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Use a DynamoDB that's already running, such as DynamoDB Local, instead of the embedded one.
    #[arg(long, value_name = "URL")]
    endpoint_url: Option<String>,

    /// Rehearse the function that this command starts, instead of the example functions.
    #[arg(long, value_name = "COMMAND", requires = "event", group = "subject")]
    function: Option<String>,

    /// Instead of --function: the command as separate words, after `--`.
    #[arg(last = true, value_name = "COMMAND", requires = "event", group = "subject")]
    command: Vec<String>,

    /// Start the function behind the Lambda layer. The IDEMPOTENCY_ variables of the rehearsal's environment are
    /// the layer's settings. PROGRAM is the layer's executable; without PROGRAM, cargo builds the layer.
    #[arg(
        long,
        value_name = "PROGRAM",
        num_args = 0..=1,
        require_equals = true,
        requires = "subject"
    )]
    layer: Option<Option<PathBuf>>,

    /// The event for the function: any JSON. An `idempotency-key` header in it gets a fresh value in each step.
    #[arg(long, value_name = "FILE", requires = "subject")]
    event: Option<PathBuf>,

    /// The event to redeliver. Without this option, a redelivery is the first event with only the changes that AWS
    /// makes: to an HTTP request's id, times and trace, and to a message's receipt handle and receive count.
    #[arg(long, value_name = "FILE", requires = "event")]
    again: Option<PathBuf>,

    /// Count the lines of the function's output that contain TEXT as runs of its handler.
    #[arg(long, value_name = "TEXT", requires = "subject")]
    count_runs: Option<String>,

    /// How often the function's handler may run.
    #[arg(long, value_enum, value_name = "HOW OFTEN", default_value = "at-least-once", requires = "subject")]
    expect: Expect,

    /// The function takes batches from this source. If the event is a batch, only its first record is delivered. For a
    /// queue, the event can also be the body of one message.
    #[arg(long, value_enum, value_name = "SOURCE", requires = "subject")]
    batch: Option<Source>,

    /// The function commits its own writes with its outcome: each outcome must be recorded by a transaction. Its own
    /// tables must exist in the DynamoDB of --endpoint-url.
    #[arg(long, requires = "subject")]
    transactional: bool,

    /// Print the table as JSON.
    #[arg(long)]
    json: bool,

    /// Also write a page with a drawing of each step to FILE.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Arguments {
    /// Parses the options of a command line, given without the command's name.
    ///
    /// # Errors
    ///
    /// If the command line isn't valid.
    pub fn parse(words: &[&str]) -> Result<Self> {
        let command = Self::augment_args(clap::Command::new("idempotency-rehearse").no_binary_name(true));
        let matches = command.try_get_matches_from(words).context("the command line isn't valid")?;
        Self::from_arg_matches(&matches).context("the command line isn't valid")
    }
}

/// Runs the rehearsal, and returns the faults of all rows. It installs no signal handlers, because they would stay in
/// the caller's process afterwards: a signal such as Ctrl-C would then no longer end that process.
///
/// # Errors
///
/// If the rehearsal couldn't do its work.
pub async fn faults(arguments: &Arguments) -> Result<Vec<String>> {
    let world = set_up(arguments).await?;
    let started = clock::start();
    let played = play(&world).await;
    remove_tables(&world).await;
    let played = played?;
    write_page(arguments, &world, &played, started.elapsed().as_secs_f32())?;
    let named = |row: Row| {
        let Row { step, name, delivered, faults, .. } = row;
        faults.into_iter().map(move |fault| format!("{step} {name}, {delivered}: {fault}"))
    };
    Ok(played.into_iter().flat_map(named).collect())
}

/// Runs the rehearsal. The exit code says whether every check passed.
pub fn main(arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("couldn't start the asynchronous runtime")?.block_on(rehearse(arguments))
}

async fn rehearse(arguments: &Arguments) -> Result<ExitCode> {
    let world = set_up(arguments).await?;
    let mut interruptions = Interruptions::listen();
    let started = clock::start();
    let played = tokio::select! {
        played = play(&world) => played,
        () = interruptions.next() => Err(Problem::new("interrupted")),
    };
    take_down(&world, &mut interruptions).await;
    let rows = played?;

    let seconds = started.elapsed().as_secs_f32();
    print_report(&rows, arguments.json);
    eprintln!("{}", report::summary(&rows, seconds));
    write_page(arguments, &world, &rows, seconds)?;
    Ok(if report::all_ok(&rows) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the page with the drawings, if it's asked for.
fn write_page(arguments: &Arguments, world: &World, rows: &[Row], seconds: f32) -> Result<()> {
    let Some(file) = &arguments.report else { return Ok(()) };
    let page = drawn::page(&world.function.name(), rows, seconds);
    std::fs::write(file, page).context(format!("couldn't write the report to {}", file.display()))
}

/// Builds the function, and starts the embedded DynamoDB or connects to the one that the user named.
async fn set_up(arguments: &Arguments) -> Result<World> {
    let Subject { function, events, orders, charges } = subject(arguments).await?;
    let database = match &arguments.endpoint_url {
        Some(url) => Database::at(url).await?,
        None => Database::embedded().await?,
    };
    let run_id = format!("{:x}-{}", clock::now_ms(), std::process::id());
    let tables = Tables {
        idempotency: format!("idempotency-rehearsal-{run_id}"),
        payments: format!("payments-rehearsal-{run_id}"),
    };
    let kind = if database.is_embedded() { "embedded" } else { "already running" };
    eprintln!("DynamoDB: {kind}, at {}", database.endpoint());
    if !events.take_keys() {
        eprintln!(
            "The event has no `idempotency-key` header: all steps use the same key, and each step has its own table."
        );
    }
    let is_payments = arguments.event.is_none();
    let show = |line: &str| eprintln!("{line}");
    let created = Mutex::default();
    let Arguments { expect, batch, transactional: is_transactional, .. } = *arguments;
    Ok(World {
        function,
        is_payments,
        events,
        orders,
        charges,
        expect,
        batch,
        is_transactional,
        database,
        tables,
        created,
        run_id,
        show,
    })
}

/// Creates the tables, and runs the steps.
async fn play(world: &World) -> Result<Vec<Row>> {
    world.create_idempotency_table(&world.tables.idempotency).await?;
    if world.is_payments {
        world.create_payments_table(&world.tables.payments).await?;
    }
    steps::play(world).await
}

/// Ctrl-C, Ctrl-\, SIGHUP (the terminal was closed) and SIGTERM (CI cancels the job). The functions have their own process
/// groups, so these signals don't end them. The rehearsal ends the functions by dropping their sandboxes.
///
/// One listener lasts until the end: a listener gets only the signals that arrive after its creation. So a listener
/// for the removal of the tables alone could miss a second Ctrl-C.
struct Interruptions(Vec<Signal>);

impl Interruptions {
    /// If no handler can be installed for a signal, that signal ends the process.
    fn listen() -> Self {
        let kinds =
            [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup(), SignalKind::terminate()];
        Self(kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect())
    }

    async fn next(&mut self) {
        let signals = &mut self.0;
        poll_fn(|cx| {
            let has_any = signals.iter_mut().any(|signals| signals.poll_recv(cx).is_ready());
            if has_any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// The function under test and its events. If it's the example function `payments`, also the other example functions.
struct Subject {
    function: Function,
    events: Events,
    orders: Option<Orders>,
    charges: Option<Function>,
}

/// Returns the user's function with its event, or builds the example functions and reads their events.
async fn subject(arguments: &Arguments) -> Result<Subject> {
    if let Some(event) = &arguments.event {
        let mark = arguments.count_runs.clone();
        let function = match &arguments.function {
            Some(command) => Function::from_command(command, mark)?,
            None => Function::from_words(arguments.command.iter().cloned(), mark)?,
        };
        let words = arguments.command.join(" ");
        eprintln!("Rehearsing {}", arguments.function.as_ref().unwrap_or(&words));
        let function = match &arguments.layer {
            Some(layer) => behind_layer(function, layer.as_deref()).await?,
            None => function,
        };
        let read = |path: &Path| {
            let event = Event::read(path)?;
            match arguments.batch {
                Some(source) => event.in_batch(source),
                None => event.refuse_batch(),
            }
        };
        let events = match &arguments.again {
            Some(again) => Events { first: read(event)?, again: read(again)?, conflicting: None },
            None => Events::of_one(read(event)?),
        };
        return Ok(Subject { function, events, orders: None, charges: None });
    }
    let workspace = workspace();
    if !workspace.join("events/payments").is_dir() {
        return Err(Problem::new(
            "rehearsing the example functions needs a clone of the repository: run the command there, or name your own \
             function with --function and --event",
        ));
    }
    eprintln!("Building the example functions: cargo build --bin payments --bin orders --bin charges");
    let events = Events::of_payments(&workspace.join("events/payments"))?;
    let function = Function::build_example(&workspace, "payments", "creating payment").await?;
    let orders = Function::build_example(&workspace, "orders", "shipping an order").await?;
    let orders = Some(Orders::new(orders, &workspace.join("events/orders"))?);
    let charges = Some(Function::build_example(&workspace, "charges", "charging an order").await?);
    Ok(Subject { function, events, orders, charges })
}

/// Returns the `IDEMPOTENCY_` variables, which are the layer's settings. The variables that choose a store are left
/// out, because the rehearsal has its own table.
fn layer_settings(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>> {
    let is_setting = |name: &str| {
        name.starts_with("IDEMPOTENCY_") && !["IDEMPOTENCY_TABLE", "IDEMPOTENCY_STORE"].contains(&name)
    };
    let named = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let read = |(name, value): (String, OsString)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(Problem::new(format!("the variable {name} isn't UTF-8: set it to text, or unset it"))),
    };
    named.filter(|(name, _)| is_setting(name)).map(read).collect()
}

/// Puts the function behind the layer, with this process's variables as the layer's settings.
async fn behind_layer(function: Function, layer: Option<&Path>) -> Result<Function> {
    let settings = layer_settings(std::env::vars_os())?;
    if let Some(layer) = layer {
        return Ok(function.behind(layer, settings));
    }
    if !workspace().join("layer").is_dir() {
        return Err(Problem::new(
            "building the layer needs a clone of the repository: run the command there, or name a layer that's \
             already built with --layer=PROGRAM",
        ));
    }
    eprintln!("Building the layer: cargo build --bin idempotency-extension");
    let built = Function::build(&workspace(), "idempotency-extension", &[]).await?;
    Ok(function.behind(built.program(), settings))
}

/// The repository's folder, in a clone.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Removes the tables. If the user interrupts this, prints how to find the remaining tables.
async fn take_down(world: &World, interruptions: &mut Interruptions) {
    tokio::select! {
        () = remove_tables(world) => {}
        () = interruptions.next() => eprintln!(
            "idempotency-rehearse: interrupted before all tables were deleted: delete those with `{}` in their names",
            world.run_id
        ),
    }
}

/// Removes the tables from a DynamoDB that outlives the rehearsal. If a table can't be removed, prints its name and
/// continues.
async fn remove_tables(world: &World) {
    if world.database.is_embedded() {
        return;
    }
    for table in world.created.lock().await.drain(..) {
        if let Err(problem) = world.database.delete_table(&table).await {
            eprintln!("idempotency-rehearse: couldn't delete the table {table}: {problem}");
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report is the command's output")]
fn print_report(rows: &[Row], as_json: bool) {
    if as_json {
        print!("{}", report::json(rows));
    } else {
        let stdout = std::io::stdout();
        let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        print!("\n{}\n", report::table(rows, colour));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn only_a_setting_must_be_utf8() {
        let binary = || OsString::from_vec(vec![0xff]);
        let others = [
            (binary(), "1".into()),
            ("LS_COLORS".into(), binary()),
            ("IDEMPOTENCY_TABLE".into(), "t".into()),
            ("IDEMPOTENCY_KEY".into(), "/id".into()),
        ];
        let settings = layer_settings(others.into_iter()).unwrap();
        assert_eq!(settings, [("IDEMPOTENCY_KEY".to_owned(), "/id".to_owned())]);
        let wrong = [(OsString::from("IDEMPOTENCY_KEY"), binary())];
        let problem = layer_settings(wrong.into_iter()).unwrap_err().to_string();
        assert_eq!(problem, "the variable IDEMPOTENCY_KEY isn't UTF-8: set it to text, or unset it");
    }
}
