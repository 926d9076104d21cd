//! The part of the verification suite that needs real servers, sockets and processes.
//!
//! The other half enumerates and simulates the machine. This half shows that the real stores behave as that
//! half assumes, and that the library keeps its promises when the wire breaks and processes die.
//!
//! Every check takes its stores from [`servers`], so a store that is added there is in all of them.

pub mod agreement;
pub mod crash;
pub mod deadlines;
pub mod outages;
pub mod servers;
pub mod site;
mod tcp;
pub mod wire;
