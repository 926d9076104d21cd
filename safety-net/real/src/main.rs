//! `real-net`: the long forms of the nets over real servers, sockets and processes, with their figures.

#![expect(clippy::print_stdout, reason = "it is what a command line is for")]

use std::process::ExitCode;

use lambda_idempotency_cli::problem::Result;
use lambda_idempotency_real_net::{
    agreement::{self, Numbers},
    servers::VARIABLE,
};

const USAGE: &str = "\
usage: real-net agreement [--long]

  agreement  every store answers as the model does, and every race has one winner

Servers: the embedded DynamoDB, and those that the environment names in";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["agreement"] => agree(Numbers::BOUNDED).await,
        ["agreement", "--long"] => agree(Numbers::LONG).await,
        _ => {
            println!("{USAGE} {VARIABLE} (name=http://host:port …).");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("real-net: {problem}");
            ExitCode::from(2)
        }
    }
}

async fn agree(numbers: Numbers) -> Result<()> {
    agreement::check(numbers, |agreement| println!("{agreement}")).await
}
