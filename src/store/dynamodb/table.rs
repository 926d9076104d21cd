//! Creates and checks the table, and explains how its keys differ from the configuration.

#[cfg(feature = "admin")]
mod check;

use std::{error::Error as StdError, fmt, time::Duration};

use aws_sdk_dynamodb::{
    config::{self, timeout::TimeoutConfig},
    error::{ProvideErrorMetadata, SdkError},
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency,
        ScalarAttributeType, TableDescription, TableStatus, TimeToLiveDescription, TimeToLiveSpecification,
        TimeToLiveStatus,
    },
};

use super::{
    DynamoDbStore,
    attempts::{Findings, observed},
    fault::{Class, Fault},
};
use crate::{
    store::{StoreError, StoreErrorKind, TableProblem, toolkit::Field},
    time::{Clock as _, system_clock},
};

/// The timeouts of one attempt and of a whole request about a table, which takes longer than a request about an item.
const PATIENCE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];
/// The interval between polls that wait for a new table to be ACTIVE, and the maximum number of polls. Most tables are
/// ACTIVE within ten seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const POLLS: u32 = 240;

/// The relevant part of a table's key: name, type and role of each attribute, HASH first.
#[derive(Debug, PartialEq, Eq)]
struct Keys(Vec<(String, ScalarAttributeType, KeyType)>);

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, scalar, role)) in self.0.iter().enumerate() {
            let and = if at == 0 { "" } else { " and " };
            write!(f, "{and}`{name}` ({}, {})", scalar.as_str(), role.as_str())?;
        }
        Ok(())
    }
}

impl Keys {
    fn of(table: &TableDescription) -> Self {
        let scalar = |name: &str| {
            let definition =
                table.attribute_definitions().iter().find(|definition| definition.attribute_name() == name);
            definition.map_or(ScalarAttributeType::from("?"), |found| found.attribute_type().clone())
        };
        let mut keys: Vec<_> = table
            .key_schema()
            .iter()
            .map(|key| {
                (key.attribute_name().to_owned(), scalar(key.attribute_name()), key.key_type().clone())
            })
            .collect();
        keys.sort_by_key(|(_, _, role)| *role != KeyType::Hash);
        Self(keys)
    }
}

impl DynamoDbStore {
    /// Creates the table, if it doesn't exist, with on-demand capacity and TTL on the records' expiry. Waits
    /// until it's ACTIVE. An existing table is left unchanged, except that TTL is enabled.
    ///
    /// Returns whether this call created the table. If the response to the creation was lost and the SDK sent the
    /// request again, the result is `false`, although this call created the table.
    ///
    /// Needs `dynamodb:CreateTable`, `dynamodb:DescribeTable`, `dynamodb:DescribeTimeToLive` and
    /// `dynamodb:UpdateTimeToLive`.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Rejected`] if the table exists with other keys, or with TTL on another attribute;
    /// [`StoreErrorKind::Unavailable`] if it isn't ACTIVE after two minutes; and any error of DynamoDB.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the table created, with or without TTL. Call `create_table` again to finish.
    pub async fn create_table(&self) -> Result<bool, StoreError> {
        let is_new = match self.describe().await? {
            Some(_) => false,
            None => self.create().await?,
        };
        let table = self.active_table().await?;
        if let Some(problem) = self.keys_problem(&table) {
            return Err(self.unfit(&problem));
        }
        if !is_strongly_consistent(&table) {
            self.enable_time_to_live().await?;
        }
        Ok(is_new)
    }

    /// Returns the error for a request that DynamoDB calls invalid. If the table's keys differ from the configured
    /// ones, the error shows both. Otherwise, the error has the class `otherwise`.
    pub(super) async fn explained(&self, fault: Fault, otherwise: Class) -> StoreError {
        let expected = self.expected_keys();
        let maybe_applied = fault.maybe_applied;
        let table = &self.inner.table;
        // This extra request only happens if the configuration or one of the handler's writes is wrong. It has the
        // usual timeouts, because a delivery waits for it.
        let message = match self.inner.client.describe_table().table_name(table).send().await {
            Ok(answer) => match answer.table.and_then(|table| self.keys_problem(&table)) {
                Some(problem) => {
                    return self.unfit(&problem).maybe_applied(maybe_applied).with_source(fault.cause);
                }
                None => return fault.of_class(otherwise).into_error(table, self.region()),
            },
            Err(_) => format!(
                "DynamoDB rejected the request to table `{table}` as invalid; the configured key is {expected}, but \
                 the table's own key couldn't be read; compare the two, or allow dynamodb:DescribeTable"
            ),
        };
        StoreError::new(otherwise.kind(), message).maybe_applied(maybe_applied).with_source(fault.cause)
    }

    fn expected_keys(&self) -> Keys {
        let id = self.inner.attributes.of(Field::Id).to_owned();
        let mut keys = vec![(id, ScalarAttributeType::S, KeyType::Hash)];
        keys.extend(self.inner.sort_key.clone().map(|name| (name, ScalarAttributeType::S, KeyType::Range)));
        Keys(keys)
    }

    fn keys_problem(&self, table: &TableDescription) -> Option<TableProblem> {
        let (expected, found) = (self.expected_keys(), Keys::of(table));
        (expected != found)
            .then(|| TableProblem::Keys { expected: expected.to_string(), found: found.to_string() })
    }

    fn time_to_live_problem(&self, found: &TimeToLiveDescription) -> Option<TableProblem> {
        let expected = self.inner.attributes.of(Field::ExpiresAt);
        let on = matches!(
            found.time_to_live_status(),
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
        );
        match found.attribute_name() {
            Some(name) if on && name == expected => None,
            Some(name) if on => {
                Some(TableProblem::OtherTimeToLive { expected: expected.to_owned(), found: name.to_owned() })
            }
            _ => Some(TableProblem::NoTimeToLive { attribute: expected.to_owned() }),
        }
    }

    fn unfit(&self, problem: &TableProblem) -> StoreError {
        let table = &self.inner.table;
        let fix = match problem {
            TableProblem::Keys { .. } => {
                "; a table's key can't be changed: set `attributes` and `sort_key` to this table's (--attributes, \
                 --sort-key), or use another table"
            }
            _ => "",
        };
        let message = format!("table `{table}` can't be used: {problem}{fix}");
        StoreError::new(StoreErrorKind::Rejected, message)
    }

    /// Converts the error of a request about the table itself. Such a request writes no record, so its error is never
    /// ambiguous.
    fn table_error<E>(&self, error: &SdkError<E>, findings: Findings) -> StoreError
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        Fault::new(error, findings).into_error(&self.inner.table, self.region()).maybe_applied(false)
    }

    async fn describe(&self) -> Result<Option<TableDescription>, StoreError> {
        let request = self.inner.client.describe_table().table_name(&self.inner.table);
        match observed(request.customize().config_override(patient()).send()).await {
            (Ok(answer), _) => Ok(answer.table),
            (Err(SdkError::ServiceError(error)), _) if error.err().is_resource_not_found_exception() => {
                Ok(None)
            }
            (Err(error), findings) => Err(self.table_error(&error, findings)),
        }
    }

    async fn create(&self) -> Result<bool, StoreError> {
        let mut request = self
            .inner
            .client
            .create_table()
            .table_name(&self.inner.table)
            .billing_mode(BillingMode::PayPerRequest);
        for (name, scalar, role) in self.expected_keys().0 {
            request = request
                .attribute_definitions(
                    AttributeDefinition::builder()
                        .attribute_name(&name)
                        .attribute_type(scalar)
                        .build()
                        .map_err(|_| incomplete())?,
                )
                .key_schema(
                    KeySchemaElement::builder()
                        .attribute_name(name)
                        .key_type(role)
                        .build()
                        .map_err(|_| incomplete())?,
                );
        }
        match observed(request.customize().config_override(patient()).send()).await {
            (Ok(_), _) => Ok(true),
            // Another caller created the table first, or an earlier attempt of this call did, and its answer was
            // lost.
            (Err(SdkError::ServiceError(error)), _) if error.err().is_resource_in_use_exception() => {
                Ok(false)
            }
            (Err(error), findings) => Err(self.table_error(&error, findings)),
        }
    }

    async fn active_table(&self) -> Result<TableDescription, StoreError> {
        for _ in 0..POLLS {
            match self.describe().await? {
                Some(table) if table.table_status().is_some_and(serves) => return Ok(table),
                _ => system_clock().sleep(POLL_INTERVAL).await,
            }
        }
        let table = &self.inner.table;
        Err(StoreError::new(StoreErrorKind::Unavailable, format!("table `{table}` isn't ACTIVE; try again")))
    }

    async fn describe_time_to_live(&self) -> Result<TimeToLiveDescription, StoreError> {
        let request = self.inner.client.describe_time_to_live().table_name(&self.inner.table);
        match observed(request.customize().config_override(patient()).send()).await {
            (Ok(answer), _) => Ok(answer
                .time_to_live_description
                .unwrap_or_else(|| TimeToLiveDescription::builder().build())),
            (Err(error), findings) => Err(self.table_error(&error, findings)),
        }
    }

    async fn enable_time_to_live(&self) -> Result<(), StoreError> {
        match self.time_to_live_problem(&self.describe_time_to_live().await?) {
            None => return Ok(()),
            Some(TableProblem::NoTimeToLive { .. }) => {}
            Some(other) => return Err(self.unfit(&other)),
        }
        let specification = TimeToLiveSpecification::builder()
            .enabled(true)
            .attribute_name(self.inner.attributes.of(Field::ExpiresAt))
            .build()
            .map_err(|_| incomplete())?;
        let request = self
            .inner
            .client
            .update_time_to_live()
            .table_name(&self.inner.table)
            .time_to_live_specification(specification);
        let (Err(error), findings) = observed(request.customize().config_override(patient()).send()).await
        else {
            return Ok(());
        };
        // Another caller, or an earlier attempt whose answer was lost, may have enabled TTL by now. DynamoDB refuses
        // to enable it twice.
        match self.time_to_live_problem(&self.describe_time_to_live().await?) {
            None => Ok(()),
            Some(_) => Err(self.table_error(&error, findings)),
        }
    }
}

/// Whether the table is a global table with multi-Region strong consistency. Such a table has no TTL and no transactions
/// ("How DynamoDB global tables work", DynamoDB developer guide).
fn is_strongly_consistent(table: &TableDescription) -> bool {
    table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong)
}

/// Whether a table with this status serves requests. A table that's being updated still does.
fn serves(status: &TableStatus) -> bool {
    matches!(status, TableStatus::Active | TableStatus::Updating)
}

pub(super) fn patient() -> config::Builder {
    let [attempt, operation] = PATIENCE;
    config::Config::builder().timeout_config(
        TimeoutConfig::builder().operation_attempt_timeout(attempt).operation_timeout(operation).build(),
    )
}

/// Can't happen: the SDK's builders get all required values here.
fn incomplete() -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, "the request about the table is incomplete")
}
