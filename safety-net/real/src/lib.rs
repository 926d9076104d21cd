//! The half of the safety net that needs what is real: servers, sockets and processes.
//!
//! The other half enumerates and simulates the machine; this one shows that the stores are what that half
//! takes them for, and that the whole thing keeps its promises when the wire breaks and processes die.
//!
//! Every net takes its stores from [`servers`]: one that is added there is in all of them.

pub mod agreement;
pub mod crash;
pub mod deadlines;
pub mod outages;
pub mod random;
pub mod servers;
pub mod site;
mod tcp;
pub mod wire;
