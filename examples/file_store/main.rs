//! Uses a custom store. Run `cargo run --example file_store` twice: the second run prints the first run's receipt.

#[allow(unreachable_pub, reason = "the store is written as in a library")]
mod store;

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use lambda_idempotency::{Idempotency, Key};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = store::FileStore::new(env::temp_dir().join("idempotency-records"))?;
    let idempotency = Idempotency::builder(store).function("file-store").build()?;
    let charge = async || Ok::<_, io::Error>(format!("charged by process {}", std::process::id()));
    let receipt: String =
        idempotency.operation("charge")?.run(Key::new("order-17")?, &"12.50 EUR", charge).await?;
    writeln!(io::stdout(), "{receipt}")?;
    Ok(())
}
