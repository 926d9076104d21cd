//! A custom store: one file per record, in one folder of one machine.

use std::{fs, io, path::PathBuf, sync::Arc};

use lambda_idempotency::{
    Fingerprint, StoredKey,
    settings::Execution,
    store::{
        BoxFuture, Generation, Outcome, Owner, Place, Put, PutOutcome, Record, State, Status, Store,
        StoreError, StoreErrorKind, StoredResponse,
    },
    time::Timestamp,
};
use serde_json::{Value, json};

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
    fn locked(&self) -> Result<fs::File, StoreError> {
        let lock = fs::File::create(self.folder.join("lock")).map_err(unavailable)?;
        lock.lock().map_err(unavailable)?;
        Ok(lock)
    }

    fn read_now(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        match fs::read(self.path(key)) {
            // Never treat an unreadable record as absent.
            Ok(bytes) => decode(&bytes)
                .map(Some)
                .ok_or_else(|| StoreError::new(StoreErrorKind::Corrupt, "couldn't read the record's file")),
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
        let next = self.path(key).with_extension("next");
        fs::write(&next, encode(&record)).map_err(unavailable)?;
        fs::File::open(&next).and_then(|file| file.sync_all()).map_err(unavailable)?;
        // An error of `rename` is ambiguous: the write may have been applied.
        fs::rename(next, self.path(key)).map_err(|error| unavailable(error).maybe_applied(true))?;
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

fn encode(record: &Record) -> Vec<u8> {
    // The pattern names every field. If a later version of the library adds a field, this function doesn't compile
    // until you store that field too.
    let Record {
        owner,
        generation,
        attempt,
        fingerprint,
        lock_acquired_at,
        execution,
        expires_at,
        interrupted,
        request_id,
        trace,
        state,
    } = record;
    let outcome = match state {
        State::Completed(Outcome::Retained(response)) | State::Failed(Outcome::Retained(response)) => json!({
            "deflated": response.deflated, "length": response.length, "sha256": text(&response.sha256),
            "labels": response.labels.as_deref(),
            "kept": match &response.place { Place::Inline(kept) => json!(text(kept)), Place::Chunks(n) => json!(n) },
        }),
        _ => Value::Null,
    };
    let fields = json!({
        "status": record.status().as_str(), "owner": owner.to_string(), "attempt": attempt,
        "generation": generation.get(), "fingerprint": fingerprint.to_string(),
        "lock_acquired_at": lock_acquired_at.as_millis(), "expires_at": expires_at.map(Timestamp::as_millis),
        "lease_until": record.lease_until().map(Timestamp::as_millis), "request_id": request_id.as_deref(),
        "interrupted": interrupted, "at_most_once": *execution == Execution::AtMostOnce, "trace": trace.as_deref(),
        "outcome": outcome,
    });
    fields.to_string().into_bytes()
}

/// Returns `None` if the bytes aren't a valid record. The caller must report the record as corrupt, not as absent.
fn decode(bytes: &[u8]) -> Option<Record> {
    let fields: Value = serde_json::from_slice(bytes).ok()?;
    let (text, number) = (|name: &str| fields[name].as_str(), |name: &str| fields[name].as_u64());
    Some(Record {
        owner: Owner::from_hex(text("owner")?)?,
        generation: Generation::new(number("generation")?),
        attempt: number("attempt")?.try_into().ok()?,
        fingerprint: Fingerprint::from_stored(text("fingerprint")?)?,
        lock_acquired_at: Timestamp::from_millis(number("lock_acquired_at")?),
        execution: match fields["at_most_once"].as_bool()? {
            true => Execution::AtMostOnce,
            false => Execution::AtLeastOnce,
        },
        expires_at: match fields.get("expires_at")? {
            // `null` means that the record never expires. If the field is missing, the record isn't valid.
            Value::Null => None,
            millis => Some(Timestamp::from_millis(millis.as_u64()?)),
        },
        interrupted: fields["interrupted"].as_bool()?,
        request_id: text("request_id").map(Into::into),
        trace: text("trace").map(|text| Arc::new(text.to_owned())),
        state: match Status::from_stored(text("status")?)? {
            Status::Started => State::Started { lease_until: Timestamp::from_millis(number("lease_until")?) },
            Status::Completed => State::Completed(outcome(&fields["outcome"])?),
            Status::Failed => State::Failed(outcome(&fields["outcome"])?),
            Status::Released => State::Released,
        },
    })
}

fn outcome(fields: &Value) -> Option<Outcome> {
    if fields.is_null() {
        return Some(Outcome::Omitted);
    }
    Some(Outcome::Retained(StoredResponse {
        deflated: fields["deflated"].as_bool()?,
        length: fields["length"].as_u64()?,
        sha256: bytes(&fields["sha256"])?.try_into().ok()?,
        labels: fields["labels"].as_str().map(|labels| Arc::new(labels.to_owned())),
        place: match fields["kept"].as_u64() {
            Some(count) => Place::Chunks(count.try_into().ok()?),
            None => Place::Inline(bytes(&fields["kept"])?.into()),
        },
    }))
}

/// Returns a string with one character per byte. A JSON array of numbers would take 32 bytes of memory per byte.
fn text(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn bytes(text: &Value) -> Option<Vec<u8>> {
    text.as_str()?.chars().map(|byte| u8::try_from(byte).ok()).collect()
}
