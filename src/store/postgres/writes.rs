//! The values of each write, in the order in which its statement takes them.

use super::{
    codec::{self, Texts},
    statements::{Statement, Statements},
    values::Value,
};
use crate::{
    key::StoredKey,
    record::{Lock, Record},
    store::{Seen, Write},
};

impl Statements {
    /// The statement that makes `write`.
    pub(super) const fn of(&self, write: &Write) -> &Statement {
        match write {
            Write::Claim(_) | Write::Conclude { seen: None, .. } => &self.insert,
            Write::Reclaim { .. } => &self.reclaim,
            Write::Conclude { seen: Some(_), .. } => &self.conclude,
            Write::TakeOver { .. } => &self.take_over,
            Write::Settle { .. } => &self.settle,
            Write::Extend { .. } => &self.extend,
            Write::Resolve { .. } => &self.resolve,
        }
    }
}

/// What a write's values borrow, beside the write itself.
#[derive(Debug)]
pub(super) enum Draft {
    /// The whole record that it puts.
    Record(Box<(Record, Texts)>),
    /// `response_encoding` of what it settles to.
    Settlement(Option<String>),
    /// Nothing.
    Nothing,
}

impl Draft {
    pub(super) fn of(write: &Write) -> Self {
        let whole = |record: Record| {
            let texts = Texts::of(&record);
            Self::Record(Box::new((record, texts)))
        };
        match write {
            Write::Claim(lock) | Write::Reclaim { lock, .. } => whole(lock.clone().into()),
            Write::Conclude { record, .. } => whole(record.clone()),
            Write::Settle { settlement, .. } | Write::Resolve { settlement, .. } => {
                Self::Settlement(codec::settlement_encoding(settlement))
            }
            Write::TakeOver { .. } | Write::Extend { .. } => Self::Nothing,
        }
    }

    /// The values of the statement that makes `write` on `key`.
    pub(super) fn values<'a>(
        &'a self,
        key: &'a StoredKey,
        lock_timeout: &'a str,
        write: &'a Write,
    ) -> Vec<Value<'a>> {
        let mut values = Vec::with_capacity(22);
        values.extend([Value::Text(key.as_str()), Value::Text(lock_timeout)]);
        if let Self::Record(whole) = self {
            values.extend(codec::values(&whole.0, &whole.1));
        }
        let encoding = if let Self::Settlement(encoding) = self { encoding.as_deref() } else { None };
        match write {
            Write::Claim(_) | Write::Conclude { seen: None, .. } => {}
            // The time of the lock comes last, and does not count here.
            Write::Reclaim { seen, .. } => values.extend(&as_seen(seen)[..5]),
            Write::Conclude { seen: Some(seen), .. } => values.extend(as_seen(seen)),
            Write::TakeOver { seen, lock } => {
                values.extend(of_lock(lock));
                let [_, owner, generation, lease, _, lock_acquired_at] = as_seen(seen);
                values.extend([owner, generation, lock_acquired_at, lease]);
            }
            Write::Settle { owner, generation, settlement } => {
                values.extend(codec::settlement(settlement, encoding));
                values.extend([codec::owner(owner), codec::generation(*generation)]);
            }
            Write::Extend { owner, generation, lease_until, expires_at } => values.extend([
                codec::time(*lease_until),
                codec::time(*expires_at),
                codec::owner(owner),
                codec::generation(*generation),
            ]),
            Write::Resolve { seen, owner, generation, settlement } => {
                values.extend(codec::settlement(settlement, encoding));
                values.extend([codec::owner(owner), codec::generation(*generation)]);
                values.extend(as_seen(seen));
            }
        }
        values
    }
}

/// Status, owner, generation, lease, expiry, time of the lock.
fn as_seen(seen: &Seen) -> [Value<'_>; 6] {
    [
        Value::Text(seen.status.as_str()),
        codec::owner(&seen.owner),
        codec::generation(seen.generation),
        codec::optional_time(seen.lease_until),
        codec::time(seen.expires_at),
        codec::time(seen.lock_acquired_at),
    ]
}

/// What a takeover puts in: all of the lock but the fingerprint, which is equal, or this would be another operation.
fn of_lock(lock: &Lock) -> [Value<'_>; 8] {
    [
        codec::version(),
        codec::owner(&lock.owner),
        codec::generation(lock.generation),
        Value::Integer(i64::from(lock.attempt)),
        codec::time(lock.lock_acquired_at),
        codec::time(lock.lease_until),
        codec::time(lock.expires_at),
        codec::request_id(lock.request_id.as_deref()),
    ]
}
