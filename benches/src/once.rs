//! Repeats one case of `prepared.rs` a given number of times. `scripts/bench-instructions` counts the instructions
//! that this program executes.
//!
//! ```text
//! overhead_once CASE COUNT      first-bare, first-run, duplicate-bare, duplicate-run, …
//! overhead_once keys COUNT      COUNT different keys through one `Idempotency`; prints the memory in use
//! overhead_once cached-keys COUNT      the same, with a local cache of 16 MiB
//! overhead_once sent-bytes COUNT       prints the bytes of the requests of COUNT first runs, by hand and by the library
//! ```

mod cases;
mod events;
mod prepared;

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cases::{ByHand, Effort, Failure, LOCAL_CACHE, Run, Wire, completed_item};
use prepared::{CASES, Prepared};

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(count), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: overhead_once CASE COUNT".into());
    };
    let count: u32 = count.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match name.as_str() {
            "keys" => return Box::pin(keys(count, 0)).await,
            "cached-keys" => return Box::pin(keys(count, LOCAL_CACHE)).await,
            "sent-bytes" => return Box::pin(sent_bytes(count)).await,
            _ => {}
        }
        let (_, case) = CASES.into_iter().find(|(known, _)| *known == name).ok_or_else(|| {
            format!("there's no case {name:?}; the cases are {}", CASES.map(|(known, _)| known).join(", "))
        })?;
        let prepared = Prepared::new(case).await?;
        for _ in 0..count {
            prepared.once().await?;
        }
        Ok(())
    })
}

/// Prints the memory in use twice: after a tenth of the keys, when every pool and cache has reached its full size, and
/// after all keys.
async fn keys(count: u32, local_cache: usize) -> Result<(), Failure> {
    let run = Run::new(Wire::Applies, local_cache)?;
    let mut output = std::io::stdout().lock();
    for nth in 1..=count {
        run.once(&format!("pay_{nth:014}")).await?;
        if nth == count.div_ceil(10) || nth == count {
            writeln!(output, "{nth} {}", resident_kib()?)?;
        }
    }
    Ok(())
}

/// Prints how many bytes the requests of a first run have, on average.
async fn sent_bytes(count: u32) -> Result<(), Failure> {
    let bytes = || Arc::new(AtomicU64::new(0));
    let (by_hand, by_library) = (bytes(), bytes());
    let bare = ByHand::new(Wire::Counts(Arc::clone(&by_hand)), Effort::Bare, &completed_item().await?)?;
    let run = Run::new(Wire::Counts(Arc::clone(&by_library)), 0)?;
    for nth in 1..=count {
        bare.once().await?;
        run.once(&format!("pay_{nth:014}")).await?;
    }
    for (name, bytes) in [("bare", by_hand), ("run", by_library)] {
        writeln!(std::io::stdout(), "{name} {}", bytes.load(Ordering::Relaxed) / u64::from(count))?;
    }
    Ok(())
}

/// The process's resident memory, as Linux reports it.
fn resident_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("this system doesn't report VmRSS")?
        .parse()?)
}
