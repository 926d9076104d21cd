//! Measures calls on a machine that may pause the process.

/// How many times a call is measured at most. After that, the last result counts.
const TRIES: u32 = 5;

/// Repeats `measure` until `fits` accepts its result, up to five times, and returns the last result. A busy machine may
/// pause the process during one measurement, but rarely during all five.
pub async fn unpaused<T>(mut measure: impl AsyncFnMut() -> T, fits: impl Fn(&T) -> bool) -> T {
    for _ in 1..TRIES {
        let result = measure().await;
        if fits(&result) {
            return result;
        }
    }
    measure().await
}
