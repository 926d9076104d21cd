//! A wire that fails: a small HTTP server that answers each request as the test says, by itself or with
//! what the emulator behind it answered, and counts them.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What becomes of one request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// It reaches the emulator, and so does the answer the client.
    Forward,
    /// It reaches the emulator; the answer is lost, and the connection hangs.
    ForwardThenHang,
    /// It reaches the emulator; the answer is lost with the connection.
    ForwardThenClose,
    /// It reaches nobody, and the connection hangs.
    Hang,
    /// It reaches nobody, and the connection is closed.
    Close,
    /// It reaches nobody, and the connection is reset.
    Reset,
    /// It reaches nobody, and something that is not HTTP comes back.
    Garbage,
    /// This status with this body.
    Answer(u16, String),
}

impl Reply {
    /// An error as DynamoDB answers it.
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

/// The wire; it ends with the test's runtime.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone, Debug)]
struct Request {
    operation: String,
    body: String,
}

impl Wire {
    /// A wire that answers the first requests by `script`, and every later one as the last of them.
    pub(crate) async fn scripted(upstream: Option<SocketAddr>, script: &[Reply]) -> Self {
        let script = script.to_vec();
        Self::new(upstream, move |nth, _| script[nth.min(script.len() - 1)].clone()).await
    }

    /// A wire that answers each request by its place in the order, from 0, and its operation.
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

    /// The operations that were requested, in order.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.operation.clone()).collect()
    }

    /// What they said, in JSON.
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
            log.push(Request { operation: operation.clone(), body: body.clone() });
            log.len() - 1
        };
        match decide(nth, &operation) {
            Reply::Forward => {
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
                stream.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").await?;
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
    let mut stream = TcpStream::connect(upstream.expect("an emulator behind the wire")).await?;
    stream.write_all(request).await?;
    let answer = read_message(&mut stream).await?;
    Ok(answer.map(|(_, answer)| answer).unwrap_or_default())
}

/// One HTTP message, of which the length is told: its head, and all of it.
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
