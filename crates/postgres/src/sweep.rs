//! Deletes expired records.

use std::time::Duration;

use super::{PostgresStore, Sends, statements::SWEPT, values::Value};
use lambda_idempotency_core::{store::StoreError, time::Timestamp};

/// How long the sweep keeps a record after it expires. Clocks should never differ by this much.
const MARGIN: Duration = Duration::from_secs(60 * 60);

impl PostgresStore {
    /// Deletes up to `batch` records that expired over an hour before `now`, in the order of the hours in which they
    /// expired. Returns the number of deleted records. If the number is less than `batch`, no such record is left,
    /// except those that another transaction has locked.
    ///
    /// A claim's record expires a day or more after its lease, so no live claim is deleted. A call sends one
    /// statement. A batch of 1,000 records took about 30 ms in the [module's measurements](super), and doesn't block
    /// other work.
    ///
    /// # Errors
    ///
    /// If PostgreSQL can't be reached, or rejects a statement. PostgreSQL deletes all rows of a batch, or none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the batch deleted or not.
    ///
    /// ```no_run
    /// # async fn example(store: lambda_idempotency::store::postgres::PostgresStore)
    /// # -> Result<(), lambda_idempotency::store::StoreError> {
    /// use lambda_idempotency::time::{Clock as _, system_clock};
    ///
    /// while store.sweep(system_clock().now(), 1000).await? == 1000 {}
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sweep(&self, now: Timestamp, batch: u32) -> Result<u64, StoreError> {
        let values =
            [Value::Number(now.saturating_sub(MARGIN).as_millis()), Value::Integer(i64::from(batch))];
        let inner = &*self.inner;
        let rows = inner.run(&|statements| &statements.sweep, &values, Sends::Write).await?;
        let count: i64 = inner.only(&rows)?.try_get(SWEPT).map_err(|_| inner.odd_answer())?;
        Ok(u64::try_from(count).unwrap_or_default())
    }
}
