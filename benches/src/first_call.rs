//! Measures the first call of a process: once by hand with the AWS SDK, once through the library, and once after
//! `warm_up`. `scripts/bench-first-call` starts it many times beside a server with TLS.
//!
//! ```text
//! first_call bare|library|warm-up      prints the microseconds of the first call
//! ```

#![expect(clippy::disallowed_methods, reason = "the example measures real time")]

use std::{error::Error, io::Write as _, time::Instant};

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_idempotency::{Idempotency, Key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let way = std::env::args().nth(1).ok_or("usage: first_call bare|library|warm-up")?;
    let call = match way.as_str() {
        "bare" => {
            let client = aws_sdk_dynamodb::Client::new(
                &aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await,
            );
            let called = Instant::now();
            let id = || AttributeValue::S("payments#run#charge#pay_1".into());
            client.put_item().table_name("payments").item("id", id()).send().await?;
            let update = client.update_item().table_name("payments").key("id", id());
            update.update_expression("SET s = :s").expression_attribute_values(":s", id()).send().await?;
            called.elapsed()
        }
        "library" | "warm-up" => {
            let idempotency = Idempotency::builder_from_env().await?.function("payments").build()?;
            if way == "warm-up" {
                idempotency.warm_up().await;
            }
            let charge = idempotency.operation("charge")?;
            let called = Instant::now();
            let run = charge.run(Key::new("pay_1")?, &"12.50 EUR", async || Ok::<_, std::io::Error>(1));
            run.await.map_err(|error| error.to_string())?;
            called.elapsed()
        }
        other => return Err(format!("there's no way {other:?}").into()),
    };
    writeln!(std::io::stdout(), "{}", call.as_micros())?;
    Ok(())
}
