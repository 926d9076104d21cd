//! `idempotency table`: creates the store's table, or checks it. Redis needs no table.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use lambda_idempotency::store::{TableProblem, dynamodb::DynamoDbStore};
use serde_json::json;

use crate::{
    problem::{Problem, Result},
    store::{OpenStore, StoreArguments},
    words,
};

/// Options of `table`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create the table. In DynamoDB, it's billed on demand, and its TTL deletes expired records.
    ///
    /// An existing table keeps its columns and its records. In DynamoDB, the command enables TTL. In PostgreSQL,
    /// it adds a missing version marker. Redis needs no table.
    Create(Shared),
    /// Check the table. In DynamoDB: its key, its TTL, its billing, its replicas; in PostgreSQL: its schema,
    /// its index, the user's permissions, and that commits are durable. Redis needs no table: checks the user's
    /// permissions, and that the servers don't evict records.
    ///
    /// Prints one line per problem, with its fix. A problem is an error, or a note about a setting that you may
    /// have chosen. The exit code is 2 if there's an error, and 0 if there's none.
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

/// Creates or checks the table.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Create(shared) => create(shared).await,
        Command::Check(shared) => check(shared).await,
    }
}

/// Reports that Redis needs no table.
fn needs_no_table(location: &str, as_json: bool) -> Result<ExitCode> {
    if as_json {
        words::print_json(&json!({ "store": location, "needs_table": false }))?;
    } else {
        words::print(&format!("{location} needs no table: Redis stores each record under its own key\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(Shared { store: arguments, json }: &Shared) -> Result<ExitCode> {
    let (table, is_new, healthy) = match arguments.open().await? {
        OpenStore::DynamoDb(store) => {
            let is_new = store.create_table().await.map_err(|error| Problem::of(&error))?;
            (store.table().to_owned(), is_new, HEALTHY_IN_DYNAMODB)
        }
        OpenStore::Postgres(store) => {
            let is_new = store.create_table().await.map_err(|error| Problem::of(&error))?;
            (store.table(), is_new, HEALTHY_IN_POSTGRES)
        }
        OpenStore::Redis(store) => return needs_no_table(&store.location(), *json),
    };
    if *json {
        words::print_json(&json!({ "table": table, "created": is_new }))?;
    } else if is_new {
        words::print(&format!("table `{table}` was created: {}\n", healthy.when_new))?;
    } else {
        words::print(&format!("table `{table}` already exists: {}\n", healthy.when_there))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn check(Shared { store: arguments, json }: &Shared) -> Result<ExitCode> {
    let (name, findings, healthy) = match arguments.open().await? {
        OpenStore::DynamoDb(store) => {
            let problems = store.check_table().await.map_err(|error| Problem::of(&error))?;
            let findings = problems.iter().map(|problem| Finding {
                is_note: problem.is_note(),
                problem: problem.to_string(),
                fix: fix_in_dynamodb(problem, &store, arguments),
            });
            (store.table().to_owned(), findings.collect(), HEALTHY_IN_DYNAMODB)
        }
        OpenStore::Postgres(store) => {
            let problems = store.check_table().await.map_err(|error| Problem::of(&error))?;
            let findings = problems.iter().map(|problem| Finding {
                is_note: problem.is_note(),
                problem: problem.to_string(),
                fix: fix_in_postgres(problem, &store.table(), arguments),
            });
            (store.table(), findings.collect(), HEALTHY_IN_POSTGRES)
        }
        OpenStore::Redis(store) => {
            let problems = store.check_servers().await.map_err(|error| Problem::of(&error))?;
            let findings = problems.iter().map(|problem| Finding {
                is_note: problem.is_note(),
                problem: problem.to_string(),
                fix: fix_in_redis(problem),
            });
            (store.location(), findings.collect(), HEALTHY_IN_REDIS)
        }
    };
    let findings: Vec<Finding> = findings;
    let is_ok = findings.iter().all(|finding| finding.is_note);
    if *json {
        let problems: Vec<_> = findings
            .iter()
            .map(|Finding { is_note, problem, fix }| {
                json!({ "is_note": is_note, "problem": problem, "fix": fix })
            })
            .collect();
        words::print_json(&json!({ healthy.what: name, "ok": is_ok, "problems": problems }))?;
    } else {
        let mut text = String::new();
        for Finding { is_note, problem, fix } in &findings {
            let kind = if *is_note { "note" } else { "error" };
            text.push_str(&format!("{kind}: {problem}. fix: {fix}\n"));
        }
        if is_ok {
            text.push_str(&format!("{} `{name}` is ok: {}\n", healthy.what, healthy.when_there));
        }
        words::print(&text)?;
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// A problem that a check found.
struct Finding {
    is_note: bool,
    problem: String,
    fix: String,
}

/// The text for a table that is OK.
struct Healthy {
    /// What was checked.
    what: &'static str,
    when_new: &'static str,
    when_there: &'static str,
}

const HEALTHY_IN_DYNAMODB: Healthy = Healthy {
    what: "table",
    when_new: "it's billed on demand, and TTL is on",
    when_there: "its key is right, and TTL is on",
};
const HEALTHY_IN_POSTGRES: Healthy = Healthy {
    what: "table",
    when_new: "with an index for `idempotency sweep`",
    when_there: "its schema fits this version of the library",
};

const HEALTHY_IN_REDIS: Healthy = Healthy {
    what: "store",
    when_new: "it needs no table",
    when_there: "the user may run every command that the store needs",
};

/// Returns the fix for `problem` in Redis.
fn fix_in_redis(problem: &TableProblem) -> String {
    match problem {
        TableProblem::Privileges { missing } => format!("`ACL SETUSER … {}`", missing.join(" ")),
        TableProblem::Evicts { .. } => {
            "`CONFIG SET maxmemory-policy noeviction` (in a managed service, its parameter group), or add \
             eviction=accepted to the URL"
                .to_owned()
        }
        TableProblem::EvictionUnknown { .. } => {
            "`ACL SETUSER … +info`, or check that maxmemory-policy is noeviction".to_owned()
        }
        _ => "see the library's documentation".to_owned(),
    }
}

/// Returns the fix for `problem` in PostgreSQL, as a command or a statement if there is one.
fn fix_in_postgres(problem: &TableProblem, table: &str, arguments: &StoreArguments) -> String {
    match problem {
        TableProblem::Missing | TableProblem::Unmarked => {
            format!("`{}`", arguments.command_line(&["table", "create"]))
        }
        TableProblem::Schema { .. } => {
            "do what the error says; until then, functions with this version of the library can't use the table"
                .to_owned()
        }
        TableProblem::Privileges { missing } => format!("`GRANT {} ON {table} TO …`", missing.join(", ")),
        TableProblem::NoIndex => sweep_index(table),
        TableProblem::IndexOnExpiry { indexes } => {
            format!("{}; then `DROP INDEX CONCURRENTLY {}`", sweep_index(table), indexes.join(", "))
        }
        TableProblem::Standby => "name the primary in the URL".to_owned(),
        TableProblem::Unlogged => format!("`ALTER TABLE {table} SET LOGGED`"),
        TableProblem::AsynchronousCommit => "`ALTER ROLE … SET synchronous_commit = on`".to_owned(),
        _ => "see the library's documentation".to_owned(),
    }
}

/// Returns the statements that create the sweep's index. The first adds the index's column, which older tables lack.
fn sweep_index(table: &str) -> String {
    format!(
        "`ALTER TABLE {table} ADD COLUMN IF NOT EXISTS sweep_hour bigint \
         GENERATED ALWAYS AS (ceil(expires_at / 3600000)::bigint) STORED` (this rewrites the table, and locks it \
         during the rewrite), then `CREATE INDEX CONCURRENTLY ON {table} (sweep_hour)`"
    )
}

/// Returns the fix for `problem` in DynamoDB, as a command if there is one.
fn fix_in_dynamodb(problem: &TableProblem, store: &DynamoDbStore, arguments: &StoreArguments) -> String {
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
            format!(
                "{}, then wait an hour (DynamoDB rejects another change of the TTL until then), then `{}`",
                aws(&off),
                create()
            )
        }
        TableProblem::NotActive { .. } => format!("wait, then check again: {}", aws("describe-table")),
        TableProblem::Keys { .. } => {
            "a table's key can't be changed: add --sort-key or --attributes if the functions use this \
             table with them; otherwise, use another table"
                .to_owned()
        }
        TableProblem::Provisioned => aws("update-table --billing-mode PAY_PER_REQUEST"),
        TableProblem::Replicated { .. } => "deliver events in one Region only, or use a global table with \
                                            multi-Region strong consistency"
            .to_owned(),
        _ => "see the library's documentation".to_owned(),
    }
}
