//! An order service that stores its idempotency records in the same PostgreSQL transactions as its orders. Wherever
//! the process dies, an order and its record both exist, or neither does.
//!
//! DATABASE_URL=postgres://user:password@localhost/shop cargo run --example orders_on_postgres --features postgres

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use lambda_idempotency::{
    ErrorKind, Idempotency, Key, Operation, RunError,
    store::postgres::{
        PostgresStore,
        tokio_postgres::{self, Client, NoTls, Transaction},
    },
    time::{Clock as _, system_clock},
};
use serde::{Deserialize, Serialize};

/// The customer's order. The client sends an idempotency key with it.
#[derive(Debug, Serialize)]
struct Order<'a> {
    article: &'a str,
    pieces: i32,
}

/// The customer's receipt, which stays the same however often the order is sent.
#[derive(Debug, Deserialize, Serialize)]
struct Receipt {
    number: i32,
    pieces_left: i32,
}

/// The operation that places each order once, and the store of its records. Both use the orders' database.
struct Shop {
    place: Operation,
    records: PostgresStore,
}

/// Why an order is not placed.
#[derive(Debug)]
enum NotPlaced {
    SoldOut,
    Database(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for NotPlaced {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl Shop {
    /// Places an order once for `key`. Either everything in the transaction happens once, or nothing does.
    async fn place(
        &self,
        client: &mut Client,
        key: &str,
        order: &Order<'_>,
    ) -> Result<Receipt, RunError<NotPlaced>> {
        let work = async |transaction: &Transaction<'_>| place_in(transaction, order).await;
        self.place.run_in(&self.records, client, &Key::new(key)?, order, work).await
    }
}

async fn place_in(transaction: &Transaction<'_>, order: &Order<'_>) -> Result<Receipt, NotPlaced> {
    let take = "UPDATE stock SET pieces = pieces - $2 WHERE article = $1 AND pieces >= $2 RETURNING pieces";
    let Some(taken) = transaction.query_opt(take, &[&order.article, &order.pieces]).await? else {
        return Err(NotPlaced::SoldOut);
    };
    let place = "INSERT INTO orders (article, pieces) VALUES ($1, $2) RETURNING number";
    let placed = transaction.query_one(place, &[&order.article, &order.pieces]).await?;
    Ok(Receipt { number: placed.get(0), pieces_left: taken.get(0) })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL to a PostgreSQL database for tests")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let tables = "CREATE TABLE IF NOT EXISTS stock (article text PRIMARY KEY, pieces int NOT NULL);
                  CREATE TABLE IF NOT EXISTS orders (number serial, article text, pieces int);
                  INSERT INTO stock VALUES ('lamp', 3) ON CONFLICT DO NOTHING";
    client.batch_execute(tables).await?;
    let records = PostgresStore::builder(url).build()?;
    let _ = records.create_table().await?;
    let place = Idempotency::builder(records.clone()).function("shop").build()?.operation("place")?;
    let shop = Shop { place, records };

    let order = Order { article: "lamp", pieces: 2 };
    let mut out = io::stdout();
    for key in ["order-17", "order-17", "order-18"] {
        match shop.place(&mut client, key, &order).await {
            Ok(receipt) => writeln!(out, "{key}: {receipt:?}")?,
            Err(RunError::Handler(NotPlaced::SoldOut)) => {
                writeln!(out, "{key}: sold out, nothing recorded")?;
            }
            Err(RunError::Handler(NotPlaced::Database(error))) => return Err(error.into()),
            Err(RunError::Idempotency(error)) if error.kind() == ErrorKind::InProgress => {
                writeln!(out, "{key}: another process is placing this order; send it again")?;
            }
            Err(error) => return Err(format!("{key}: {error:?}").into()),
        }
    }
    let swept = shop.records.sweep(system_clock().now(), 1000).await?;
    writeln!(out, "deleted {swept} expired records")?;
    Ok(())
}
