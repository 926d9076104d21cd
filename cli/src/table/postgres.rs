//! The same for a table in PostgreSQL.

use std::process::ExitCode;

use lambda_idempotency::store::postgres::{PostgresStore, TableCreation, TableProblem};
use serde_json::json;

use crate::{
    problem::{Problem, Result},
    words,
};

pub(super) async fn create(store: &PostgresStore, as_json: bool) -> Result<ExitCode> {
    let created = store.create_table().await.map_err(|error| Problem::of(&error))?;
    let (table, is_new) = (store.table(), created == TableCreation::Created);
    if as_json {
        words::print_json(&json!({ "table": table, "created": is_new }))?;
    } else if is_new {
        words::print(&format!(
            "table `{table}` was created, with an index on the records' expiry; have `idempotency sweep` run now and then\n"
        ))?;
    } else {
        words::print(&format!("table `{table}` was there already: its schema is right\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn check(store: &PostgresStore, as_json: bool) -> Result<ExitCode> {
    let problems = store.check_table().await.map_err(|error| Problem::of(&error))?;
    let (table, is_fit) = (store.table(), problems.iter().all(TableProblem::is_note));
    if as_json {
        let problems: Vec<_> = problems
            .iter()
            .map(|problem| json!({ "is_note": problem.is_note(), "problem": problem.to_string() }))
            .collect();
        words::print_json(&json!({ "table": table, "is_fit": is_fit, "problems": problems }))?;
    } else {
        let mut text = String::new();
        for problem in &problems {
            let kind = if problem.is_note() { "note" } else { "wrong" };
            text.push_str(&format!("{kind}: {problem}\n"));
        }
        if problems.contains(&TableProblem::Missing) {
            text.push_str("Mend it: `idempotency table create`\n");
        }
        if is_fit {
            text.push_str(&format!("table `{table}` is fit: its schema is right\n"));
        }
        words::print(&text)?;
    }
    Ok(if is_fit { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
