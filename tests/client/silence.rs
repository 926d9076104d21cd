//! Nothing that the client logs or prints contains a key, a token or a body. An audit runs all tests of this
//! program again with a recording, and searches the recording.

use std::fmt::Debug;

use lambda_idempotency::{
    Key,
    client::{self, IdempotentRequests},
};
use reqwest_middleware::ClientBuilder;

use crate::{
    audit,
    http_server::{Received, Reply},
    recording,
    stage::{CREATED, Stage, answer},
};

/// The folder for recordings.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The prefix of the audits' names. An audit runs all tests of this program except the audits.
const AUDITS: &str = "silence::audit_";

/// Registers the contents of this request as secrets.
pub(crate) fn note(request: &Received) {
    recording::secrets(|secrets| {
        if let Some(key) = request.headers.get("idempotency-key") {
            secrets.add(key);
            secrets.add(key.trim_matches('"'));
        }
        secrets.add_body(&String::from_utf8_lossy(&request.body));
        secrets.add_body(CREATED);
    });
}

#[test]
fn audit_finds_no_secret_in_output() {
    let (recorded, output) = audit::recorded(SCRATCH, "client-silence", &["--skip", AUDITS], None);
    audit::assert_whole(&audit::tests(AUDITS), &[], &recorded, &output);
    for fact in ["event=sent_again", "shown: Unanswered", "shown: Key", "said: "] {
        assert!(recorded.told.contains(fact), "the recording lacks {fact}");
    }
    assert!(recorded.secrets.count() > 20, "only {} secrets were noted", recorded.secrets.count());
    audit::assert_silent(&recorded);
}

/// A middleware behind the client that logs the headers of each request.
struct Logs;

#[async_trait::async_trait]
impl reqwest_middleware::Middleware for Logs {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut lambda_http::http::Extensions,
        next: reqwest_middleware::Next<'_>,
    ) -> Result<reqwest::Response, reqwest_middleware::Error> {
        recording::shown(request.headers());
        next.run(request, extensions).await
    }
}

fn shown<T: Debug>(value: T) -> T {
    recording::shown(&value);
    value
}

#[tokio::test]
async fn returned_errors_hide_key_and_url() {
    let token = "c4n4ry-access-token";
    recording::secrets(|secrets| secrets.add(token));
    let stage = Stage::new([answer(503), Reply::Dropped, Reply::Dropped]).await;
    let rules = shown(IdempotentRequests::new().max_attempts(3).clock(stage.clock.clone()));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = ClientBuilder::new(http).with(rules).with(Logs).build();
    let url = stage.server.url(&format!("/payments?access_token={token}"));
    let sent = client.post(&url).header("idempotency-key", "c4n4ry-key-1").body("c4n4ry-body").send().await;
    let error = sent.unwrap_err();
    recording::error(client::unanswered(&error).unwrap());
    shown(client::unanswered(&error).unwrap());
    shown(Key::new("c4n4ry-key-1").unwrap());

    let given = Key::new("c4n4ry-key-2").unwrap();
    let sent = client.post(&url).with_extension(given).header("idempotency-key", "c4n4ry-key-3").send().await;
    let reqwest_middleware::Error::Middleware(differ) = sent.unwrap_err() else {
        panic!("the error isn't the client's")
    };
    let differ: &lambda_idempotency::Error = differ.downcast_ref().unwrap();
    recording::error(differ);
}
