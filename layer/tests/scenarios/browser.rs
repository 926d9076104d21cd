//! A page in a real browser calls a function behind the layer from another origin. The browser lets the page read only
//! the answers whose CORS headers permit the page's origin.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use lambda_idempotency_rehearsal::{clock, database::Database};
use serde_json::{Value, json};
use testkit::{
    front_ends::{POST, event},
    http_server::{Received, Reply, Server},
    skip::skip,
    tools::tool,
};

use crate::{
    layer,
    play::TABLE,
    runtime::{Runtime, project},
    sandbox::{Answer, Function, Mode, Sandbox, scratch},
};

const PAGE: &[u8] = include_bytes!("browser/page.html");

/// How long a page takes at most, with all its requests.
const LONGEST: Duration = Duration::from_secs(120);

/// The browser's program: `CHROMIUM`, or the first of the usual names in `PATH`. Panics in CI if there's none.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let all = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = std::env::var_os("CHROMIUM")
        .map(PathBuf::from)
        .or_else(|| all.into_iter().find(|path| path.is_file()));
    if found.is_none() {
        skip(
            "chromium is missing: install it (on Debian, `apt-get install chromium`), or set CHROMIUM to its path",
        );
    }
    found
}

/// A headless browser that shows one page, and ends with this value.
struct Browser(Child);

impl Browser {
    fn open(program: &PathBuf, page: &str) -> Self {
        let profile = format!("--user-data-dir={}", scratch().display());
        let quiet =
            ["--headless", "--disable-gpu", "--no-first-run", "--no-proxy-server", "--disable-dev-shm-usage"];
        let apart = ["--disable-background-networking", "--disable-component-update", "--disable-sync"];
        let mut command = Command::new(program);
        // Chromium's own sandbox doesn't work as root. The page is ours.
        command.args(quiet).args(apart).args(["--no-sandbox", &profile, page]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A REST API in front of a sandbox.
async fn api(sandbox: Arc<Sandbox>) -> Server {
    Server::start(move |request| {
        let sandbox = Arc::clone(&sandbox);
        async move {
            let answer = sandbox.invoke(rest_event(&request).to_string().as_bytes(), &[]).await;
            let response = match &answer {
                Answer::Payload(response) => serde_json::from_slice(response).ok(),
                _ => None,
            };
            response.map_or_else(
                || {
                    println!("{answer:?}\n{}\n{}", sandbox.output(), sandbox.log());
                    Reply::Whole(502, Vec::new(), Vec::new())
                },
                |response| delivered(&response),
            )
        }
    })
    .await
}

/// The event that a REST API delivers for this request.
fn rest_event(request: &Received) -> Value {
    let mut event = event("rest-api", POST);
    event["httpMethod"] = request.method.as_str().into();
    event["requestContext"]["httpMethod"] = request.method.as_str().into();
    event["headers"] = json!(request.headers);
    event["multiValueHeaders"] =
        request.headers.iter().map(|(name, value)| (name.clone(), json!([value]))).collect();
    event["body"] = String::from_utf8_lossy(&request.body).into_owned().into();
    event
}

/// The response that a REST API makes from the function's answer.
fn delivered(answer: &Value) -> Reply {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let one = answer["headers"].as_object().into_iter().flatten().map(|(name, value)| (name, text(value)));
    let several = answer["multiValueHeaders"].as_object().into_iter().flatten().flat_map(|(name, values)| {
        values.as_array().into_iter().flatten().map(move |value| (name, text(value)))
    });
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in several.chain(one) {
        if !headers.iter().any(|(other, is)| other.eq_ignore_ascii_case(name) && *is == value) {
            headers.push((name.clone(), value));
        }
    }
    let status = answer["statusCode"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(502);
    Reply::Whole(status, headers, answer["body"].as_str().unwrap_or_default().into())
}

/// A server with the page, and the results that the page has posted to it.
async fn shop() -> (Server, Arc<Mutex<Option<Value>>>) {
    let found = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&found);
    let server = Server::start(move |request| {
        let keeps = Arc::clone(&keeps);
        async move {
            if request.path == "/found" {
                *keeps.lock().unwrap() = serde_json::from_slice(&request.body).ok();
                return Reply::Whole(204, Vec::new(), Vec::new());
            }
            Reply::Whole(200, vec![("content-type".into(), "text/html".into())], PAGE.to_vec())
        }
    })
    .await;
    (server, found)
}

/// Opens the page, and returns the answers that it could read.
async fn shown(program: &PathBuf, page: &str, found: &Mutex<Option<Value>>) -> Value {
    let _browser = Browser::open(program, page);
    let end = clock::now_ms() + clock::millis(LONGEST);
    while clock::now_ms() < end {
        if let Some(found) = found.lock().unwrap().take() {
            return found;
        }
        clock::pause(Duration::from_millis(50)).await;
    }
    panic!("the page at {page} has posted no results after {LONGEST:?}");
}

async fn sandbox(endpoint: &str, pages: [&str; 2], cors: Option<&str>) -> Arc<Sandbox> {
    let code = project().join("layer/tests/scenarios/browser").display().to_string();
    let usual = [
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
        ("IDEMPOTENCY_TABLE", TABLE),
        ("IDEMPOTENCY_KEY", "header"),
        ("CODE", &code),
        ("PAGES", &pages.join(",")),
    ];
    let all = usual.into_iter().chain(cors.map(|origins| ("IDEMPOTENCY_CORS", origins)));
    let function = Function {
        runtime: Runtime::Python,
        mode: Mode::OnDemand,
        handler: "handler",
        layer: format!("{} ", layer()),
        is_unpacked: false,
        timeout: 10,
        environment: all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    };
    Arc::new(Sandbox::start(&function).await)
}

/// The answer that a page could read: its status, and whether it's marked as a replay. `None` if it couldn't read it.
fn read(found: &Value, name: &str) -> Option<(u64, bool)> {
    let answer = &found[name];
    assert!(answer.is_object(), "the page hasn't asked for {name}: {found}");
    Some((answer["status"].as_u64()?, answer["replayed"] == "true"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium; see layer/scenarios"]
async fn pages_of_other_origins_read_answers() {
    let Some(program) = chromium() else { return };
    if tool("aws-lambda-rie").is_none() || !Runtime::Python.is_installed() {
        return;
    }
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table(TABLE).await.unwrap();
    let ((page, of_page), (other, of_other)) = (shop().await, shop().await);
    let (origin, of_another) = (page.url(""), other.url(""));
    let names = [
        "first answer",
        "replay",
        "replay with credentials",
        "key used again",
        "key used again with credentials",
        "malformed key",
        "slow first answer",
        "duplicate in progress",
        "table is down",
    ];
    for is_listed in [true, false] {
        let cors = is_listed.then_some(origin.as_str());
        let mut apis = Vec::new();
        for endpoint in
            [database.endpoint().to_string(), database.endpoint().to_string(), "http://127.0.0.1:9".into()]
        {
            apis.push(api(sandbox(&endpoint, [&origin, &of_another], cors).await).await);
        }
        let query: Vec<_> = apis.iter().map(|api| format!("api={}", api.url(""))).collect();
        let query = format!("/?{}&run={is_listed}", query.join("&"));
        let found = shown(&program, &page.url(&query), &of_page).await;
        println!("{}, listed: {is_listed}: {found:#}", page.url(""));
        let expected = [
            Some((201, false)),
            // The function doesn't expose the layer's marker, so the page sees it only if a setting names the page.
            Some((201, is_listed)),
            Some((201, is_listed)),
            is_listed.then_some((422, false)),
            is_listed.then_some((422, false)),
            is_listed.then_some((400, false)),
            Some((201, false)),
            is_listed.then_some((409, false)),
            is_listed.then_some((503, false)),
        ];
        assert_eq!(names.map(|name| read(&found, name)), expected, "listed: {is_listed}");
        assert_eq!(found["replay"]["receipt"], found["first answer"]["receipt"]);
        assert_eq!(
            found["duplicate in progress"]["retry"],
            if is_listed { json!(true) } else { Value::Null }
        );

        // The function permits this page too, but no setting names it.
        let found = shown(&program, &other.url(&format!("{query}&other")), &of_other).await;
        println!("{}: {found:#}", other.url(""));
        assert_eq!(read(&found, "another page's key"), None, "the replay permits only the other page");
        let own = ["first answer", "replay", "key used again", "duplicate in progress"];
        assert_eq!(own.map(|name| read(&found, name)), [Some((201, false)), Some((201, false)), None, None]);
    }
}
