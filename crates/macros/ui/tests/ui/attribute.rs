//! Mistakes that the attribute itself reports.

#![allow(unused)]

use std::io;

use lambda_idempotency::{Idempotency, idempotent};

#[idempotent(key = id)]
fn not_async(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id)]
async fn no_result(id: &str, idempotency: &Idempotency) -> u32 {
    1
}

#[idempotent(key = id)]
async fn one_type(id: &str, idempotency: &Idempotency) -> io::Result<u32> {
    Ok(1)
}

#[idempotent]
async fn no_key(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id, payload = id)]
async fn unknown_argument(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = "id")]
async fn quoted_key(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id, operation = "charge card")]
async fn invalid_name(id: &str, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id)]
async fn no_engine(id: &str) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id)]
async fn pattern(id: &str, (a, b): (u8, u8), idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id)]
async fn parameter<C: ToString>(id: &str, command: &C, idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

#[idempotent(key = id)]
async fn impl_trait(id: &str, lines: &[impl ToString], idempotency: &Idempotency) -> Result<u32, io::Error> {
    Ok(1)
}

struct Payments {
    idempotency: Idempotency,
}

impl Payments {
    #[idempotent(key = id)]
    async fn unnamed(&self, id: &str) -> Result<u32, io::Error> {
        Ok(1)
    }
}

fn main() {}
