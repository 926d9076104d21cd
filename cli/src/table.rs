//! `idempotency table`: makes the table, or checks one that is there.

mod postgres;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use lambda_idempotency::store::dynamodb::{DynamoDbStore, TableCreation, TableProblem};
use serde_json::json;

use crate::{
    problem::{Problem, Result},
    store::{OpenStore, StoreArguments},
    words,
};

/// What can be asked about the table.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create the table: in DynamoDB billed on demand, with TTL on the records' expiry.
    ///
    /// A table that is there already is left as it is, except that TTL is switched on.
    Create(Shared),
    /// Check the table: its key, its TTL, its billing, its replicas; in PostgreSQL its schema, rights and index.
    ///
    /// Says in one line each what is wrong and how to mend it. The exit code is 2 if the table is not fit to be used,
    /// and 0 if there are only notes.
    Check(Shared),
}

#[derive(Debug, Args)]
struct Shared {
    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArguments,
}

/// Creates or checks.
pub async fn main(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Create(shared) => create(shared).await,
        Command::Check(shared) => check(shared).await,
    }
}

/// Redis makes a record's key with the record.
fn needs_no_table(location: &str, as_json: bool) -> Result<ExitCode> {
    if as_json {
        words::print_json(&json!({ "store": location, "needs_table": false }))?;
    } else {
        words::print(&format!("{location} needs no table: Redis makes each record's key with the record\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(Shared { store: arguments, json }: &Shared) -> Result<ExitCode> {
    let store = match arguments.open().await? {
        OpenStore::DynamoDb(store) => store,
        OpenStore::Postgres(store) => return postgres::create(&store, *json).await,
        OpenStore::Redis(store) => return needs_no_table(&store.location(), *json),
    };
    let created = store.create_table().await.map_err(|error| Problem::of(&error))?;
    let is_new = created == TableCreation::Created;
    let table = store.table();
    if *json {
        words::print_json(&json!({ "table": table, "created": is_new }))?;
    } else if is_new {
        words::print(&format!("table `{table}` was created: on demand, TTL is on\n"))?;
    } else {
        words::print(&format!("table `{table}` was there already: its key is right, and TTL is on\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn check(Shared { store: arguments, json }: &Shared) -> Result<ExitCode> {
    let store = match arguments.open().await? {
        OpenStore::DynamoDb(store) => store,
        OpenStore::Postgres(store) => return postgres::check(&store, *json).await,
        OpenStore::Redis(store) => return needs_no_table(&store.location(), *json),
    };
    let problems = store.check_table().await.map_err(|error| Problem::of(&error))?;
    let is_fit = problems.iter().all(TableProblem::is_note);
    let table = store.table();
    if *json {
        let problems: Vec<_> = problems
            .iter()
            .map(|problem| {
                let mend = how_to_mend(problem, &store, arguments);
                json!({ "is_note": problem.is_note(), "problem": problem.to_string(), "mend": mend })
            })
            .collect();
        words::print_json(&json!({ "table": table, "is_fit": is_fit, "problems": problems }))?;
    } else {
        let mut text = String::new();
        for problem in &problems {
            let kind = if problem.is_note() { "note" } else { "wrong" };
            let mend = how_to_mend(problem, &store, arguments);
            text.push_str(&format!("{kind}: {problem}. Mend it: {mend}\n"));
        }
        if is_fit {
            text.push_str(&format!("table `{table}` is fit: its key is right, and TTL is on\n"));
        }
        words::print(&text)?;
    }
    Ok(if is_fit { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// What to do about `problem`, as a command where there is one.
fn how_to_mend(problem: &TableProblem, store: &DynamoDbStore, arguments: &StoreArguments) -> String {
    let create = || arguments.command_line(&["table", "create"]);
    let table = words::quoted(store.table());
    let options = arguments.aws_options();
    let aws = |command: &str| format!("`aws dynamodb {command} --table-name {table}{options}`");
    match problem {
        TableProblem::Missing => format!("`{}`, or deploy template.yaml", create()),
        TableProblem::NoTimeToLive { .. } => format!("`{}` switches it on", create()),
        TableProblem::OtherTimeToLive { found, .. } => {
            let off = format!(
                "update-time-to-live --time-to-live-specification Enabled=false,AttributeName={}",
                words::quoted(found)
            );
            format!("{}, an hour later `{}`", aws(&off), create())
        }
        TableProblem::NotActive { .. } => format!("wait, and look again: {}", aws("describe-table")),
        TableProblem::Keys { .. } => {
            "a table's key cannot be changed: give --sort-key if only that is missing, else \
                                      take another table"
                .to_owned()
        }
        TableProblem::Provisioned => aws("update-table --billing-mode PAY_PER_REQUEST"),
        TableProblem::Replicated { .. } => "deliver in one Region only, or make the global table one with \
                                            multi-Region strong consistency"
            .to_owned(),
        _ => "see the library's documentation".to_owned(),
    }
}
