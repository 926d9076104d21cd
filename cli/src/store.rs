//! Which table the commands work on.

use std::{sync::Arc, time::Duration};

use clap::Args;
use lambda_idempotency::{
    Store,
    store::dynamodb::{DynamoDbStore, DynamoDbStoreBuilder},
};

use crate::{
    problem::{Problem, Result},
    words,
};

/// A person waits longer than a handler: for credentials too, which may come from a service.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(8);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(12);

/// Names the table. Credentials, Region and endpoint come from the environment as for any AWS SDK: `AWS_PROFILE`,
/// `AWS_REGION`, `AWS_ENDPOINT_URL_DYNAMODB` and the others.
#[derive(Debug, Args)]
#[command(next_help_heading = "The table")]
pub struct StoreArguments {
    /// The table's name or ARN. Default: what IDEMPOTENCY_TABLE or IDEMPOTENCY_STORE names, as in the function.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,

    /// Where DynamoDB is, such as http://localhost:8000. Default: by the Region.
    #[arg(long, value_name = "URL")]
    endpoint_url: Option<String>,

    /// The table's Region. Default: AWS_REGION, or the profile's.
    #[arg(long, value_name = "NAME")]
    region: Option<String>,

    /// The table's sort key, if it has one.
    #[arg(long, value_name = "ATTRIBUTE")]
    sort_key: Option<String>,
}

impl StoreArguments {
    /// The store on the table. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If no table or no Region is named, or one of them makes no sense.
    pub async fn open(&self) -> Result<DynamoDbStore> {
        let mut builder = match &self.table {
            Some(table) => DynamoDbStore::builder(table),
            None => DynamoDbStoreBuilder::from_env()
                .map_err(|error| Problem::new(format!("{}, or give --table NAME", Problem::of(&error))))?,
        };
        if let Some(endpoint_url) = &self.endpoint_url {
            builder = builder.endpoint_url(endpoint_url);
        }
        if let Some(region) = &self.region {
            builder = builder.region(region);
        }
        if let Some(sort_key) = &self.sort_key {
            builder = builder.sort_key(sort_key);
        }
        let builder = builder.attempt_timeout(ATTEMPT_TIMEOUT).operation_timeout(OPERATION_TIMEOUT);
        builder.build().await.map_err(|error| Problem::of(&error))
    }

    /// The same, for who asks no more of it than what every store has.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_any(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.open().await?))
    }

    /// What tells the AWS command line where the table is, as far as it was given.
    pub fn aws_options(&self) -> String {
        let options = [("--region", &self.region), ("--endpoint-url", &self.endpoint_url)];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        given.map(|(name, value)| format!(" {name} {}", words::quoted(value))).collect()
    }

    /// A command line of ours on the same table.
    pub fn command_line(&self, words: &[&str]) -> String {
        let mut line = vec!["idempotency"];
        line.extend(words);
        for (option, value) in [
            ("--table", &self.table),
            ("--endpoint-url", &self.endpoint_url),
            ("--region", &self.region),
            ("--sort-key", &self.sort_key),
        ] {
            line.extend(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        words::command_line(line)
    }
}
