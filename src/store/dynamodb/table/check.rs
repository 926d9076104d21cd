//! Checks the table, for operators.

use aws_sdk_dynamodb::types::BillingMode;

use super::{is_strongly_consistent, serves};
use crate::store::{StoreError, TableProblem, dynamodb::DynamoDbStore};

impl DynamoDbStore {
    /// Lists the table's problems. The table is OK if the list is empty or has only
    /// [notes](TableProblem::is_note). If the table has other keys, the list ends with that problem, since no change
    /// of the table makes it OK.
    ///
    /// Needs `dynamodb:DescribeTable` and `dynamodb:DescribeTimeToLive`.
    ///
    /// # Errors
    ///
    /// If DynamoDB can't be reached, or rejects the request.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn check_table(&self) -> Result<Vec<TableProblem>, StoreError> {
        let Some(table) = self.describe().await? else { return Ok(vec![TableProblem::Missing]) };
        let mut problems = Vec::new();
        if let Some(status) = table.table_status().filter(|status| !serves(status)) {
            problems.push(TableProblem::NotActive { status: status.as_str().to_owned() });
        }
        if let Some(problem) = self.keys_problem(&table) {
            problems.push(problem);
            return Ok(problems);
        }
        let is_consistent = is_strongly_consistent(&table);
        if !is_consistent {
            problems.extend(self.time_to_live_problem(&self.describe_time_to_live().await?));
        }
        // DynamoDB omits the summary for a table that has always been provisioned.
        let billing = table.billing_mode_summary().and_then(|summary| summary.billing_mode());
        if billing != Some(&BillingMode::PayPerRequest) {
            problems.push(TableProblem::Provisioned);
        }
        let regions: Vec<_> =
            table.replicas().iter().filter_map(|replica| replica.region_name().map(str::to_owned)).collect();
        if is_consistent {
            problems.push(TableProblem::StronglyConsistent { regions });
        } else if !regions.is_empty() {
            problems.push(TableProblem::Replicated { regions, own: self.region().map(str::to_owned) });
        }
        Ok(problems)
    }

    /// Compares the table's key with the configured one. Without permission to describe the table, it checks nothing.
    pub(in crate::store::dynamodb) async fn check_keys(&self) -> Result<(), StoreError> {
        let table = self.describe().await.ok().flatten();
        match table.and_then(|table| self.keys_problem(&table)) {
            Some(problem) => Err(self.unfit(&problem)),
            None => Ok(()),
        }
    }
}
