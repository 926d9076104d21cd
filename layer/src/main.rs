//! The layer's program. Its code is in `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lambda_idempotency_layer::main(std::env::args_os().skip(1))
}
