//! `idempotency-rehearse dynamodb`: the embedded DynamoDB in the foreground, to try functions against it.

use std::process::ExitCode;

use clap::Args;

use crate::{
    database::Database,
    problem::{Context, Result},
};

/// Options of the embedded DynamoDB.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The port on loopback; 0 picks any free port.
    #[arg(long, default_value_t = 8000)]
    port: u16,

    /// Create this table of records, with TTL enabled.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
}

/// Runs the embedded DynamoDB until Ctrl-C, which loses its data.
pub fn main(arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("couldn't start the asynchronous runtime")?.block_on(serve(arguments))
}

async fn serve(arguments: &Arguments) -> Result<ExitCode> {
    let database = Database::embedded_on(arguments.port).await?;
    if let Some(table) = &arguments.table {
        database.create_idempotency_table(table).await?;
    }
    announce(&database);
    tokio::signal::ctrl_c().await.context("couldn't listen for Ctrl-C")?;
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "scripts read the address from standard output")]
fn announce(database: &Database) {
    println!("{}", database.endpoint().to_string().trim_end_matches('/'));
    eprintln!(
        "embedded DynamoDB, in memory, until Ctrl-C: set AWS_ENDPOINT_URL_DYNAMODB to the address above"
    );
}
