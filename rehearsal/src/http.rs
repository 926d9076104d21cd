//! The part of HTTP/1.1 that the rehearsal needs, on loopback: serves and sends whole requests, and cuts connections.

use std::{future::Future, io, net::SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, Uri, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// The error of a handler that cuts the connection without a response.
#[derive(Debug)]
pub struct HangUp;

impl std::fmt::Display for HangUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection was cut on purpose")
    }
}

impl std::error::Error for HangUp {}

/// A server on a free loopback port. Dropping it closes the port and cuts its connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves each request by one call of `handle`, after the whole body has arrived. If the client disconnects before
    /// the response, the call's future is dropped.
    ///
    /// # Errors
    ///
    /// If no port is free.
    pub async fn start<H, F>(handle: H) -> io::Result<Self>
    where
        H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response<Bytes>, HangUp>> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, task: tokio::spawn(accept(listener, handle)) })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept<H, F>(listener: TcpListener, handle: H)
where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<Bytes>, HangUp>> + Send + 'static,
{
    // Dropping this task drops this set and its connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        connections.spawn(converse(stream, handle.clone()));
    }
}

async fn converse<H, F>(stream: TcpStream, handle: H)
where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<Bytes>, HangUp>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let handle = handle.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(|_| HangUp)?.to_bytes();
            handle(Request::from_parts(parts, body)).await.map(|response| response.map(Full::new))
        }
    });
    // An error means that a client disconnected or that the rehearsal cut the connection. Both are expected.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Sends one request on its own connection, and reads the whole response.
///
/// # Errors
///
/// If there's no connection or no whole response.
pub async fn send(to: &Uri, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
    let host = to.host().ok_or("the address has no host")?.trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, to.port_u16().unwrap_or(80)))
        .await
        .map_err(|error| format!("no connection to {to}: {error}"))?;
    exchange(stream, request).await.map_err(|error| format!("no answer from {to}: {error}"))
}

async fn exchange(stream: TcpStream, request: Request<Bytes>) -> hyper::Result<Response<Bytes>> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (parts, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
}

/// A response with only a status and a JSON body.
pub fn json(status: StatusCode, body: &serde_json::Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    response
}
