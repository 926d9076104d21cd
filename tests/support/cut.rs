//! Calls that are given up in the middle, at any point.

use std::{future::poll_fn, pin::pin, task::Poll};

/// After how many turns to give a call up, one after the other: before the first step, while it is sent, and while the
/// answer comes in.
pub(crate) const TURNS: [u32; 10] = [0, 1, 2, 5, 20, 61, 130, 400, 1200, 4000];

/// What `future` gives, unless it is not done after so many turns: then it is dropped. Between two turns, all other tasks
/// get theirs. Turns, and not a time, so that a fast machine drops as much as a slow one.
pub(crate) async fn cut_after<T>(turns: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..turns {
        if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return Some(answer);
        }
        tokio::task::yield_now().await;
    }
    None
}
