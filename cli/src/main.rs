//! `idempotency`: the command line of lambda-idempotency.
//!
//! Exit codes: 0, all is as it must be; 1, something is not; 2, the command could not do its work.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lambda_idempotency_cli::{dynamodb, rehearse};

/// One logical operation, one outcome: rehearse it.
#[derive(Debug, Parser)]
#[command(name = "idempotency", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Deliver events twice, at once, across crashes and lost answers, and judge what comes of it.
    Rehearse(rehearse::Arguments),
    /// Run the embedded DynamoDB until Ctrl-C: for tries on one machine.
    Dynamodb(dynamodb::Arguments),
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let outcome = match command {
        Command::Rehearse(arguments) => rehearse::main(&arguments),
        Command::Dynamodb(arguments) => dynamodb::main(&arguments),
    };
    outcome.unwrap_or_else(|problem| {
        eprintln!("idempotency: {problem}");
        ExitCode::from(2)
    })
}
