//! Checks that every store answers each operation as the model does, and that each race of concurrent writes has one
//! winner. The model is a memory store.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use lambda_idempotency::{
    conformance,
    store::{Store, memory::MemoryStore},
};
use lambda_idempotency_rehearsal::problem::Result;
use testkit::random::fresh_seed;

use crate::{
    servers::Server,
    site::{Kind, Site},
};

/// The size of the check.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// The number of random operations on each store. Each answer must match the model's.
    pub operations: u32,
    /// The number of tasks that race for one key.
    pub tasks: usize,
    /// The number of rounds in memory, with several races each.
    pub rounds_in_memory: u32,
    /// The number of rounds on each server, with several races each.
    pub rounds_on_servers: u32,
}

impl Numbers {
    /// The size for every test run.
    pub const BOUNDED: Self =
        Self { operations: 2_000, tasks: 64, rounds_in_memory: 500, rounds_on_servers: 5 };
    /// The size for a release.
    pub const LONG: Self =
        Self { operations: 100_000, tasks: 64, rounds_in_memory: 100_000, rounds_on_servers: 1_000 };
}

/// The figures of one store that passed the check. If a store fails, the check panics.
#[derive(Clone, Debug)]
pub struct Agreement {
    store: String,
    numbers: Numbers,
    seed: u64,
    rounds: u32,
}

impl Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, numbers: Numbers { operations, tasks, .. }, seed, rounds } = self;
        write!(f, "{store}: ")?;
        if *operations > 0 {
            write!(f, "{operations} random operations agree with the model (seed {seed}); ")?;
        }
        write!(f, "{rounds} rounds of races between {tasks} tasks, one winner each")
    }
}

/// Compares the stores on these kinds of servers with the model, and checks races on these stores and on the memory
/// store. After each store, calls `show` with the store's figures.
///
/// # Errors
///
/// If a server doesn't start or doesn't answer.
///
/// # Panics
///
/// At the first answer that differs from the model's (the message has the seed), or at the first race that doesn't have
/// exactly one winner.
pub async fn check(kinds: &[Kind], numbers: Numbers, show: impl Fn(&Agreement)) -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // The model is a memory store, so comparing the memory store with it would prove nothing.
    let races_only = Numbers { operations: 0, ..numbers };
    show(&of("memory".into(), &[memory], races_only, numbers.rounds_in_memory).await?);
    for kind in kinds {
        if *kind == Kind::DynamoDb {
            for server in Server::all().await? {
                let store = Arc::new(server.store().await?);
                show(&of(server.name.clone(), &[store], numbers, numbers.rounds_on_servers).await?);
            }
            continue;
        }
        let site = Site::start(*kind).await?;
        // Two handles, as in two processes.
        let handles = [site.direct().await?, site.direct().await?];
        show(&of(kind.name().to_owned(), &handles, numbers, numbers.rounds_on_servers).await?);
    }
    Ok(())
}

/// Checks one store through its handles.
async fn of(name: String, handles: &[Arc<dyn Store>], numbers: Numbers, rounds: u32) -> Result<Agreement> {
    let seed = fresh_seed();
    conformance::differential(&*handles[0], seed, numbers.operations).await;
    conformance::check_contention(handles, numbers.tasks, rounds).await;
    Ok(Agreement { store: name, numbers, seed, rounds })
}
