//! Keys of the maximum length, and keys that are nearly equal.

use super::{
    Verdict,
    bench::{applied, fresh_key_in, owner, prepare, refused, stands},
    samples::{claim, first_lock, release, second_lock},
};
use crate::{
    key::{Key, Scope, StoredKey},
    record::Record,
    store::Store,
};

/// The length of the longest name that a scope may have.
const LONGEST_NAME: usize = 128;

/// Tests two keys in a scope with short names, and two in a scope with the longest names. The two keys in a scope
/// differ only at their ends, so a store that truncates keys confuses them.
pub(super) async fn long_keys(store: &dyn Store) -> Verdict {
    let longest = format!("{:x<LONGEST_NAME$}", "conformance");
    for (function, operation) in
        [("conformance".to_owned(), "o".to_owned()), (longest, "-_.:".repeat(LONGEST_NAME / 4))]
    {
        let scope = Scope::new(function, operation).map_err(|error| error.to_string())?;
        let mut claimed = Vec::new();
        for _ in 0..2 {
            let key = Key::new(owner()?.to_string()).map_err(|error| error.to_string())?;
            let (key, lock) = (StoredKey::new(&scope, &key), first_lock()?);
            stands(store, &key, None, "of a key never written").await?;
            let record = Record::from(lock.clone());
            applied(store, &key, &claim(lock), &record).await?;
            claimed.push((key, record));
        }
        for (key, record) in claimed {
            refused(store, &key, &claim(second_lock()?), Some(&record)).await?;
            let (release, released) = release(&record);
            applied(store, &key, &release, &released).await?;
        }
    }
    Ok(())
}

/// Tests keys that a store might confuse: they have the same stem, and suffixes such as wildcards, a trailing blank,
/// the same letter in both cases, and the same letter in two Unicode forms.
pub(super) async fn neighbours(store: &dyn Store) -> Verdict {
    let stem = fresh_key_in("neighbours")?;
    let suffixes = ["", "x", "X", "xx", "x ", "_", "%", "*", "#1", "/1", "\u{e9}", "e\u{301}"];
    let mut neighbours = Vec::new();
    for suffix in suffixes {
        let key = StoredKey::from_stored(format!("{stem}{suffix}"));
        let lock = first_lock()?;
        let record = Record::from(lock.clone());
        stands(store, &key, None, "of a key whose neighbour was written").await?;
        prepare(store, &key, &[claim(lock)]).await?;
        neighbours.push((key, record));
    }
    // Every second key is settled, by its own owner.
    for (at, (key, record)) in neighbours.iter_mut().enumerate() {
        if at % 2 == 1 {
            let (release, released) = release(record);
            applied(store, key, &release, &released).await?;
            *record = released;
        }
    }
    for (key, record) in &neighbours {
        stands(store, key, Some(record), "after its neighbours were written").await?;
    }
    Ok(())
}
