//! Reads a record from the table without the library, which is under test.

use std::{collections::HashMap, fmt};

use aws_sdk_dynamodb::{Client, error::DisplayErrorContext, types::AttributeValue};
use lambda_idempotency_rehearsal::problem::{Context, Problem, Result};

/// The parts of a record that the judge compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The record's status.
    pub status: String,
    /// The record's generation.
    pub generation: u64,
    /// The number of the attempt.
    pub attempt: u32,
    /// The end of the lease in ms since the epoch, while the key is claimed.
    pub lease_until: Option<u64>,
    /// The response, if the record has one.
    pub response: Option<Vec<u8>>,
}

impl Stored {
    /// Whether the operation is completed.
    pub fn is_completed(&self) -> bool {
        self.status == "COMPLETED"
    }

    fn of(item: &HashMap<String, AttributeValue>) -> Result<Self> {
        let amiss = |name: &str| Problem::new(format!("a record has no readable `{name}`"));
        let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned();
        let number = |name: &str| -> Option<u64> { item.get(name)?.as_n().ok()?.parse().ok() };
        Ok(Self {
            status: text("status").ok_or_else(|| amiss("status"))?,
            generation: number("generation").ok_or_else(|| amiss("generation"))?,
            attempt: number("attempt").and_then(|n| n.try_into().ok()).ok_or_else(|| amiss("attempt"))?,
            lease_until: number("lease_until"),
            response: item
                .get("response")
                .and_then(|value| value.as_b().ok())
                .map(|blob| blob.as_ref().to_vec()),
        })
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, generation, attempt, lease_until, response } = self;
        write!(f, "{status}, generation {generation}, attempt {attempt}")?;
        if let Some(lease_until) = lease_until {
            write!(f, ", lease until {lease_until}")?;
        }
        match response {
            Some(response) => write!(f, ", response {}", String::from_utf8_lossy(response)),
            None => Ok(()),
        }
    }
}

/// Reads the record `id`, if there is one, with a consistent read.
///
/// # Errors
///
/// If the record can't be read.
pub async fn read(client: &Client, table: &str, id: &str) -> Result<Option<Stored>> {
    let key = AttributeValue::S(id.to_owned());
    let read = client.get_item().table_name(table).key("id", key).consistent_read(true).send().await;
    let read = read.map_err(|error| DisplayErrorContext(&error).to_string());
    let read = read.context(format!("reading the record {id}"))?;
    read.item().map(Stored::of).transpose().context(format!("invalid record {id}"))
}
