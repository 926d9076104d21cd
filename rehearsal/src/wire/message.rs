//! HTTP/1.1 messages for a proxy that must also be able to write invalid ones.

use std::{fmt::Write as _, io};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::Uri;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The size limit of a message's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;

type Headers = Vec<(String, String)>;

/// A complete request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    headers: Headers,
    pub(crate) body: Bytes,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Headers,
    pub(crate) body: Bytes,
}

/// One connection of a client.
#[derive(Debug)]
pub(crate) struct Conversation {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Request {
    /// Returns the DynamoDB operation, such as `PutItem`.
    pub(crate) fn operation(&self) -> &str {
        header(&self.headers, "x-amz-target").and_then(|target| target.rsplit('.').next()).unwrap_or_default()
    }

    /// Whether this is the first attempt of its SDK call.
    pub(crate) fn is_first_attempt(&self) -> bool {
        let attempts = header(&self.headers, "amz-sdk-request").unwrap_or_default();
        !attempts.contains("attempt=") || attempts.contains("attempt=1;")
    }
}

impl Answer {
    /// Creates an answer with the content type of DynamoDB's answers.
    pub(crate) fn new(status: u16, body: impl Into<Bytes>) -> Self {
        let headers = vec![("content-type".into(), "application/x-amz-json-1.0".into())];
        Self { status, headers, body: body.into() }
    }

    /// Creates an error in DynamoDB's format.
    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
        Self::new(status, json!({ "__type": kind, "message": message }).to_string())
    }

    /// Returns the message's head. It announces a body of `length` bytes.
    pub(crate) fn head(&self, length: usize) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} -\r\n", self.status);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "content-length: {length}\r\n\r\n");
        head.into_bytes()
    }

    /// Returns the whole message.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut message = self.head(self.body.len());
        message.extend_from_slice(&self.body);
        message
    }
}

impl Conversation {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Without `nodelay`, a message in several pieces waits for the client's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: BytesMut::with_capacity(4096) }
    }

    /// Reads the next request. Returns `None` if the client has closed the connection.
    pub(crate) async fn request(&mut self) -> io::Result<Option<Request>> {
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(io::Error::other("a request's head is longer than 64 KB"));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        };
        let headers = headers_of(&self.buffer[..head_end]);
        self.buffer.advance(head_end);
        let length = header(&headers, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while self.buffer.len() < length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(Request { headers, body: self.buffer.split_to(length).freeze() }))
    }

    /// Writes these bytes unchanged.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Waits until the client closes the connection.
    pub(crate) async fn until_gone(&mut self) {
        let mut rest = [0; 1024];
        while matches!(self.stream.read(&mut rest).await, Ok(read) if read > 0) {}
    }
}

/// The reusable connections to a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    to: Uri,
}

impl Upstream {
    /// Connects to the server at `to` with the first request.
    #[must_use]
    pub fn new(to: Uri) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { client: Client::builder(TokioExecutor::new()).build(connector), to }
    }

    /// Forwards `request`, and reads the complete answer.
    pub(crate) async fn send(&self, request: Request) -> Result<Answer, String> {
        let mut sent = hyper::Request::post(&self.to);
        for (name, value) in &request.headers {
            if !["connection", "content-length", "transfer-encoding"].contains(&name.as_str()) {
                sent = sent.header(name, value);
            }
        }
        let sent = sent.body(Full::new(request.body)).map_err(|error| error.to_string())?;
        let (parts, body) =
            self.client.request(sent).await.map_err(|error| format!("{error:?}"))?.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let headers = parts.headers.iter().filter_map(|(name, value)| {
            let framing = ["connection", "content-length", "transfer-encoding"].contains(&name.as_str());
            (!framing).then(|| Some((name.to_string(), value.to_str().ok()?.to_owned())))?
        });
        Ok(Answer { status: parts.status.as_u16(), headers: headers.collect(), body })
    }
}

/// Returns one of DynamoDB's two throttling answers, depending on whether `nth` is even.
pub(crate) fn throttled(nth: usize) -> Answer {
    let code = ["ProvisionedThroughputExceededException", "ThrottlingException"][nth % 2];
    Answer::error(400, code, "Rate of requests exceeds the allowed throughput.")
}

/// Parses the headers of a message, and converts their names to lower case.
fn headers_of(head: &[u8]) -> Headers {
    let head = String::from_utf8_lossy(head);
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect()
}

fn header<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}
