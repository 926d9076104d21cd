//! The layer's program; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    lambda_idempotency_layer::main(std::env::args_os().skip(1))
}
