//! `idempotency-rehearse`: rehearses a function's idempotency.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lambda_idempotency_rehearsal::{self as rehearsal, dynamodb};

/// Deliver events twice, concurrently, and across crashes and lost responses, and check the outcome.
#[derive(Debug, Parser)]
#[command(name = "idempotency-rehearse", version, args_conflicts_with_subcommands = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    rehearsal: rehearsal::Arguments,

    #[command(subcommand)]
    command: Option<Command>,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  every row is ok
  1  a row FAILED
  2  the rehearsal couldn't do its work";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the embedded DynamoDB until Ctrl-C, for trying things on one machine.
    Dynamodb(dynamodb::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments.command {
        None => rehearsal::main(&arguments.rehearsal),
        Some(Command::Dynamodb(arguments)) => dynamodb::main(arguments),
    };
    ended.unwrap_or_else(|problem| {
        eprintln!("idempotency-rehearse: {problem}");
        ExitCode::from(2)
    })
}
