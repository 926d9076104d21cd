//! Drops a call after some polls, to test that it can be cancelled at any point.

use std::{future::poll_fn, pin::pin, task::Poll};

/// The numbers of polls after which the tests drop a call: before it starts, while it sends, and while the
/// answer arrives.
pub const TURNS: [u32; 10] = [0, 1, 2, 5, 20, 61, 130, 400, 1200, 4000];

/// Polls `future` up to `turns` times, then drops it. All other tasks run between two polls. The limit counts polls
/// instead of time, so that a fast machine drops as many calls as a slow one.
pub async fn cut_after<T>(turns: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..turns {
        if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return Some(answer);
        }
        tokio::task::yield_now().await;
    }
    None
}
