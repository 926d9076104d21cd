//! Checks whether the servers and their user fit the store, for operators.

use redis::{Value, cmd};

use super::{
    RedisStore,
    connection::Node,
    fault::{Class, Fault},
};
use lambda_idempotency_core::store::{StoreError, TableProblem, toolkit::within};

/// Returns the missing commands, separated by commas, and the eviction policy, empty if it's unknown.
const SOURCE: &str = concat!(
    include_str!("fitness.lua"),
    "return {table.concat(lacks(ARGV[1]), ','), eviction_policy() or ''}"
);

impl RedisStore {
    /// Lists the problems of each server, although Redis needs no table: commands that the user may not run, and an
    /// eviction policy that removes live records. All is OK if the list is empty or has only
    /// [notes](TableProblem::is_note).
    ///
    /// # Errors
    ///
    /// If Redis can't be reached, or rejects the request.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    ///
    /// ```no_run
    /// # async fn example(store: lambda_idempotency::store::redis::RedisStore)
    /// # -> Result<(), lambda_idempotency::store::StoreError> {
    /// for problem in store.check_servers().await? {
    ///     println!("{problem}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_servers(&self) -> Result<Vec<TableProblem>, StoreError> {
        let checked = within(self.inner.operation_timeout, self.problems()).await;
        let checked = checked.unwrap_or_else(|| Err(Fault::new(Class::TimedOut, self.inner.nodes.seed())));
        // The check writes nothing.
        checked.map_err(|fault| fault.into_error(false))
    }

    async fn problems(&self) -> Result<Vec<TableProblem>, Fault> {
        let mut problems = Vec::new();
        for node in self.inner.nodes.all(&self.inner.connector).await? {
            let (missing, policy) = self.state_of(&node).await?;
            let server = node.address.to_string();
            if !missing.is_empty() {
                let missing = missing.split(',').map(|command| format!("+{command}")).collect();
                problems.push(TableProblem::Privileges { missing });
            }
            match &*policy {
                "noeviction" => {}
                _ if self.inner.accepts_eviction => {}
                "" => problems.push(TableProblem::EvictionUnknown { server }),
                _ => problems.push(TableProblem::Evicts { server, policy }),
            }
        }
        problems.dedup();
        Ok(problems)
    }

    /// Returns the commands that the user may not run on this node, and the node's eviction policy.
    async fn state_of(&self, node: &Node) -> Result<(String, String), Fault> {
        let live = node.connection(&self.inner.connector).await?;
        let mut command = cmd("EVAL");
        command.arg(SOURCE).arg(0).arg(format!("{}check", self.inner.key_prefix));
        let answer = live.send(&command, &node.address).await?;
        let text = |value: &Value| match value {
            Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
            _ => None,
        };
        let parts = match &answer {
            Value::Array(parts) => parts.as_slice(),
            _ => &[],
        };
        match parts {
            [missing, policy] => text(missing).zip(text(policy)),
            _ => None,
        }
        .ok_or_else(|| Fault::new(Class::Unreadable, &node.address))
    }
}
