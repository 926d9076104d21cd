//! Makes connections, and keeps one per node.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Pipeline, ProtocolVersion, RedisConnectionInfo, Value, aio::MultiplexedConnection,
    cmd,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::{
    address::{Address, Credentials},
    fault::{Class, Fault},
    last_word::LastWord,
};
use lambda_idempotency_core::store::{
    BoxFuture,
    toolkit::{IDLE, LastAnswer, TOO_IDLE, within},
};

/// The timeout for the ping of an idle connection. A frozen sandbox's connections die unnoticed, and a request on a dead
/// one costs the timeout of an attempt, which is four times as long.
const PING_TIMEOUT: Duration = Duration::from_millis(250);

/// Returns a password that may change.
pub(super) type Password = Arc<dyn Fn() -> BoxFuture<'static, Result<String, PasswordError>> + Send + Sync>;
/// The error of the code that returns the password.
pub(super) type PasswordError = Box<dyn std::error::Error + Send + Sync>;

/// Makes connections.
pub(super) struct Connector {
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) credentials: Option<Credentials>,
    /// Returns the password of a new connection, in place of the one in `credentials`.
    pub(super) password: Option<Password>,
    pub(super) database: u32,
    /// The limit for connecting, and for one answer on the connection.
    pub(super) timeout: Duration,
}

impl Connector {
    async fn connect(&self, at: &Address) -> Result<Live, Fault> {
        let made = within(self.timeout, self.connect_now(at)).await;
        made.unwrap_or_else(|| Err(Fault::new(Class::NotReached, at)))
    }

    async fn connect_now(&self, at: &Address) -> Result<Live, Fault> {
        let failed = |error: io::Error| Fault::of_connecting(&error, at);
        let stream = TcpStream::connect((&*at.host, at.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let live = match &self.tls {
            None => Live::over(stream, at).await?,
            Some(config) => {
                let name = ServerName::try_from(at.host.to_string());
                let name =
                    name.map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
                let connector = TlsConnector::from(Arc::clone(config));
                Live::over(connector.connect(name, stream).await.map_err(failed)?, at).await?
            }
        };
        self.introduce(&live, at).await?;
        Ok(live)
    }

    /// Authenticates and selects the database. If the server refuses a password that the user's code returned, asks for it
    /// again: it may have changed since it was returned.
    async fn introduce(&self, live: &Live, at: &Address) -> Result<(), Fault> {
        match self.introduce_once(live, at).await {
            Err(fault) if fault.class == Class::NotAuthenticated && self.password.is_some() => {
                self.introduce_once(live, at).await
            }
            introduced => introduced,
        }
    }

    async fn introduce_once(&self, live: &Live, at: &Address) -> Result<(), Fault> {
        let asked = match &self.password {
            Some(password) => Some(password().await.map_err(|error| Fault::no_password(&error, at))?),
            None => None,
        };
        let mut commands = Pipeline::new();
        if let Some(Credentials { user, password }) = &self.credentials {
            commands.cmd("AUTH").arg(user.as_deref()).arg(asked.as_ref().unwrap_or(password));
        }
        if self.database != 0 {
            commands.cmd("SELECT").arg(self.database);
        }
        match commands.len() {
            0 => Ok(()),
            count => match live.send_all(&commands, count, at).await {
                Ok(_) => Ok(()),
                // Only AUTH and SELECT were sent, so nothing was written.
                Err(fault) if fault.class == Class::Lost => Err(Fault::new(Class::NotReached, at)),
                Err(fault) => Err(fault),
            },
        }
    }
}

/// A connection with the task that drives it. Clones share both. The task ends with the last clone.
#[derive(Clone)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    driver: Arc<Driver>,
}

struct Driver {
    task: JoinHandle<()>,
    has_ended: Arc<AtomicBool>,
    /// When the last request was answered; `None` if a request was dropped before its answer.
    answered: Mutex<Option<LastAnswer>>,
    /// Whether a claim over this connection has checked that the server and its user fit.
    is_checked: AtomicBool,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request that waits for its answer. If the request is dropped, the connection may be dead, so the next request
/// pings the connection first. A late answer never reaches another request, because the driver matches answers to
/// requests by order.
struct Pending<'d> {
    driver: &'d Driver,
    is_answered: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        *locked(&self.driver.answered) = self.is_answered.then(LastAnswer::now);
    }
}

/// Sets the flag when the driver ends for any reason, including the end of its runtime.
struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Live {
    async fn over<S>(stream: S, at: &Address) -> Result<Self, Fault>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // `info` has no credentials, so this call sends nothing yet. The caller applies the timeouts.
        let info =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let made = MultiplexedConnection::new_with_config(&info, LastWord::of(stream), config).await;
        let (connection, driver) = made.map_err(|error| Fault::of_request(error, at))?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let ending = Ending(Arc::clone(&has_ended));
        let task = tokio::spawn(async move {
            let _ending = ending;
            driver.await;
        });
        let answered = Mutex::new(Some(LastAnswer::now()));
        Ok(Self {
            connection,
            driver: Arc::new(Driver { task, has_ended, answered, is_checked: AtomicBool::new(false) }),
        })
    }

    fn has_ended(&self) -> bool {
        self.driver.has_ended.load(Ordering::Acquire)
    }

    fn is_idle(&self) -> bool {
        locked(&self.driver.answered).is_none_or(|answer| answer.idle_for() > IDLE)
    }

    fn is_too_idle(&self) -> bool {
        locked(&self.driver.answered).is_some_and(|answer| answer.idle_for() > TOO_IDLE)
    }

    /// Whether the server hasn't answered on this connection for `time`.
    pub(super) fn is_silent_for(&self, time: Duration) -> bool {
        locked(&self.driver.answered).is_none_or(|answer| answer.idle_for() >= time)
    }

    /// Whether a claim over this connection has checked that the server and its user fit.
    pub(super) fn is_checked(&self) -> bool {
        self.driver.is_checked.load(Ordering::Relaxed)
    }

    pub(super) fn set_checked(&self) {
        self.driver.is_checked.store(true, Ordering::Relaxed);
    }

    async fn is_there(&self, at: &Address) -> bool {
        let asked = within(PING_TIMEOUT, self.send(&cmd("PING"), at)).await;
        // An error reply also shows that the connection is alive.
        asked.is_some_and(|answer| answer.is_ok() || answer.is_err_and(|fault| fault.class != Class::Lost))
    }

    /// Sends one command and waits for its answer.
    pub(super) async fn send(&self, command: &redis::Cmd, at: &Address) -> Result<Value, Fault> {
        let answer = self.answer(self.connection.clone().send_packed_command(command)).await;
        answered(answer.map_err(|error| Fault::of_request(error, at))?, at)
    }

    /// Sends `count` commands as one pipeline, and returns the last one's answer, or the first error.
    pub(super) async fn send_all(
        &self,
        commands: &Pipeline,
        count: usize,
        at: &Address,
    ) -> Result<Value, Fault> {
        let answers = self.answer(self.connection.clone().send_packed_commands(commands, 0, count)).await;
        let mut last = Value::Nil;
        for answer in answers.map_err(|error| Fault::of_request(error, at))? {
            last = answered(answer, at)?;
        }
        Ok(last)
    }

    async fn answer<T>(&self, request: impl Future<Output = T>) -> T {
        let mut pending = Pending { driver: &self.driver, is_answered: false };
        let answer = request.await;
        pending.is_answered = true;
        answer
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }
}

fn answered(answer: Value, at: &Address) -> Result<Value, Fault> {
    match answer {
        Value::ServerError(error) => Err(Fault::of_answer(&error, at)),
        answer => Ok(answer),
    }
}

/// One server, with its open connection, if it has one.
pub(super) struct Node {
    pub(super) address: Address,
    live: Mutex<Option<Live>>,
    /// Held while connecting, so that all waiters share one connection.
    gate: tokio::sync::Mutex<()>,
}

impl Node {
    pub(super) fn new(address: Address) -> Self {
        Self { address, live: Mutex::new(None), gate: tokio::sync::Mutex::new(()) }
    }

    /// Returns an open connection to this node. Pings an idle connection first, and replaces one that's dead or was idle
    /// for too long.
    pub(super) async fn connection(&self, connector: &Connector) -> Result<Live, Fault> {
        if let Some(live) = self.live().filter(|live| !live.is_idle()) {
            return Ok(live);
        }
        let _gate = self.gate.lock().await;
        if let Some(live) = self.live() {
            if !live.is_idle() {
                return Ok(live);
            }
            // Discard before the ping: if the ping is dropped, the connection isn't used again.
            self.discard(&live);
            if !live.is_too_idle() && live.is_there(&self.address).await {
                *locked(&self.live) = Some(live.clone());
                return Ok(live);
            }
        }
        // Boxed, because few requests reconnect: the other requests' futures shouldn't reserve space for this future.
        let live = Box::pin(connector.connect(&self.address)).await?;
        *locked(&self.live) = Some(live.clone());
        Ok(live)
    }

    /// Stops using the connection if the server hasn't answered on it for `time`.
    pub(super) fn discard_if_silent_for(&self, time: Duration) {
        let mut kept = locked(&self.live);
        if kept.as_ref().is_some_and(|kept| kept.is_silent_for(time)) {
            *kept = None;
        }
    }

    fn live(&self) -> Option<Live> {
        locked(&self.live).clone().filter(|live| !live.has_ended())
    }

    /// Stops using this connection.
    pub(super) fn discard(&self, live: &Live) {
        let mut kept = locked(&self.live);
        if kept.as_ref().is_some_and(|kept| kept.is_same(live)) {
            *kept = None;
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.address)
    }
}

/// Takes the lock. No code panics while it changes the data, so the data is intact even if the lock is poisoned.
pub(super) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
