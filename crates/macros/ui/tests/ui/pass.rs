//! Functions that must compile: a generic one, ones with all kinds of parameters, one with a second attribute, and one
//! that writes `Result` with its path.

use std::{borrow::Cow, fmt, io, sync::Arc};

use lambda_idempotency::{Idempotency, Key, idempotent};
use serde::{Serialize, de::DeserializeOwned};

/// A key whose type isn't `String`.
#[idempotent(key = id, compare = id)]
pub(crate) async fn cow(id: Cow<'_, str>, mut count: u32, idempotency: Arc<Idempotency>) -> Result<u32, io::Error> {
    count += 1;
    Ok(count)
}

#[idempotent(operation = "generic", key = id, compare = (), with = app.1)]
#[allow(clippy::unused_async, reason = "tests that another attribute may follow `idempotent`")]
async fn generic<'a, T, E>(id: &'a Key, (made, _): (T, u8), app: &(u8, Idempotency)) -> std::result::Result<T, E>
where
    T: Serialize + DeserializeOwned + 'static,
    E: fmt::Display + 'static,
{
    Ok(made)
}

/// Parameters with the same names as variables in the expansion.
#[idempotent(key = key)]
async fn same_names(key: &str, operation: u8, idempotency: &Idempotency) -> Result<usize, io::Error> {
    Ok(key.len() + usize::from(operation))
}

trait Charge {
    async fn charge(self, id: String) -> Result<(), lambda_idempotency::RunError<String>>;
}

struct Gateway {
    idempotency: Idempotency,
}

impl Charge for Gateway {
    #[idempotent(operation = "charge", key = id)]
    async fn charge(self, id: String) -> Result<(), String> {
        Err("no".to_owned())?;
        Ok(())
    }
}

fn main() {}
