//! The part of the verification suite that needs real servers, sockets and processes.
//!
//! The package `lambda-idempotency-verification` explores and simulates the protocol. This package shows that the real
//! stores behave as the other package assumes, and that the library keeps its promises when the wire breaks and
//! processes die.
//!
//! [`servers`] and [`site`] start the servers for every check.

pub mod agreement;
pub mod crash;
pub mod deadlines;
pub mod servers;
pub mod site;
mod tcp;
pub mod wire;
