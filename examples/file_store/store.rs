//! A custom store: one file per record, in one folder of one machine.

use std::{fs, fs::File, io, path::PathBuf, sync::Arc};

use lambda_idempotency::{
    Fingerprint, StoredKey,
    store::{BoxFuture, Put, PutOutcome, Record, Store, StoreError, StoreErrorKind},
};

/// Keeps each record in a file. A writer locks the folder, and replaces the old file with the new one.
#[derive(Clone, Debug)]
pub struct FileStore {
    folder: Arc<PathBuf>,
}

impl FileStore {
    /// Opens `folder`, and creates it if it doesn't exist.
    pub fn new(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self { folder: Arc::new(folder) })
    }

    /// The path of the record's file. The file's name is a digest, since a key may be longer than a file name.
    fn path(&self, key: &StoredKey) -> PathBuf {
        self.folder.join(Fingerprint::of_bytes(key.as_str().as_bytes()).to_string())
    }

    /// Locks out other readers and writers until the returned file is dropped.
    fn locked(&self) -> Result<File, StoreError> {
        let lock = File::create(self.folder.join("lock")).and_then(|lock| lock.lock().map(|()| lock));
        lock.map_err(unavailable)
    }

    fn read_now(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        match fs::read(self.path(key)) {
            // Never treat an unreadable record as absent.
            Ok(bytes) => Record::from_bytes(bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let _lock = self.locked()?;
        let current = self.read_now(key)?;
        // `apply_to` implements the contract: it returns the new record if the put's condition holds.
        let Some(record) = put.apply_to(current.as_ref()) else {
            return Ok(PutOutcome::Refused(current));
        };
        let new = self.path(key).with_extension("new");
        let written = fs::write(&new, record.to_bytes()).and_then(|()| File::open(&new)?.sync_all());
        written.map_err(unavailable)?;
        // An error of `rename` is ambiguous: the write may have been applied.
        fs::rename(new, self.path(key)).map_err(|error| unavailable(error).maybe_applied(true))?;
        Ok(PutOutcome::Applied)
    }
}

impl Store for FileStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        let (store, key, put) = (self.clone(), key.clone(), put.clone());
        Box::pin(blocking(move || store.put_now(&key, &put)))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        let (store, key) = (self.clone(), key.clone());
        Box::pin(blocking(move || store.locked().and_then(|_lock| store.read_now(&key))))
    }
}

/// Runs `work` on a thread for blocking calls, since file calls block. Dropping the future doesn't stop `work`.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| StoreError::new(StoreErrorKind::Unavailable, "the task panicked").maybe_applied(true))?
}

fn unavailable(error: io::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "couldn't use the records' folder").with_source(error)
}
