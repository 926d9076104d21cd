//! Iterates over all records, for operators.

use redis::{Value, cmd};
use tokio::task::JoinSet;

use super::{
    RedisStore,
    fault::{Class, Fault},
};
use lambda_idempotency_core::{
    StoredKey,
    store::{Page, StoreError, StoreErrorKind, toolkit as admin, toolkit::within},
};

/// The approximate number of keys that Redis examines for one page.
const LOOKS_AT: usize = 200;

/// The position of a scan: a node of the cluster, and that node's cursor.
#[derive(Clone, Copy)]
struct At {
    node: usize,
    cursor: u64,
}

impl At {
    fn of(position: &str) -> Result<Self, StoreError> {
        let parts = admin::parts(position)?;
        let [node, cursor] = &parts[..] else { return Err(admin::foreign()) };
        match (node.parse(), cursor.parse()) {
            (Ok(node), Ok(cursor)) => Ok(Self { node, cursor }),
            _ => Err(admin::foreign()),
        }
    }

    fn position(self) -> String {
        admin::position([self.node.to_string(), self.cursor.to_string()])
    }
}

impl RedisStore {
    /// Returns one page of records: the first page if `from` is `None`, otherwise the page at the position `from`, the
    /// [`next`](Page::next) of an earlier page. The scan is for an operator, not for a handler, because Redis iterates
    /// over all its keys. A page can be empty even if more pages follow. The records are in no particular order.
    ///
    /// The scan finds every record that exists during the whole scan, and may find some of them twice. It isn't a
    /// snapshot. In a cluster, it visits one node after the other, and may miss records if the nodes or their slots
    /// change during the scan.
    ///
    /// Needs the command `SCAN`.
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
        let begin = match from {
            Some(position) => At::of(&position)?,
            None => At { node: 0, cursor: 0 },
        };
        let looked = within(self.inner.operation_timeout, self.keys(begin)).await;
        let looked = looked.unwrap_or_else(|| Err(Fault::new(Class::TimedOut, self.inner.nodes.seed())));
        let (keys, next) = looked.map_err(|fault| fault.into_error(false))?;
        let mut reads = JoinSet::new();
        for key in keys {
            let store = self.clone();
            reads.spawn(async move {
                let record = store.get(&key).await;
                (key, record)
            });
        }
        let mut records = Vec::new();
        for (key, record) in reads.join_all().await {
            match record {
                Ok(Some(record)) => records.push((key, Ok(record))),
                Ok(None) => {}
                Err(error) if error.kind() == StoreErrorKind::Corrupt => records.push((key, Err(error))),
                Err(error) => return Err(error),
            }
        }
        Ok(Page::new(records, next.map(At::position)))
    }

    async fn keys(&self, from: At) -> Result<(Vec<StoredKey>, Option<At>), Fault> {
        let (nodes, connector) = (&self.inner.nodes, &self.inner.connector);
        let all = nodes.all(connector).await?;
        let Some(node) = all.get(from.node) else { return Ok((Vec::new(), None)) };
        let live = node.connection(connector).await?;
        let pattern = format!("{}*", literal(&self.inner.key_prefix));
        let mut command = cmd("SCAN");
        command.arg(from.cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(LOOKS_AT);
        let answer = live.send(&command, &node.address).await?;
        let (cursor, found) = page(answer).ok_or_else(|| Fault::new(Class::Unreadable, &node.address))?;
        let stored = found.iter().filter_map(|key| key.strip_prefix(&*self.inner.key_prefix));
        let next = match cursor {
            0 => (from.node + 1 < all.len()).then_some(At { node: from.node + 1, cursor: 0 }),
            cursor => Some(At { cursor, ..from }),
        };
        Ok((stored.map(StoredKey::from_stored).collect(), next))
    }
}

/// Parses the answer to `SCAN`: the next cursor, and the keys. It skips keys that aren't text, because this library
/// never writes such keys.
fn page(answer: Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(cursor), Value::Array(keys)] = parts.as_slice() else { return None };
    let cursor = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let text = |key: &Value| match key {
        Value::BulkString(key) => String::from_utf8(key.clone()).ok(),
        _ => None,
    };
    Some((cursor, keys.iter().filter_map(text).collect()))
}

/// Returns a pattern that matches only `text`.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_escaped_in_patterns() {
        assert_eq!(literal("a:b"), "a:b");
        assert_eq!(literal("a*[b]?\\^"), "a\\*\\[b\\]\\?\\\\\\^");
    }
}
