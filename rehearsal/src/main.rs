//! `idempotency-rehearse`: rehearses a function's idempotency.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lambda_idempotency_rehearsal::{self as rehearsal, dynamodb};

/// Deliver events twice, concurrently, and across crashes and lost responses, and check the outcome.
#[derive(Debug, Parser)]
#[command(name = "idempotency-rehearse", version, args_conflicts_with_subcommands = true, after_help = EXIT_CODES)]
struct CommandLine {
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
    /// Run the embedded DynamoDB until Ctrl-C, to try functions against it.
    Dynamodb(dynamodb::Arguments),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let ended = match &line.command {
        None => rehearsal::main(&line.rehearsal),
        Some(Command::Dynamodb(arguments)) => dynamodb::main(arguments),
    };
    ended.unwrap_or_else(|problem| {
        eprintln!("idempotency-rehearse: {problem}");
        ExitCode::from(2)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn rehearsal_options_need_no_subcommand() {
        CommandLine::command().debug_assert();
        let parsed = |line: &str| CommandLine::try_parse_from(format!("x {line}").split_whitespace());
        for line in [
            "--function f --event e --expect at-most-once --batch fifo --transactional",
            "--function f --event e --again a",
            "",
            "--json --report r.html",
            "--endpoint-url http://h:1",
            "--function f --event e --count-runs r",
            "--layer --event e -- python3 app.py --its-own",
            "--layer=program --function f --event e",
        ] {
            assert!(parsed(line).unwrap().command.is_none(), "{line}");
        }
        assert!(parsed("dynamodb --port 8000 --table t").unwrap().command.is_some());
        for wrong in [
            "--function f",
            "--batch sqs",
            "--again a",
            "--expect at-most-once",
            "--json dynamodb",
            "rehearse",
            "--layer",
            "--event e --function f -- f",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
