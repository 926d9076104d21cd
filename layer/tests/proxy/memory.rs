//! How much memory the layer's program takes for events and answers of Lambda's largest size.

use std::time::{Duration, Instant};

use bytes::Bytes;

use testkit::front_ends::{POST, Sent, event};

use super::{
    bench::{Function, Lambda, PATIENCE, posted},
    process::{on_table, table},
};

/// The size of each event and of a large answer, in bytes. Lambda's limit is 6 MB.
const LARGE: usize = 5_900_000;
/// How many large events the program gets.
const EVENTS: usize = 10;
/// The most resident memory that may stay after the events, in KiB more than before them. It's for the connections'
/// buffers, and for the C library's own memory.
const MOST_LEFT: usize = 3 * 1024;
/// The highest peak for events with small answers, in times an event's size. The program holds the event, a copy for the
/// library, and, while it hashes the copy, its longest string.
const MOST_FOR_EVENTS: f64 = 3.3;
/// The highest peak for a large answer. The program holds it as posted, as JSON twice, and in the requests that write it
/// to the table.
const MOST_FOR_ANSWERS: f64 = 3.5;
/// The highest peak for an event and an answer that are both large, or for a large replay.
const MOST_AT_PEAK: f64 = 4.5;

/// The layer's program, and its memory before the first large event.
struct Measured {
    lambda: Lambda,
    function: Function,
    before: usize,
}

impl Measured {
    /// Starts the program, and plays a small event.
    async fn start(settings: &[(&str, &str)], small: String) -> Self {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, settings).await;
        let mut measured = Self { lambda, function, before: 0 };
        measured.play(small, Some("{}".into())).await;
        measured.before = measured.kib("VmRSS:");
        measured.forget_peak();
        measured
    }

    /// Sets the peak to the current memory ("/proc/PID/clear_refs", proc(5)).
    fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.process()), "5").unwrap();
    }

    fn process(&self) -> u32 {
        self.function.child.id().unwrap()
    }

    /// A figure of the program's memory ("/proc/PID/status", proc(5)), in KiB.
    fn kib(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Delivers an event, which the function gets if it has an answer. Returns the size of the answer that Lambda gets.
    async fn play(&self, event: String, answer: Option<Bytes>) -> usize {
        let waiting = self.lambda.deliver(event);
        match answer {
            Some(answer) => {
                let event = self.function.next().await;
                self.function.respond(&event, answer).await;
                posted(waiting).await.body.len()
            }
            None => {
                let mut length = 0;
                self.function.gets_nothing_until(async { length = posted(waiting).await.body.len() }).await;
                length
            }
        }
    }

    /// Checks how much memory stays, and how high the peak was.
    async fn check(&self, what: &str, most_at_peak: f64) {
        let left = || self.kib("VmRSS:").saturating_sub(self.before);
        // The layer drops the last event only after Lambda has its answer.
        let begun = Instant::now();
        while left() > MOST_LEFT && begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let left = left();
        let peak = self.kib("VmHWM:") - self.before;
        let times = (peak * 1024) as f64 / LARGE as f64;
        assert!(left <= MOST_LEFT, "{what}: {left} KiB stay resident, of {} KiB before", self.before);
        assert!(times <= most_at_peak, "{what}: the peak is {times:.1} times the event's size");
        self.forget_peak();
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn large_events_leave_no_memory_behind() {
    let (database, _wire) = table().await;
    let endpoint = database.endpoint().to_string();
    let event = |id: usize, size: usize| format!(r#"{{"id":{id},"pad":"{}"}}"#, "x".repeat(size));
    let layer = Measured::start(&on_table(&endpoint), event(0, 1)).await;
    for id in 1..=EVENTS {
        layer.play(event(id, LARGE), Some("{}".into())).await;
    }
    layer.check("events", MOST_FOR_EVENTS).await;
    layer.play(event(EVENTS + 1, 1), Some(event(1, LARGE).into())).await;
    layer.check("an answer", MOST_FOR_ANSWERS).await;
    layer.play(event(EVENTS + 2, LARGE), Some(event(2, LARGE).into())).await;
    layer.check("an echo", MOST_AT_PEAK).await;
    assert!(layer.play(event(EVENTS + 2, LARGE), None).await > LARGE, "the duplicate gets the large answer");
    layer.check("a duplicate", MOST_AT_PEAK).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn large_http_requests_leave_no_memory_behind() {
    let (database, _wire) = table().await;
    let endpoint = database.endpoint().to_string();
    let mut settings = on_table(&endpoint);
    settings[1] = ("IDEMPOTENCY_KEY", "header");
    let request = |key: &'static str, size: usize| {
        let mut request = event("http-api", Sent { key: Some(key), ..POST });
        request["body"] = format!(r#"{{"pad":"{}"}}"#, "x".repeat(size)).into();
        request.to_string()
    };
    let answer = || Bytes::from(format!(r#"{{"statusCode":201,"body":"{}"}}"#, "x".repeat(LARGE)));
    let layer = Measured::start(&settings, request("small", 1)).await;
    for key in ["first", "second"] {
        layer.play(request(key, LARGE), Some(answer())).await;
    }
    assert!(layer.play(request("first", LARGE), None).await > LARGE, "the duplicate gets the large answer");
    layer.check("HTTP requests", MOST_AT_PEAK).await;
}
