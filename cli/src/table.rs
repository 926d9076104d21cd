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
    /// it adds a missing version marker. Redis needs no table. The command says what it changed.
    Create(Shared),
    /// Check the table. In DynamoDB: its key, its TTL, its billing, its replicas; in PostgreSQL: its schema,
    /// its index, the user's permissions, and that commits are durable. Redis needs no table: checks the user's
    /// permissions, and that the servers don't evict records.
    ///
    /// Prints one line per problem, with its fix. A problem is an error, or a note about a setting that you may
    /// have chosen. The exit code is 2 if there's an error, and 0 if there's none.
    Check(CheckArguments),
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// Declares that only functions in this Region write the table. Without this, an eventually consistent global table is
    /// an error, since two Regions can both claim a key.
    #[arg(long, value_name = "REGION")]
    writer_region: Option<String>,

    #[command(flatten)]
    shared: Shared,
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
        Command::Check(arguments) => check(arguments).await,
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

async fn create(shared: &Shared) -> Result<ExitCode> {
    let Shared { store: arguments, json } = shared;
    let store = arguments.open().await?;
    if let OpenStore::Redis(store) = &store {
        return needs_no_table(&store.location(), *json);
    }
    // The check may need a permission that the creation doesn't. Without it, only the creation's own result is known.
    let before = problems(&store).await.ok();
    let created = match &store {
        OpenStore::DynamoDb(store) => store.create_table().await,
        OpenStore::Postgres(store) => store.create_table().await,
        OpenStore::Redis(_) => Ok(false),
    };
    let is_new = match created {
        Ok(is_new) => is_new,
        Err(error) => {
            let fix = before.iter().flatten().find_map(|problem| fix_by_hand(problem, &store, arguments));
            let fix = fix.map(|fix| format!(". fix: {fix}")).unwrap_or_default();
            return Err(Problem::new(format!("{}{fix}", Problem::of(&error))));
        }
    };
    let healthy = healthy(&store, before.as_deref().unwrap_or_default());
    // `None`: it's unknown what was changed.
    let changed: Option<Vec<String>> = match before {
        _ if is_new => Some(vec!["the table was created".to_owned()]),
        None => None,
        Some(before) if before.is_empty() => Some(Vec::new()),
        Some(before) => problems(&store)
            .await
            .ok()
            .map(|left| before.iter().filter(|problem| !left.contains(problem)).map(change).collect()),
    };
    let table = name(&store);
    if *json {
        words::print_json(&json!({ "table": table, "created": is_new, "changed": changed }))?;
    } else if is_new {
        words::print(&format!("table `{table}` was created: {}\n", healthy.when_new))?;
    } else {
        let there = healthy.when_there;
        words::print(&match changed {
            None => format!("table `{table}` already exists: {there}\n"),
            Some(changed) if changed.is_empty() => {
                format!("table `{table}` already exists: {there}. Nothing was changed\n")
            }
            Some(changed) => {
                format!("table `{table}` already existed, and was changed: {}\n", changed.join("; "))
            }
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The problem's solution, as a change that `create` made.
fn change(problem: &TableProblem) -> String {
    match problem {
        TableProblem::NoTimeToLive { attribute } => {
            format!("TTL was switched on, on the attribute `{attribute}`")
        }
        TableProblem::Unmarked => "the marker of the schema's version was added".to_owned(),
        TableProblem::NotActive { .. } => "it's active now".to_owned(),
        TableProblem::Missing => "another caller created it".to_owned(),
        problem => format!("solved: {problem}"),
    }
}

/// The fix for a problem that `create` can't solve, unless the error already says it.
fn fix_by_hand(problem: &TableProblem, store: &OpenStore, arguments: &StoreArguments) -> Option<String> {
    let is_solved_by_create = matches!(
        problem,
        TableProblem::Missing
            | TableProblem::NoTimeToLive { .. }
            | TableProblem::Unmarked
            | TableProblem::NotActive { .. }
    );
    let is_said = matches!(problem, TableProblem::Keys { .. });
    (!is_solved_by_create && !is_said && !problem.is_note()).then(|| fix(problem, store, arguments))
}

async fn problems(store: &OpenStore) -> Result<Vec<TableProblem>> {
    let problems = match store {
        OpenStore::DynamoDb(store) => store.check_table().await,
        OpenStore::Postgres(store) => store.check_table().await,
        OpenStore::Redis(store) => store.check_servers().await,
    };
    problems.map_err(|error| Problem::of(&error))
}

fn fix(problem: &TableProblem, store: &OpenStore, arguments: &StoreArguments) -> String {
    match store {
        OpenStore::DynamoDb(store) => fix_in_dynamodb(problem, store, arguments),
        OpenStore::Postgres(store) => fix_in_postgres(problem, &store.table(), arguments),
        OpenStore::Redis(_) => fix_in_redis(problem),
    }
}

/// The table's name, or the address of a store without a table.
fn name(store: &OpenStore) -> String {
    match store {
        OpenStore::DynamoDb(store) => store.table().to_owned(),
        OpenStore::Postgres(store) => store.table(),
        OpenStore::Redis(store) => store.location(),
    }
}

fn healthy(store: &OpenStore, problems: &[TableProblem]) -> &'static Healthy {
    let has_no_ttl =
        problems.iter().any(|problem| matches!(problem, TableProblem::StronglyConsistent { .. }));
    match store {
        OpenStore::DynamoDb(_) if has_no_ttl => &HEALTHY_WITHOUT_TTL,
        OpenStore::DynamoDb(_) => &HEALTHY_IN_DYNAMODB,
        OpenStore::Postgres(_) => &HEALTHY_IN_POSTGRES,
        OpenStore::Redis(_) => &HEALTHY_IN_REDIS,
    }
}

async fn check(CheckArguments { writer_region, shared }: &CheckArguments) -> Result<ExitCode> {
    let Shared { store: arguments, json } = shared;
    let store = arguments.open().await?;
    let finding = |problem: TableProblem| match (&problem, writer_region) {
        (TableProblem::Replicated { own, .. }, Some(writer)) => written_in(writer, own.as_deref(), &problem),
        _ => Finding {
            is_note: problem.is_note(),
            problem: problem.to_string(),
            fix: fix(&problem, &store, arguments),
        },
    };
    let problems = problems(&store).await?;
    let (name, healthy) = (name(&store), healthy(&store, &problems));
    let findings: Vec<Finding> = problems.into_iter().map(finding).collect();
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

/// The finding about an eventually consistent global table if only functions in the Region `writer` write it, and the check reads
/// the replica in `own`.
fn written_in(writer: &str, own: Option<&str>, problem: &TableProblem) -> Finding {
    let is_note = own == Some(writer);
    Finding {
        is_note,
        problem: problem.to_string(),
        fix: match (is_note, own) {
            (true, _) => format!("none, while only functions in {writer} write it, and read it there"),
            (false, Some(own)) => {
                format!(
                    "let the functions use the replica in {writer}: this configuration names the one in {own}"
                )
            }
            (false, None) => format!("name the replica's Region: add --region {writer}"),
        },
    }
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
/// A global table with strong consistency can't have a TTL.
const HEALTHY_WITHOUT_TTL: Healthy = Healthy { when_there: "its key is right", ..HEALTHY_IN_DYNAMODB };
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
        TableProblem::NoIndex => format!("`CREATE INDEX CONCURRENTLY ON {table} (sweep_hour)`"),
        TableProblem::Standby => "name the primary in the URL".to_owned(),
        TableProblem::Unlogged => format!("`ALTER TABLE {table} SET LOGGED`"),
        TableProblem::AsynchronousCommit => "`ALTER ROLE … SET synchronous_commit = on`".to_owned(),
        _ => "see the library's documentation".to_owned(),
    }
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
        TableProblem::Replicated { .. } => {
            "use a table with multi-Region strong consistency. If functions in one Region \
                                            only write this table, declare it: add --writer-region REGION"
                .to_owned()
        }
        TableProblem::StronglyConsistent { .. } => {
            "none needed, unless handlers stage writes: then use a table in one Region".to_owned()
        }
        _ => "see the library's documentation".to_owned(),
    }
}
