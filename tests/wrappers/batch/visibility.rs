//! The worker extends the visibility timeout of a message that another delivery is processing, until that
//! delivery's lease has expired.

use std::sync::Mutex;

use aws_sdk_sqs::{
    Client,
    config::{BehaviorVersion, Credentials, Region, retry::RetryConfig},
};
use serde_json::Value;

use super::*;
use crate::http_server::{Reply, Server};
use testkit::unpaused::unpaused;

const QUEUE_URL: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders";

/// Starts a queue that answers every request with this status. Returns the queue's server, a client of the queue, and
/// the requests that the queue gets.
async fn queue(status: u16) -> (Server, Client, Arc<Mutex<Vec<Value>>>) {
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let server = Server::start(move |request| {
        assert_eq!(request.headers["x-amz-target"], "AmazonSQS.ChangeMessageVisibilityBatch");
        noted.lock().unwrap().push(serde_json::from_slice(&request.body).unwrap());
        let answer = match status {
            200 => json!({ "Successful": [], "Failed": [] }),
            500 => json!({ "__type": "com.amazonaws.sqs#InternalError" }),
            _ => json!({ "__type": "com.amazon.coral.service#AccessDeniedException" }),
        };
        async move { Reply::Whole(status, vec![], answer.to_string().into_bytes()) }
    });
    let server = server.await;
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .retry_config(RetryConfig::disabled())
        .endpoint_url(server.url("/"))
        .build();
    (server, Client::from_conf(config), asked)
}

#[tokio::test]
async fn only_messages_in_progress_are_hidden() {
    for status in [200, 400] {
        let (_server, client, asked) = queue(status).await;
        let bench = Bench::with(|builder| builder.clock(SetClock::standing()));
        let held: Vec<_> = (0..11).map(|nth| Message::new(&format!("held-{nth}"), "held")).collect();
        let first = bench.worker(by_order);
        let second = bench.worker(by_order).hide_while_in_progress(client);
        let failing = Message::new("fails", "fail 1");
        let batch = sqs(held.into_iter().chain([failing, Message::new("m2", "a")]));
        let only_held = sqs([Message::new("held-0", "held")]);
        let meanwhile = async {
            bench.is_held().await;
            let returned = deliver(&second, &batch).await;
            bench.let_go();
            returned
        };
        let (done, returned) = tokio::join!(deliver(&first, &only_held), meanwhile);
        assert_eq!(done, [""; 0]);
        assert_eq!(
            returned.len(),
            12,
            "whatever SQS responds, every message but the completed one must be returned: \
            {returned:?}"
        );

        let asked = asked.lock().unwrap();
        let entries = asked.iter().map(|request| {
            assert_eq!(request["QueueUrl"], QUEUE_URL);
            request["Entries"].as_array().unwrap().iter()
        });
        let hidden: Vec<_> = entries
            .flatten()
            .map(|entry| {
                let seconds = entry["VisibilityTimeout"].as_u64().unwrap();
                // The lease (1 minute), the margin (2 s) and 1 ms until the key is free: 62,001 ms, rounded up to
                // seconds.
                assert_eq!(seconds, 63);
                entry["ReceiptHandle"].as_str().unwrap().to_owned()
            })
            .collect();
        let mut expected: Vec<_> = (0..11).map(|nth| format!("handle of held-{nth}")).collect();
        let mut hidden = hidden;
        hidden.sort();
        expected.sort();
        assert_eq!(hidden, expected);
        assert_eq!(asked.len(), 2, "a request takes at most ten messages");
    }
}

#[tokio::test]
async fn no_visibility_call_without_messages_in_progress() {
    let (_server, client, asked) = queue(200).await;
    let bench = Bench::new();
    let worker = bench.worker(by_order).hide_while_in_progress(client);
    assert_eq!(deliver(&worker, &sqs([Message::new("m1", "a"), Message::new("m2", "fail 1")])).await, ["m2"]);
    assert!(asked.lock().unwrap().is_empty());
}

/// The worker hides a message in the queue that the message's ARN names, which may be a dead-letter queue.
#[tokio::test]
async fn messages_are_hidden_on_their_queues() {
    let (_server, client, asked) = queue(200).await;
    let bench = Bench::new();
    let (first, second) = (bench.worker(by_order), bench.worker(by_order).hide_while_in_progress(client));
    let (first, second) = (first.source_name("all"), second.source_name("all"));
    let held = |id: &str, queue: &str| Message::new(id, "held").in_queue(queue);
    let meanwhile = async {
        bench.is_held().await;
        let returned =
            deliver(&second, &sqs([held("h1", "orders"), held("h2", "orders-dead-letters")])).await;
        bench.let_go();
        returned
    };
    let only_first = sqs([held("h1", "orders")]);
    let (_, returned) = tokio::join!(deliver(&first, &only_first), meanwhile);
    assert_eq!(returned, ["h1", "h2"]);
    let asked = asked.lock().unwrap();
    // The worker sends both requests concurrently, so their order varies.
    let mut queues: Vec<_> = asked.iter().map(|request| request["QueueUrl"].as_str().unwrap()).collect();
    queues.sort();
    assert_eq!(queues, [QUEUE_URL, &format!("{QUEUE_URL}-dead-letters")]);
}

/// After `AccessDenied`, the worker stops calling SQS, because the permission stays missing. After an outage, it calls
/// SQS again.
#[tokio::test]
async fn denied_visibility_calls_are_not_repeated() {
    for (status, requests) in [(400, 1), (500, 2), (200, 2)] {
        let asked = async || {
            let (_server, client, asked) = queue(status).await;
            let bench = Bench::new();
            let (first, second) =
                (bench.worker(by_order), bench.worker(by_order).hide_while_in_progress(client));
            let held = sqs([Message::new("m1", "held")]);
            let meanwhile = async {
                bench.is_held().await;
                for _ in 0..2 {
                    assert_eq!(deliver(&second, &held).await, ["m1"]);
                }
                bench.let_go();
            };
            tokio::join!(deliver(&first, &held), meanwhile);
            let asked = asked.lock().unwrap();
            asked.len()
        };
        // An answer that takes over two seconds is lost.
        assert_eq!(unpaused(asked, |asked| *asked == requests).await, requests, "{status}");
    }
}
