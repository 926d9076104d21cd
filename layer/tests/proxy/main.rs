//! The program with a function behind it, without any network: an event's way through the proxy.

mod batch;
mod bench;
mod events;
mod http_events;
mod process;
mod wire;
