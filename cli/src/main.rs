//! `idempotency`: the command line of lambda-idempotency.
//!
//! `EXIT_CODES` lists the exit codes.

mod problem;
mod record;
mod store;
mod sweep;
mod table;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use problem::{Context as _, Result};
use record::{again, inspect, list, settle, watch, why};

/// Look after the records of idempotent functions, and their table.
#[derive(Debug, Parser)]
#[command(name = "idempotency", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  the record doesn't exist, it changed before the write, or `why` found no valid key
  2  the command failed, or the table has an error";

const COMPLETE_EXAMPLES: &str = "\
Examples:
  An HTTP operation, whose response is 201 with this body and a header:
    idempotency complete 'payments/http#3a46…' --response body.json --status 201 --header 'location: /payments/17'
  An event, or a step inside a handler, whose result is this JSON:
    idempotency complete 'orders/event#90ab…' --response result.json
  An operation that is done, but whose response is lost:
    idempotency complete 'orders/run:charge#77f0…' --no-response";

const WHY_EXAMPLES: &str = "\
Examples:
  A request that came through API Gateway, a function URL, a load balancer or VPC Lattice:
    idempotency why --event request.json --function payments
  Messages of a queue. The first command is for a key in the body, the second for the message id as the key:
    idempotency why --event sqs.json --function orders --operation ship --key-field /order_id
    idempotency why --event sqs.json --function orders
  An event of your own, keyed by two of its fields:
    idempotency why --event invoke.json --function refunds --key-field /customer --key-field /refund_id
  The steps of a handler, which are `idempotency.operation(NAME)` or `#[idempotent]` in the code:
    idempotency why --event trip.json --function trips --step hotel=/trip_id --step flight=/trip_id
  The records that one invocation claimed; reads the whole store:
    idempotency why --request-id 8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e14
  Any event of a function, with the JSON of its `describe()`:
    idempotency why --event event.json --describe payments.json
  A key instead of an event:
    idempotency why order-17 --function payments --via http --jwt-issuer https://login --jwt-subject 17";

const UNRESOLVED: &str = "\
What to do about unresolved operations:
  Their executors were killed, frozen or cut off, or couldn't store the outcome. In a function that runs at least once,
  the next delivery of the same request runs the handler again. In one that runs at most once, every delivery is refused
  until you settle the record, and the record never expires.
    idempotency list --unresolved --older-than 1h     finds them, the oldest first
    idempotency inspect KEY                           shows one, and what its next delivery gets
    idempotency complete KEY --response FILE          if its effect has happened: duplicates get this response
    idempotency release KEY                           if it hasn't: the next delivery runs the handler
    idempotency run-again --function NAME             releases all claims that never expire, for a change to at-least-once
  If the record never expires, `complete` also needs --retention: how long duplicates may still arrive.
  The last two are dry runs without --confirm.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Create the table, or check an existing one.
    Table(table::Arguments),
    /// Delete expired records from a PostgreSQL table, in bounded batches. DynamoDB and Redis delete them on
    /// their own.
    Sweep(sweep::Arguments),
    /// List the records: all, the unresolved ones, or those with one status.
    #[command(after_help = UNRESOLVED)]
    List(list::Arguments),
    /// Show claims, takeovers and outcomes as they happen. The command reads the whole store at each interval.
    ///
    /// If a record changes several times between two reads, the command shows only the last change. Replays and
    /// refusals write nothing, so it can't show them: the metrics idempotency_replayed, _in_progress and _mismatch
    /// count them. DynamoDB bills each read as a Scan of the table.
    Watch(watch::Arguments),
    /// Show one record, what the next delivery gets, and what you can do.
    Inspect(inspect::Arguments),
    /// Find the records of a saved event's operations: what happened, what the event's next delivery gets, and what
    /// you can do.
    ///
    /// It derives the keys with the library's own code. By default, it uses the library's key for the event's source.
    /// If the function takes its keys from elsewhere, say so with --describe or the options.
    #[command(after_help = WHY_EXAMPLES)]
    Why(why::Arguments),
    /// Release a key: the next delivery runs the handler. A dry run, unless --confirm is given.
    ///
    /// It writes only if the record hasn't changed since the command read it. With --if-revision, the record must also
    /// have that version. It sets a new owner and generation, which fences a claim that is still running.
    Release(settle::Release),
    /// Let the unresolved at-most-once claims of a function run again. A dry run, unless --confirm is given.
    ///
    /// Use it when you change the function from at-most-once to at-least-once. It releases each claim that ended without
    /// an answer and never expires, if the record hasn't changed since the command read it. The next delivery runs the
    /// handler, which learns that an earlier attempt may have had an effect.
    RunAgain(again::Arguments),
    /// Record an operation as done, with the response that duplicates get. A dry run, unless --confirm is
    /// given.
    ///
    /// It writes only if the record hasn't changed since the command read it. With --if-revision, the record must also
    /// have that version. It sets a new owner and generation, which fences a claim that is still running. That claim's
    /// caller gets this response, too.
    #[command(after_long_help = COMPLETE_EXAMPLES)]
    Complete(settle::Complete),
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    run(&command).unwrap_or_else(|problem| {
        eprintln!("idempotency: {problem}");
        ExitCode::from(2)
    })
}

fn run(command: &Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("couldn't start the asynchronous runtime")?.block_on(async {
        match command {
            Command::Table(arguments) => table::main(arguments).await,
            Command::Sweep(arguments) => sweep::main(arguments).await,
            Command::List(arguments) => list::main(arguments).await,
            Command::Watch(arguments) => watch::main(arguments).await,
            Command::Inspect(arguments) => inspect::main(arguments).await,
            Command::Why(arguments) => why::main(arguments).await,
            Command::RunAgain(arguments) => again::main(arguments).await,
            Command::Release(arguments) => settle::release(arguments).await,
            Command::Complete(arguments) => settle::complete(arguments).await,
        }
    })
}
