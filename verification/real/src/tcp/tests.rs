//! Tests that each fault does what it says.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const REQUEST: &[u8] = b"*1\r\n$3\r\nADD\r\n";
const ANSWER: &[u8] = b"+DONE\r\n";

/// A server that counts the complete requests that arrive, and answers them.
async fn server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let mut request = vec![0; REQUEST.len()];
                while stream.read_exact(&mut request).await.is_ok() {
                    counted.fetch_add(1, Ordering::SeqCst);
                    stream.write_all(ANSWER).await.unwrap();
                }
            });
        }
    });
    (address, count)
}

/// The bytes that a client sees within 300 ms, and how they end.
async fn seen(stream: &mut TcpStream) -> (Vec<u8>, &'static str) {
    let mut bytes = Vec::new();
    let end = loop {
        let mut more = [0; 64];
        match tokio::time::timeout(Duration::from_millis(300), stream.read(&mut more)).await {
            Err(_) => break "silence",
            Ok(Ok(0)) => break "end",
            Ok(Ok(read)) => bytes.extend(&more[..read]),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => break "reset",
            Ok(Err(error)) => panic!("{error}"),
        }
    };
    (bytes, end)
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_requests_end_as_specified() {
    let half = &ANSWER[..ANSWER.len() / 2];
    // When the client stops reading: whether the server applied the request, and what the client has seen.
    for (fault, is_served, bytes, end) in [
        (TcpFault::CloseBefore, false, &b""[..], "end"),
        (TcpFault::CloseAfter, true, b"", "end"),
        (TcpFault::ResetBefore, false, b"", "reset"),
        (TcpFault::ResetAfter, true, b"", "reset"),
        (TcpFault::SilenceBefore, false, b"", "silence"),
        (TcpFault::SilenceAfter, true, b"", "silence"),
        (TcpFault::AcceptAndWait, false, b"", "silence"),
        (TcpFault::BlackHole, false, b"", "silence"),
        (TcpFault::Slow, true, b"", "silence"),
        (TcpFault::HalfAndSilence, true, half, "silence"),
        (TcpFault::HalfAndClose, true, half, "end"),
        (TcpFault::HalfRequest, false, b"", "end"),
        (TcpFault::Latency, true, ANSWER, "silence"),
        (TcpFault::LateSoon, false, b"", "silence"),
        (TcpFault::LateAnswered, false, b"", "silence"),
    ] {
        let (address, count) = server().await;
        let proxy = TcpProxy::before(address, Protocol::Redis).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; ANSWER.len()];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, ANSWER);
        proxy.break_for(None, fault);
        client.write_all(REQUEST).await.unwrap();
        assert_eq!(seen(&mut client).await, (bytes.to_vec(), end), "{fault}");
        assert_eq!(count.load(Ordering::SeqCst), 1 + usize::from(is_served), "{fault}");
        assert!(proxy.struck() > 0, "{fault}");
        // The held request arrives now.
        drop(client);
        proxy.close().await;
        let is_held = matches!(fault, TcpFault::LateSoon | TcpFault::LateAnswered);
        assert_eq!(count.load(Ordering::SeqCst), 1 + usize::from(is_served || is_held), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_break_until_time_is_up() {
    for fault in [
        TcpFault::Refuse,
        TcpFault::AcceptAndClose,
        TcpFault::AcceptAndWait,
        TcpFault::BlackHole,
        TcpFault::CutAndBlackHole,
    ] {
        let (address, count) = server().await;
        let proxy = TcpProxy::before(address, Protocol::Redis).await.unwrap();
        let mut before = TcpStream::connect(proxy.address()).await.unwrap();
        before.write_all(REQUEST).await.unwrap();
        assert_eq!(seen(&mut before).await, (ANSWER.to_vec(), "silence"));
        proxy.break_for(Some(Duration::from_millis(800)), fault);
        let (_, end) = seen(&mut before).await;
        assert_eq!(end, if fault.scope().cuts() { "end" } else { "silence" }, "{fault}");
        let connecting = TcpStream::connect(proxy.address());
        match (fault, tokio::time::timeout(Duration::from_millis(200), connecting).await) {
            (TcpFault::Refuse, Ok(Err(error))) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            }
            (TcpFault::BlackHole | TcpFault::CutAndBlackHole, Err(_)) => {}
            (TcpFault::AcceptAndClose, Ok(Ok(mut stream))) => {
                assert_eq!(seen(&mut stream).await, (vec![], "end"));
            }
            (TcpFault::AcceptAndWait, Ok(Ok(mut stream))) => {
                stream.write_all(REQUEST).await.unwrap();
                assert_eq!(seen(&mut stream).await, (vec![], "silence"));
            }
            (fault, other) => panic!("{fault}: {other:?}"),
        }
        assert!(proxy.struck() > 0, "{fault}");
        clock::pause(Duration::from_millis(1_000)).await;
        let mut after = TcpStream::connect(proxy.address()).await.unwrap();
        after.write_all(REQUEST).await.unwrap();
        assert_eq!(seen(&mut after).await, (ANSWER.to_vec(), "silence"), "{fault}");
        assert_eq!(count.load(Ordering::SeqCst), 2, "{fault}");
    }
}
