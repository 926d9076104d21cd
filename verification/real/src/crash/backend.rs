//! The harness's access to the server that keeps the records, and to the effects if they're in a database.

use aws_sdk_dynamodb::Client;
use lambda_idempotency::{
    StoredKey,
    store::{
        NamedStore, State, Store,
        postgres::{
            PostgresStore,
            tokio_postgres::{self, NoTls},
        },
    },
};
use lambda_idempotency_rehearsal::{
    database::{ACCESS_KEY, REGION},
    problem::{Context, Problem, Result},
};
use std::sync::Arc;

use super::{
    effects::{Effects, EffectsRows, EffectsTable},
    form::Form,
    job::{CLAIM_FIELD, EFFECTS, ENDPOINT, KEY_FIELD, STORE, TABLE},
    ledger::Ledger,
    record::{self, Stored},
};
use crate::{
    servers::{self, Server},
    site,
};

/// A server with fresh tables on it.
#[derive(Debug)]
pub struct Backend {
    /// The server's name in reports.
    pub name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    DynamoDb { server: Server, client: Client, table: String },
    Postgres { url: String, table: String, client: Arc<tokio_postgres::Client> },
    Redis { url: String, store: Arc<dyn Store> },
}

impl Backend {
    /// Starts the servers that keep the records of `form`, and creates fresh tables on them.
    ///
    /// # Errors
    ///
    /// If a server doesn't start, or isn't installed.
    pub async fn all(form: Form) -> Result<Vec<Self>> {
        match form.kind() {
            site::Kind::DynamoDb => {
                let mut all = Vec::new();
                for server in Server::all().await? {
                    all.push(Self::dynamodb(server).await?);
                }
                Ok(all)
            }
            site::Kind::Postgres => Ok(vec![Self::postgres().await?]),
            site::Kind::Redis => Ok(vec![Self::redis().await?]),
        }
    }

    /// Creates a fresh table on this server.
    ///
    /// # Errors
    ///
    /// If the table can't be created.
    pub async fn dynamodb(server: Server) -> Result<Self> {
        let table = servers::fresh_table()?;
        server.database().create_idempotency_table(&table).await?;
        let (name, client) = (server.name.clone(), server.client());
        Ok(Self { name, kind: Kind::DynamoDb { server, client, table } })
    }

    async fn postgres() -> Result<Self> {
        let server = servers::shared_postgres().ok_or_else(|| Problem::new("PostgreSQL isn't installed"))?;
        let table = servers::fresh_table()?.replace('-', "_");
        let store = PostgresStore::builder(server.url())
            .table(&table)
            .build()
            .context("couldn't open the PostgreSQL store")?;
        store.create_table().await.context("couldn't create the table of records")?;
        let (client, connection) =
            tokio_postgres::connect(&server.url(), NoTls).await.context("couldn't connect to PostgreSQL")?;
        tokio::spawn(connection);
        let effects = format!("CREATE TABLE {table}_effects (n bigserial, key text, line text)");
        client.batch_execute(&effects).await.context("couldn't create the table of effects")?;
        let kind = Kind::Postgres { url: server.url(), table, client: Arc::new(client) };
        Ok(Self { name: "PostgreSQL".into(), kind })
    }

    async fn redis() -> Result<Self> {
        let server = testkit::redis::shared().ok_or_else(|| Problem::new("Redis isn't installed"))?;
        let url = format!("{}?prefix={}:", server.url(), servers::fresh_table()?);
        let store = NamedStore::from_url(&url).context("couldn't open the Redis store")?;
        let store = store.open().await.context("couldn't open the Redis store")?;
        Ok(Self { name: "Redis".into(), kind: Kind::Redis { url, store } })
    }

    /// Opens the place where this form's effects are. On DynamoDB, creates their table first.
    pub(super) async fn effects(&self, form: Form, ledger: &Ledger) -> Result<Effects> {
        Ok(match (&self.kind, form) {
            (Kind::DynamoDb { server, client, table }, Form::Transaction | Form::Optimistic) => {
                let name = effects_of(table);
                server.database().create_table(&name, "id").await?;
                Effects::Table(EffectsTable { client: client.clone(), name })
            }
            (Kind::Postgres { client, table, .. }, Form::PostgresTransaction) => {
                Effects::Rows(EffectsRows { client: Arc::clone(client), table: effects_of(table) })
            }
            _ => Effects::Files(ledger.clone()),
        })
    }

    /// The environment variables that tell a process of the function where its records and effects are.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        match &self.kind {
            Kind::DynamoDb { server, table, .. } => vec![
                (ENDPOINT, server.database().endpoint().to_string()),
                (TABLE, table.clone()),
                (EFFECTS, effects_of(table)),
            ],
            Kind::Postgres { url, table, .. } => {
                vec![(STORE, format!("{url}?table={table}")), (EFFECTS, effects_of(table))]
            }
            Kind::Redis { url, .. } => vec![(STORE, url.clone())],
        }
    }

    /// The environment variables that configure the layer.
    pub(super) fn layers_environment(&self) -> Vec<(&'static str, String)> {
        let Kind::DynamoDb { server, table, .. } = &self.kind else { return Vec::new() };
        vec![
            ("AWS_ENDPOINT_URL_DYNAMODB", server.database().endpoint().to_string()),
            ("AWS_REGION", REGION.into()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.into()),
            ("AWS_EC2_METADATA_DISABLED", "true".into()),
            ("IDEMPOTENCY_TABLE", table.clone()),
            ("IDEMPOTENCY_KEY", KEY_FIELD.into()),
            ("IDEMPOTENCY_CLAIM_FIELD", CLAIM_FIELD.into()),
            ("IDEMPOTENCY_METRICS", "none".into()),
        ]
    }

    /// Reads a key's record.
    pub(super) async fn record(&self, id: &StoredKey) -> Result<Option<Stored>> {
        match &self.kind {
            Kind::DynamoDb { client, table, .. } => record::read(client, table, id.as_str()).await,
            Kind::Postgres { client, table, .. } => row(client, table, id).await,
            // The harness reads this record through the library, since only the library knows its encoding in Redis.
            Kind::Redis { store, .. } => {
                let record = store.read(id).await.context(format!("couldn't read the record {id}"))?;
                Ok(record.map(|record| Stored {
                    status: record.status().as_str().to_owned(),
                    generation: record.generation.get(),
                    attempt: record.attempt,
                    lease_until: record.lease_until().map(|until| until.as_millis()),
                    response: kept(&record.state),
                }))
            }
        }
    }

    /// Deletes the tables if they're on a DynamoDB that outlives this process.
    pub(super) async fn clear(&self) -> Result<()> {
        let Kind::DynamoDb { server, table, .. } = &self.kind else { return Ok(()) };
        if server.database().is_embedded() {
            return Ok(());
        }
        // If the effects are in files, this table doesn't exist and the deletion fails.
        let _ = server.database().delete_table(&effects_of(table)).await;
        server.database().delete_table(table).await
    }
}

/// Returns the name of the effects table that belongs to a table of records.
fn effects_of(table: &str) -> String {
    format!("{table}_effects")
}

fn kept(state: &State) -> Option<Vec<u8>> {
    use lambda_idempotency::store::{Outcome, Place};
    match state {
        State::Completed(Outcome::Retained(response)) => match &response.place {
            Place::Inline(kept) => response.decode(kept).ok().map(|response| response.to_vec()),
            Place::Chunks(_) => None,
        },
        _ => None,
    }
}

async fn row(client: &tokio_postgres::Client, table: &str, id: &StoredKey) -> Result<Option<Stored>> {
    let sql = format!(
        "SELECT status, generation::text, attempt, lease_until::text, response FROM {table} WHERE id = $1"
    );
    let row =
        client.query_opt(&sql, &[&id.as_str()]).await.context(format!("couldn't read the record {id}"))?;
    let Some(row) = row else { return Ok(None) };
    let number = |text: &str| text.parse::<u64>().context("invalid number in the record");
    let lease_until: Option<&str> = row.get(3);
    Ok(Some(Stored {
        status: row.get(0),
        generation: number(row.get(1))?,
        attempt: u32::try_from(row.get::<_, i64>(2)).context("invalid attempt in the record")?,
        lease_until: lease_until.map(number).transpose()?,
        response: row.get(4),
    }))
}
