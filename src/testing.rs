//! Tests of your own handler: is it safe to retry?

mod bench;
mod delivery;
mod event;
mod fault;
mod fields;
mod function;
mod given;
mod keys;
mod ledger;
mod point;
mod random;
mod stage;
mod store;
mod story;
mod survive;
mod world;

pub use bench::Bench;
pub use delivery::Delivery;
pub use event::Event;
pub use fault::Fault;
pub use function::{Answer, Function};
pub use given::Given;
pub use keys::{Changes, KeyReport, key_of};
pub use ledger::{Effect, Ledger, NoAnswer};
pub use point::{Call, Point};
pub use random::Random;
pub use survive::{Finding, Mistake, Report, Survival, survive};
