//! Runs one operation: claims it, runs its handler, and records or replays its outcome. The protocol has the
//! rules; this module performs its actions.
//!
//! Each module uses only modules above it in this list; `tests/architecture.rs` checks that.

pub(crate) mod handle;
pub(crate) mod staging;

pub(crate) mod context;

pub(crate) mod watch;

pub(crate) mod limits;

pub(crate) mod replay;

pub(crate) mod refusal;

pub(crate) mod cache;

pub(crate) mod brake;

pub(crate) mod driver;

pub(crate) mod response;

mod settle;

pub(crate) mod shadow;

pub(crate) mod unenforced;

pub(crate) mod claim;

pub(crate) mod commit;

pub(crate) mod begin;

pub(crate) mod optimistic;

pub(crate) mod extension;

mod right;

pub(crate) mod question;

pub(crate) mod protect;

pub(crate) mod in_transaction;
