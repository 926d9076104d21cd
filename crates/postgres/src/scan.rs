//! Iterates over all records of the table, for operators.

use super::{PostgresStore, Sends, statements::SCANNED_KEY, values::Value};
use lambda_idempotency_core::{
    StoredKey,
    store::{Page, StoreError, toolkit as admin},
};

/// The number of records on a page.
const PAGE: i64 = 500;

impl PostgresStore {
    /// Returns one page of records, from the beginning or from the end of an earlier page. It's for an
    /// operator, not for a handler. The scan isn't a snapshot.
    ///
    /// The records are ordered by key. The scan doesn't fetch responses: a retained response has its length and
    /// digest, but no bytes. [`Store::read`](lambda_idempotency_core::store::Store::read) fetches a record with its response.
    ///
    /// # Errors
    ///
    /// If PostgreSQL can't be reached, or rejects the query.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    ///
    /// ```no_run
    /// # async fn example(store: lambda_idempotency::store::postgres::PostgresStore)
    /// # -> Result<(), lambda_idempotency::store::StoreError> {
    /// let mut position = None;
    /// loop {
    ///     let page = store.scan(position).await?;
    ///     for (key, record) in page.records {
    ///         println!("{key} {:?}", record.map(|record| record.status()));
    ///     }
    ///     position = page.next;
    ///     if position.is_none() {
    ///         return Ok(());
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn scan(&self, from: Option<String>) -> Result<Page, StoreError> {
        let inner = &*self.inner;
        // The empty text sorts before every key.
        let parts = from.map_or_else(|| Ok(vec![String::new()]), |position| admin::parts(&position))?;
        let [after] = &parts[..] else { return Err(admin::foreign()) };
        let values = [Value::from(after.as_str()), Value::Integer(PAGE)];
        let rows = inner.run(&|statements| &statements.scan, &values, Sends::Question).await?;
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let key =
                StoredKey::from_stored(row.try_get::<_, &str>(SCANNED_KEY).map_err(|_| inner.odd_answer())?);
            let record = inner.decode(&key, row);
            records.push((key, record));
        }
        let is_full = i64::try_from(records.len()).is_ok_and(|count| count == PAGE);
        let last = records.last().filter(|_| is_full);
        let next = last.map(|(key, _)| admin::position([key.as_str().to_owned()]));
        Ok(Page::new(records, next))
    }
}
