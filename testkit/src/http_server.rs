//! An HTTP/1.1 server on loopback that sends the answers that a test chooses, including faulty ones.

use std::{collections::BTreeMap, future::Future, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Its headers, with names in lower case. Values of the same name are joined.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
    /// The trailers after its body, in the form of `headers`.
    pub trailers: BTreeMap<String, String>,
}

/// The server's reply to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Sends a complete answer with this status, these headers and this body. The server adds `content-length`.
    Whole(u16, Vec<(String, String)>, Vec<u8>),
    /// Sends these bytes, then closes the connection.
    Raw(Vec<u8>),
    /// Closes the connection without an answer.
    Dropped,
    /// Keeps the connection open without an answer.
    Silence,
}

/// A server that stops when it's dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a server on a free port. `reply` chooses the reply to each request.
    pub async fn start<F, R>(reply: F) -> Self
    where
        F: Fn(Received) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send,
    {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), reply)
    }

    /// Starts a server on this listener.
    pub fn on<F, R>(listener: TcpListener, reply: F) -> Self
    where
        F: Fn(Received) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send,
    {
        let (address, reply) = (listener.local_addr().unwrap(), Arc::new(reply));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let reply = Arc::clone(&reply);
                // If a client disconnects, the server ignores the error.
                tokio::spawn(async move { serve(stream, &*reply).await.ok() });
            }
        });
        Self { address, task }
    }

    /// The URL of `path` on this server.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves one request per connection.
async fn serve<F, R>(stream: TcpStream, reply: &F) -> std::io::Result<()>
where
    F: Fn(Received) -> R,
    R: Future<Output = Reply>,
{
    let mut stream = BufReader::new(stream);
    let Some(received) = read(&mut stream).await? else { return Ok(()) };
    let bytes = match reply(received).await {
        Reply::Dropped => return Ok(()),
        Reply::Silence => return std::future::pending().await,
        Reply::Raw(bytes) => bytes,
        Reply::Whole(status, headers, body) => {
            let headers: String =
                headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} -\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
            );
            [head.into_bytes(), body].concat()
        }
    };
    stream.write_all(&bytes).await?;
    stream.shutdown().await
}

async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Received>> {
    let Some(lines) = read_lines(stream).await? else { return Ok(None) };
    let mut first = lines.first().map(String::as_str).unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let headers = fields(lines.get(1..).unwrap_or_default());
    let (mut body, mut trailers) = (Vec::new(), BTreeMap::new());
    match headers.get("content-length") {
        Some(length) => {
            body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).await?;
        }
        None if headers.contains_key("transfer-encoding") => {
            body = read_chunks(stream).await?;
            trailers = fields(&read_lines(stream).await?.unwrap_or_default());
        }
        None => {}
    }
    Ok(Some(Received { method: method.into(), path: path.into(), headers, body, trailers }))
}

/// Reads the lines before the next empty line. `None` if the client disconnects.
async fn read_lines(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => return Ok(Some(lines)),
            line => lines.push(line.to_owned()),
        }
    }
}

/// The headers or trailers in these lines.
fn fields(lines: &[String]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::<String, String>::new();
    for (name, value) in lines.iter().filter_map(|line| line.split_once(": ")) {
        let values = fields.entry(name.to_lowercase()).or_default();
        *values = if values.is_empty() { value.into() } else { format!("{values}, {value}") };
    }
    fields
}

/// Reads the chunks of a body, but not the trailers after it.
async fn read_chunks(stream: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
        if length == 0 {
            return Ok(body);
        }
        let mut chunk = vec![0; length + 2];
        stream.read_exact(&mut chunk).await?;
        body.extend_from_slice(&chunk[..chunk.len() - 2]);
    }
}
