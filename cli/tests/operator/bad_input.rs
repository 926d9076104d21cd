//! Bad input or a bad environment gets one line that says what to do, and exit code 2.

use tokio::net::TcpSocket;

use super::bench::{Bench, TABLE, run_in};

const CREDENTIALS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
const REGION: (&str, &str) = ("AWS_REGION", "eu-west-1");

/// The commands that send the table a request, except `watch` and `why`.
fn every_command() -> Vec<Vec<String>> {
    let id = format!("payments/run#{:064}", 0);
    [
        &["table", "create"][..],
        &["table", "check"],
        &["list"],
        &["inspect", &id],
        &["release", &id, "--confirm"],
        &["complete", &id, "--no-response", "--confirm"],
    ]
    .map(|words| words.iter().map(|&word| word.to_owned()).collect())
    .into()
}

async fn all_are_bad(environment: &[(&str, &str)], options: &[&str], words: &[&str]) {
    for command in every_command() {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        run_in(environment, &[&command[..], options].concat()).await.is_bad_input(words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_endpoint_is_reported() {
    let environment = [CREDENTIALS[0], CREDENTIALS[1], REGION];
    // The socket reserves a port, so that no other test gets it. It never listens, so connections are refused.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("http://{}", socket.local_addr().unwrap());
    let options = ["--table", TABLE, "--endpoint-url", &endpoint];
    all_are_bad(&environment, &options, &[&endpoint, "check the Region, the endpoint", "Connection refused"])
        .await;
    let options = ["--table", TABLE, "--endpoint-url", "nonsense"];
    all_are_bad(&environment, &options, &["endpoint URL isn't the URL of an endpoint", "http://HOST:PORT"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_are_reported() {
    all_are_bad(&[REGION], &["--table", TABLE], &["no AWS credentials were found", "AWS_PROFILE"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_unknown_region_is_reported() {
    all_are_bad(&CREDENTIALS, &["--table", TABLE], &["no AWS Region is known", "--region"]).await;
    // This Region's endpoint doesn't exist in DNS, so only a DNS query leaves the machine.
    let answer = run_in(&CREDENTIALS, &["list", "--table", TABLE, "--region", "nowhere.invalid"]).await;
    answer.is_bad_input(&["nowhere.invalid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_store_or_table_is_reported() {
    let environment = [CREDENTIALS[0], CREDENTIALS[1], REGION];
    all_are_bad(&environment, &[], &["no store is configured", "IDEMPOTENCY_TABLE", "--table NAME"]).await;
    let memory = [&environment[..], &[("IDEMPOTENCY_STORE", "memory:")]].concat();
    all_are_bad(&memory, &[], &["another process can't read"]).await;
    all_are_bad(&environment, &["--table", "a table"], &["DynamoDB allows"]).await;

    let bench = Bench::empty().await;
    for command in every_command().into_iter().skip(2) {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        bench.run(&command).await.is_bad_input(&[
            "there is no table `idempotency-tests`",
            "idempotency table create --table idempotency-tests",
        ]);
    }
    // The URL names the table, the endpoint and the Region, so the commands need no options.
    let url = format!("dynamodb://{TABLE}?endpoint={}&region=eu-west-1", bench.endpoint());
    let environment = [CREDENTIALS[0], CREDENTIALS[1], ("IDEMPOTENCY_STORE", url.as_str())];
    assert_eq!(run_in(&environment, &["table", "create"]).await.code, 0);
    assert_eq!(run_in(&environment, &["list"]).await.out, "no matching records\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_options_are_refused() {
    let id = format!("payments/run#{:064}", 0);
    for (arguments, words) in [
        (&["complete", &id, "--no-response", "--retention", "24"][..], "write one like 24h"),
        (&["complete", &id], "required arguments were not provided"),
        (&["why"], "<KEY|--event <FILE>|--request-id <ID>>"),
        (&["complete", &id, "--no-response", "--response", "x"], "cannot be used with"),
        (&["list", "--status", "done"], "possible values: started"),
        (&["list", "--limit", "0"], "0 is not in 1.."),
    ] {
        let answer = run_in(&[], arguments).await;
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{answer:?}");
        assert!(answer.err.contains(words), "{answer:?}");
    }
    let missing = ["complete", &id, "--response", "/nonexistent/response.json", "--table", TABLE];
    run_in(&[], &missing).await.is_bad_input(&["couldn't read the response file /nonexistent/response.json"]);
}
