//! A failing connection: a small HTTP server that records each request. As the test says, it answers the request
//! itself, forwards it to the emulator, or fails.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// How the wire handles one request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The request reaches the emulator, and the answer reaches the client.
    Forward,
    /// The request reaches the emulator after this time, and the answer reaches the client.
    ForwardLate(Duration),
    /// The request reaches the emulator. The answer is lost, and the connection hangs.
    ForwardThenHang,
    /// The request reaches the emulator. The answer is lost, and the connection closes.
    ForwardThenClose,
    /// The request is lost, and the connection hangs.
    Hang,
    /// The request is lost, and the connection closes.
    Close,
    /// The request is lost, and the connection is reset.
    Reset,
    /// The request is lost, and the client gets bytes that aren't HTTP.
    Garbage,
    /// The client gets this status and body.
    Answer(u16, String),
}

impl Reply {
    /// DynamoDB's answer with this error.
    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::Answer(
            status,
            format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}"#),
        )
    }

    pub(crate) fn throttled() -> Self {
        Self::error(400, "ProvisionedThroughputExceededException", "too many requests")
    }

    pub(crate) fn internal() -> Self {
        Self::error(500, "InternalServerError", "internal")
    }
}

/// The HTTP server in front of the emulator. It ends with the test's runtime.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone, Debug)]
struct Request {
    operation: String,
    head: String,
    body: String,
}

impl Wire {
    /// Starts a wire that handles each request as the next entry of `script` says. The last entry applies to all later
    /// requests too.
    pub(crate) async fn scripted(upstream: Option<SocketAddr>, script: &[Reply]) -> Self {
        let script = script.to_vec();
        Self::new(upstream, move |nth, _| script[nth.min(script.len() - 1)].clone()).await
    }

    /// Starts a wire. `decide` chooses each reply by the request's number, which starts at 0, and its operation.
    pub(crate) async fn new(
        upstream: Option<SocketAddr>,
        decide: impl Fn(usize, &str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, decide) = (requests.clone(), Arc::new(decide));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, decide) = (log.clone(), decide.clone());
                tokio::spawn(async move {
                    let _ = serve(stream, upstream, &log, &*decide).await;
                });
            }
        });
        Self { address, requests }
    }

    /// Returns the requested operations, in order.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.operation.clone()).collect()
    }

    /// Returns each request's request line and headers.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.head.clone()).collect()
    }

    /// Returns the requests' JSON bodies.
    pub(crate) fn bodies(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.body.clone()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    upstream: Option<SocketAddr>,
    log: &Mutex<Vec<Request>>,
    decide: &(dyn Fn(usize, &str) -> Reply + Send + Sync),
) -> io::Result<()> {
    while let Some((head, request)) = read_message(&mut stream).await? {
        let operation = header(&head, "x-amz-target")
            .and_then(|target| target.rsplit('.').next().map(str::to_owned))
            .unwrap_or_default();
        let body = String::from_utf8_lossy(&request[head.len()..]).into_owned();
        let nth = {
            let mut log = log.lock().unwrap();
            log.push(Request { operation: operation.clone(), head: head.clone(), body: body.clone() });
            log.len() - 1
        };
        match decide(nth, &operation) {
            reply @ (Reply::Forward | Reply::ForwardLate(_)) => {
                if let Reply::ForwardLate(after) = reply {
                    tokio::time::sleep(after).await;
                }
                let answer = forward(upstream, &request).await?;
                stream.write_all(&answer).await?;
            }
            Reply::ForwardThenHang => {
                forward(upstream, &request).await?;
                std::future::pending::<()>().await;
            }
            Reply::ForwardThenClose => {
                forward(upstream, &request).await?;
                return Ok(());
            }
            Reply::Hang => std::future::pending::<()>().await,
            Reply::Close => return Ok(()),
            Reply::Reset => return stream.set_zero_linger(),
            Reply::Garbage => {
                stream.write_all(b"\x16\x03\x01 this isn't HTTP\r\n\r\n").await?;
                return Ok(());
            }
            Reply::Answer(status, body) => {
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\n\
                     x-amzn-requestid: REQUEST-{nth}\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await?;
            }
        }
    }
    Ok(())
}

pub(crate) async fn forward(upstream: Option<SocketAddr>, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream.expect("forwarding needs an emulator")).await?;
    stream.write_all(request).await?;
    let answer = read_message(&mut stream).await?;
    Ok(answer.map(|(_, answer)| answer).unwrap_or_default())
}

/// Reads one HTTP message with a `Content-Length`. Returns its head, and the whole message including the head. Returns
/// `None` if the connection ends first.
pub(crate) async fn read_message(stream: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut message = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    let head_end = loop {
        if let Some(at) = message.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            read => message.extend_from_slice(&buffer[..read]),
        }
    };
    let head = String::from_utf8_lossy(&message[..head_end]).into_owned();
    let length: usize =
        header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    while message.len() < head_end + length {
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            read => message.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(Some((head, message)))
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
}
