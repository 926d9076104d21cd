//! Going through all records of the table, for an operator.

use super::{PostgresStore, Sends, statements::SCANNED_KEY, values::Value};
use crate::{key::StoredKey, record::Record, store::StoreError};

/// How many records a page has.
const PAGE: i64 = 500;

/// Some of the table's records; see [`PostgresStore::scan`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ScanPage {
    /// The records by their keys, in the order of the keys; one that cannot be read is an error. Responses aren't fetched:
    /// a retained one has its length and digest, and no bytes.
    pub records: Vec<(StoredKey, Result<Record, StoreError>)>,
    /// Where to go on, if there is more.
    pub next: Option<ScanPosition>,
}

/// Where a scan goes on.
#[derive(Clone, Debug)]
pub struct ScanPosition(String);

impl PostgresStore {
    /// Some of the table's records, from the beginning or from where an earlier page ended: for an operator, and not for a
    /// handler. [`Store::read`](crate::Store::read) fetches a record with its response. The whole is no snapshot.
    ///
    /// # Errors
    ///
    /// If the server could not be asked, or refuses to answer.
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
    pub async fn scan(&self, from: Option<ScanPosition>) -> Result<ScanPage, StoreError> {
        let inner = &*self.inner;
        // No key is empty, so that this one comes before all of them.
        let after = from.map(|position| position.0).unwrap_or_default();
        let values = [Value::Text(&after), Value::Integer(PAGE)];
        let rows = inner.run(&inner.statements.scan, &values, Sends::Question).await?;
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let key =
                StoredKey::from_stored(row.try_get::<_, &str>(SCANNED_KEY).map_err(|_| inner.odd_answer())?);
            let record = inner.decode(&key, row);
            records.push((key, record));
        }
        let is_full = i64::try_from(records.len()).is_ok_and(|count| count == PAGE);
        let last = records.last().filter(|_| is_full);
        let next = last.map(|(key, _)| ScanPosition(key.as_str().to_owned()));
        Ok(ScanPage { records, next })
    }
}
