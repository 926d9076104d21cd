//! The configurations that the builder rejects, and the settings that a store takes from its client.

use std::{
    env,
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::{
    Client,
    config::{retry::RetryConfig, timeout::TimeoutConfig},
};
use lambda_idempotency::{
    ErrorKind,
    store::{Store, StoreBuilder, StoreErrorKind, dynamodb::DynamoDbStore},
};
use testkit::unpaused::unpaused;

use super::{
    emulator::{SECRET, TABLE, builder, client, config, emulator, on, patient},
    fixtures::key,
    wire::{Reply, Wire},
};

#[tokio::test]
async fn builder_rejects_invalid_settings() {
    let address = "127.0.0.1:9".parse().unwrap();
    let named = |table: &str| DynamoDbStore::builder(table).client(client(address));
    let good = || builder(address);
    let cases: Vec<(StoreBuilder<DynamoDbStore>, &str)> = vec![
        (named(""), "the table's name is empty"),
        (named("ab"), "has 2 characters"),
        (named(&"x".repeat(256)), "has 256 characters"),
        (named("my table"), "has the character ' '"),
        (named("a:b"), "has the character ':'"),
        (good().attempt_timeout(Duration::ZERO), "the attempt timeout is zero"),
        (good().operation_timeout(Duration::ZERO), "the operation timeout is zero"),
        (good().inline_limit(350 * 1024 + 1), "the inline limit of 358401 bytes is over 358400"),
        (good().sort_key("id"), "`id` and `sort key` have the same attribute name `id`"),
        (good().sort_key(""), "`sort key` has 0 bytes"),
        (
            good().attributes("owner:status").unwrap(),
            "`status` and `owner` have the same attribute name `status`",
        ),
        (good().partition("p"), "a partition is set, but no sort key"),
        (good().sort_key("sk").partition(""), "the partition has 0 bytes"),
        (good().sort_key("sk").partition("p".repeat(2049)), "the partition has 2049 bytes"),
        (good().endpoint_url(" "), "the endpoint URL is empty"),
        (good().endpoint_url("localhost:8000"), "the store's endpoint URL isn't the URL of an endpoint"),
        (good().region(""), "the Region is empty"),
    ];
    for (builder, text) in cases {
        let error = builder.build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(DynamoDbStore::new(client(address), "").unwrap_err().kind(), ErrorKind::Invalid);

    let longest = "t".repeat(255);
    for table in [
        "idempotency",
        "abc",
        &longest,
        "a.b-c_D",
        "arn:aws:dynamodb:eu-west-1:123456789012:table/idempotency",
    ] {
        assert_eq!(DynamoDbStore::new(client(address), table).unwrap().table(), table);
    }
    assert!(good().inline_limit(350 * 1024).build().await.is_ok());
}

/// The test below sets this environment variable in the processes that it starts. The value is the table or the error
/// that the process must find.
const EXPECTED: &str = "TEST_EXPECTED";

/// A process can't change its environment safely, so this test runs itself in other processes.
#[tokio::test]
async fn environment_variables_select_the_table() {
    if let Ok(expected) = env::var(EXPECTED) {
        let found = match DynamoDbStore::builder_from_env() {
            Ok(builder) => {
                let store = builder.endpoint_url("http://127.0.0.1:9").build().await.unwrap();
                store.table().to_owned()
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
        return;
    }
    let (table, store) = ("IDEMPOTENCY_TABLE", "IDEMPOTENCY_STORE");
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[(table, "payments")], "payments"),
        (&[(table, "payments"), (store, "")], "payments"),
        (&[(table, ""), (store, "dynamodb://orders")], "orders"),
        (
            &[(store, "memory:")],
            "IDEMPOTENCY_STORE doesn't name a DynamoDB table; set IDEMPOTENCY_TABLE to one instead",
        ),
        (
            &[(table, "payments"), (store, "memory:")],
            "both IDEMPOTENCY_TABLE and IDEMPOTENCY_STORE are set; keep one",
        ),
    ];
    for (variables, expected) in cases {
        let again = Command::new(env::current_exe().unwrap())
            .args(["--exact", "config::environment_variables_select_the_table"])
            .env_remove(table)
            .env_remove(store)
            .envs(variables.iter().copied())
            .envs([(EXPECTED, expected), ("AWS_REGION", "eu-west-1")])
            .output();
        let told = String::from_utf8(again.unwrap().stdout).unwrap();
        assert!(told.contains("1 passed"), "{variables:?}: {told}");
    }
}

/// An empty variable counts as unset, as in boto3. What's wrong fails when the store is built, with the variable's name.
#[tokio::test]
async fn empty_aws_variables_count_as_unset() {
    if let Ok(expected) = env::var(EXPECTED) {
        let found = match DynamoDbStore::builder(TABLE).build().await {
            Err(error) => error.to_string(),
            // Nothing listens at the endpoints of this test.
            Ok(store) if expected.contains(" at ") => store.read(&key()).await.unwrap_err().to_string(),
            Ok(store) => format!("{store:?}"),
        };
        assert!(found.contains(&expected), "{found}, instead of {expected}");
        return;
    }
    let folder = env::temp_dir().join(format!("idempotency-aws-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let none = file("none", "");
    let profile = "[default]\nregion = eu-north-1\nendpoint_url = http://127.0.0.1:3\n";
    let profile = file("profile", &format!("{profile}[profile other]\nregion = eu-south-1\n"));
    let [dynamodb, all, region, default] =
        ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"];
    let (one, two, file, name) =
        ("http://127.0.0.1:1", "http://127.0.0.1:2", "AWS_CONFIG_FILE", "AWS_PROFILE");
    let ignores = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[(dynamodb, "")], "region: Some(\"eu-west-1\")"),
        (&[(all, "")], "region: Some(\"eu-west-1\")"),
        (&[(dynamodb, ""), (all, "")], "region: Some(\"eu-west-1\")"),
        (&[(dynamodb, one), (all, two)], "in eu-west-1 at http://127.0.0.1:1"),
        (&[(dynamodb, ""), (all, two)], "in eu-west-1 at http://127.0.0.1:2"),
        (&[(dynamodb, one), (all, "")], "in eu-west-1 at http://127.0.0.1:1"),
        (&[(dynamodb, ""), (file, &profile)], "in eu-west-1 at http://127.0.0.1:3"),
        (&[(all, ""), (file, &profile)], "in eu-west-1 at http://127.0.0.1:3"),
        (&[(region, ""), (default, "eu-central-1")], "region: Some(\"eu-central-1\")"),
        (&[(region, ""), (file, &profile)], "in eu-north-1 at http://127.0.0.1:3"),
        (&[(region, ""), (default, ""), (file, &profile), (name, "")], "in eu-north-1 at http://127.0.0.1:3"),
        (&[(region, ""), (file, &profile), (name, "other")], "region: Some(\"eu-south-1\")"),
        (&[(region, ""), (default, "")], "set AWS_REGION"),
        (&[(region, "")], "set AWS_REGION"),
        (&[(dynamodb, "localhost:8000")], "AWS_ENDPOINT_URL_DYNAMODB isn't the URL of an endpoint"),
        (&[(all, "localhost:8000")], "AWS_ENDPOINT_URL isn't the URL of an endpoint"),
        (&[(all, "localhost")], "AWS_ENDPOINT_URL isn't the URL of an endpoint"),
        (&[(dynamodb, "http://")], "AWS_ENDPOINT_URL_DYNAMODB isn't the URL of an endpoint"),
        (&[(dynamodb, "localhost:8000"), ignores], "region: Some(\"eu-west-1\")"),
    ];
    for (variables, expected) in cases {
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["--exact", "config::empty_aws_variables_count_as_unset"]);
        env::vars().filter(|(name, _)| name.starts_with("AWS_")).for_each(|(name, _)| {
            again.env_remove(name);
        });
        let again = again
            .envs([
                (EXPECTED, *expected),
                (region, "eu-west-1"),
                (file, &none),
                ("AWS_SHARED_CREDENTIALS_FILE", &none),
            ])
            .envs([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s")])
            .envs([("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_SESSION_TOKEN", "")])
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let told =
            format!("{}{}", String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
        assert!(told.contains("1 passed"), "{variables:?}: {told}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The user agent lets users and AWS's support see, for example in CloudTrail, which requests come from the library.
#[tokio::test]
async fn user_agents_identify_the_library() {
    let wire = Wire::scripted(None, &[Reply::internal()]).await;
    on(&wire).await.read(&key()).await.unwrap_err();
    let head = wire.heads()[0].to_ascii_lowercase();
    let agent = head.lines().find(|line| line.starts_with("user-agent:")).unwrap();
    let expected = concat!("lib/lambda-idempotency/", env!("CARGO_PKG_VERSION"));
    assert!(agent.contains(expected), "{agent}");
}

#[tokio::test]
async fn debug_shows_no_secrets() {
    let address = "127.0.0.1:9".parse().unwrap();
    let builder = builder(address).endpoint_url("http://user:password@localhost:8000/?token=token");
    let store = builder.clone().build().await.unwrap();
    let shown = format!("{builder:?} {store:?}");
    for secret in [SECRET, "access-key", "password", "token"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(shown.contains("http://localhost:8000"), "{shown}");
    assert!(format!("{store:?}").contains(r#"table: "idempotency", region: Some("eu-west-1")"#), "{store:?}");
}

/// Checks that a read that gets no answer takes between `least` and `most` milliseconds, and that `attempts_fit`
/// accepts the number of the read's attempts.
async fn hanging_read_takes(
    [least, most]: [u64; 2],
    attempts_fit: impl Fn(usize) -> bool,
    configure: impl Fn(SocketAddr) -> StoreBuilder<DynamoDbStore>,
) {
    let fits = |(took, attempts): &(Duration, usize)| {
        (Duration::from_millis(least)..Duration::from_millis(most)).contains(took) && attempts_fit(*attempts)
    };
    let measure = async || {
        let wire = Wire::scripted(None, &[Reply::Hang]).await;
        let store = configure(wire.address).build().await.unwrap();
        let start = Instant::now();
        let error = store.read(&key()).await.unwrap_err();
        let took = start.elapsed();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains("didn't answer in time"), "{error}");
        (took, wire.requests().len())
    };
    let measured = unpaused(measure, fits).await;
    assert!(fits(&measured), "{measured:?}");
}

#[tokio::test]
async fn default_timeouts_apply_when_clients_disable_them() {
    let of_client = |address| {
        let config = config(address).timeout_config(TimeoutConfig::disabled()).build();
        DynamoDbStore::builder(TABLE).client(Client::from_conf(config))
    };
    // By default, an attempt times out after one second, and the read with all its attempts after three.
    hanging_read_takes([2500, 3500], |attempts| attempts >= 2, of_client).await;
}

#[tokio::test]
async fn a_clients_timeouts_are_kept() {
    let timeouts = TimeoutConfig::builder()
        .operation_attempt_timeout(Duration::from_millis(100))
        .operation_timeout(Duration::from_millis(250));
    let timeouts = timeouts.build();
    let of_client = |address| {
        let config = config(address).timeout_config(timeouts.clone()).build();
        DynamoDbStore::builder(TABLE).client(Client::from_conf(config))
    };
    hanging_read_takes([100, 900], |_| true, of_client).await;
    // The store's own timeouts override the client's.
    let longer = Duration::from_millis(1200);
    let overridden = |address| of_client(address).attempt_timeout(longer).operation_timeout(longer);
    hanging_read_takes([1100, 2000], |attempts| attempts == 1, overridden).await;
}

#[tokio::test]
async fn a_clients_retries_are_kept() {
    for (retries, requests) in [
        (RetryConfig::disabled(), 1),
        (RetryConfig::standard().with_max_attempts(2), 2),
        (RetryConfig::standard(), 3),
    ] {
        let wire = Wire::scripted(None, &[Reply::internal()]).await;
        let retries = retries.with_initial_backoff(Duration::from_millis(1));
        let config = config(wire.address).retry_config(retries).build();
        let builder = DynamoDbStore::builder(TABLE).client(Client::from_conf(config));
        let store = patient(builder).build().await.unwrap();
        let error = store.read(&key()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!error.is_maybe_applied(), "a read changes nothing, so it's never maybe applied");
        assert_eq!(wire.requests().len(), requests);
    }
}

#[tokio::test]
async fn store_settings_override_client_settings() {
    let address = emulator().await;
    let elsewhere = "127.0.0.1:9".parse().unwrap();
    let store = builder(elsewhere)
        .endpoint_url(format!("http://{address}"))
        .region("eu-central-1")
        .build()
        .await
        .unwrap();
    let error = store.read(&key()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("in eu-central-1 at http://{address};")), "{error}");
}

#[tokio::test]
async fn configuration_is_loaded_without_a_client() {
    let address = emulator().await;
    let store = DynamoDbStore::builder(TABLE)
        .region("eu-north-1")
        .endpoint_url(format!("http://{address}"))
        .build()
        .await
        .unwrap();
    assert!(format!("{store:?}").contains("eu-north-1"));
}
