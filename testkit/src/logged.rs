//! Records the library's logs during a part of a test.

use std::{
    fmt::{Debug, Write as _},
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The library's events and spans.
#[derive(Clone, Debug, Default)]
pub struct Logged {
    /// The level and the fields of each event.
    pub events: Vec<String>,
    /// The fields that spans got after their beginning, such as the outcome: one text for each time.
    pub spans: Vec<String>,
}

/// Runs `future` on this thread. Returns its output, and the library's logs during that time.
pub fn logged<F: Future>(future: F) -> impl Future<Output = (F::Output, Logged)> {
    // A test's future may be large, and a test's thread has a small stack.
    let future = Box::pin(future);
    async {
        // When a line of code logs for the first time, `tracing` decides whether to enable the line. If only one
        // dispatcher is alive, `tracing` asks the current thread's dispatcher. If the thread has none, `tracing`
        // disables the line for every thread. If two dispatchers are alive, `tracing` asks both.
        static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Recorder::default()));
        LazyLock::force(&SECOND);
        let recorder = Recorder::default();
        let guard = tracing::subscriber::set_default(recorder.clone());
        let output = future.await;
        drop(guard);
        let logged = recorder.0.lock().unwrap().clone();
        (output, logged)
    }
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Logged>>);

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "lambda_idempotency"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        let mut text = Text::default();
        values.record(&mut text);
        self.0.lock().unwrap().spans.push(text.0);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().unwrap().events.push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
