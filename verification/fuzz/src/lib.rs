//! Fuzzes input from outside: records as a table may hold them, keys as clients send them, events as a runtime
//! delivers them, and HTTP as a function sends it to the layer.
//!
//! Each module has one function, `check(data)`, which panics if a promise is broken. `check` has two callers:
//! libFuzzer, which looks for inputs that reach new code (`scripts/fuzz`), and a test, which uses the corpus
//! and random changes of it (`tests/bounded.rs`). The checks of records, keys and events use only the library's
//! public interface.

pub mod event;
pub mod key;
pub mod layer;
pub mod record;

use std::{cell::OnceCell, future::Future};

use tokio::runtime::{Builder, Runtime};

/// Runs `future` on this thread's runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
    }
    RUNTIME.with(|cell| {
        cell.get_or_init(|| Builder::new_current_thread().enable_time().build().expect("a runtime"))
            .block_on(future)
    })
}
