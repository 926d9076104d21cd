//! A failing connection: a proxy between the store and a server. The proxy handles each command as the test says.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// How the proxy handles one command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// The command reaches the server, and the answer reaches the client.
    Forward,
    /// The command reaches the server. The answer is lost, and the connection hangs.
    ForwardThenHang,
    /// The command reaches the server. The answer is lost, and the connection closes.
    ForwardThenClose,
    /// The command is lost, and the connection hangs.
    Hang,
    /// The command is lost, and the connection closes.
    Close,
    /// The command is lost, and the connection is reset.
    Reset,
    /// The command is lost, and the client gets this answer.
    Answer(&'static str),
}

/// The proxy. It ends with the test's runtime.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    commands: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

impl Wire {
    /// Starts a wire that handles each command as the next entry of `script` says. The last entry applies to all later
    /// commands too.
    pub(crate) async fn scripted(upstream: Option<SocketAddr>, script: &[Reply]) -> Self {
        let script = script.to_vec();
        Self::new(upstream, move |nth, _| script[nth.min(script.len() - 1)]).await
    }

    /// Starts a wire. `decide` chooses each reply by the command's name and number. The first command is number 0.
    pub(crate) async fn new(
        upstream: Option<SocketAddr>,
        decide: impl Fn(usize, &str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (commands, connections) = (Arc::default(), Arc::default());
        let wire = Self { address, commands: Arc::clone(&commands), connections: Arc::clone(&connections) };
        let decide = Arc::new(decide);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (commands, decide) = (Arc::clone(&commands), Arc::clone(&decide));
                let task = tokio::spawn(async move {
                    let _ = serve(stream, upstream, &commands, &*decide).await;
                });
                let connections: &Mutex<Vec<_>> = &connections;
                connections.lock().unwrap().push(task.abort_handle());
            }
        });
        wire
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Returns the names of the commands that arrived, in order.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.commands.lock().unwrap().clone()
    }

    /// Returns the number of connections since the last cut.
    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Closes every open connection.
    pub(crate) fn cut(&self) {
        for task in self.connections.lock().unwrap().drain(..) {
            task.abort();
        }
    }
}

async fn serve(
    stream: TcpStream,
    upstream: Option<SocketAddr>,
    commands: &Mutex<Vec<String>>,
    decide: &(dyn Fn(usize, &str) -> Reply + Send + Sync),
) -> io::Result<()> {
    let mut client = BufReader::new(stream);
    let mut server = match upstream {
        Some(upstream) => Some(BufReader::new(TcpStream::connect(upstream).await?)),
        None => None,
    };
    while let Some((command, name)) = read_message(&mut client).await? {
        let nth = {
            let mut commands = commands.lock().unwrap();
            commands.push(name.clone());
            commands.len() - 1
        };
        match decide(nth, &name) {
            Reply::Forward => {
                let answer = forward(&mut server, &command).await?;
                client.get_mut().write_all(&answer).await?;
            }
            Reply::ForwardThenHang => {
                forward(&mut server, &command).await?;
                std::future::pending::<()>().await;
            }
            Reply::ForwardThenClose => {
                forward(&mut server, &command).await?;
                return Ok(());
            }
            Reply::Hang => std::future::pending::<()>().await,
            Reply::Close => return Ok(()),
            Reply::Reset => return client.get_ref().set_zero_linger(),
            Reply::Answer(answer) => client.get_mut().write_all(answer.as_bytes()).await?,
        }
    }
    Ok(())
}

async fn forward(server: &mut Option<BufReader<TcpStream>>, command: &[u8]) -> io::Result<Vec<u8>> {
    let server = server.as_mut().expect("forwarding needs a server");
    server.get_mut().write_all(command).await?;
    Ok(read_message(server).await?.map(|(answer, _)| answer).unwrap_or_default())
}

/// Reads one RESP message, and returns it with its first bulk string. In a command, that's the command's name.
async fn read_message(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<(Vec<u8>, String)>> {
    let (mut message, mut first, mut open) = (Vec::new(), None, 1);
    while open > 0 {
        let start = message.len();
        if stream.read_until(b'\n', &mut message).await? == 0 {
            return Ok(None);
        }
        open -= 1;
        let line = String::from_utf8_lossy(&message[start..]).trim_end().to_owned();
        let number = || line[1..].parse::<i64>().unwrap_or(0);
        match line.as_bytes().first() {
            Some(b'*') => open += number().max(0),
            Some(b'$') if number() >= 0 => {
                let start = message.len();
                message.resize(start + number() as usize + 2, 0);
                stream.read_exact(&mut message[start..]).await?;
                let text = &message[start..message.len() - 2];
                first.get_or_insert_with(|| String::from_utf8_lossy(text).into_owned());
            }
            _ => {}
        }
    }
    Ok(Some((message, first.unwrap_or_default())))
}
