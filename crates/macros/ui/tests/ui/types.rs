//! Mistakes that only the compiler can report: a key that names no parameter, and, in an `impl`, a function that has
//! neither `self` nor the argument `operation`.

use std::io;

use lambda_idempotency::{Idempotency, idempotent};

#[idempotent(key = order_id)]
async fn no_such_parameter(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

struct Payments;

impl Payments {
    #[idempotent(key = id)]
    async fn unnamed(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
        Ok(1)
    }
}

fn main() {}
