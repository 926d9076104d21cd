//! TLS with rustls and the crypto provider that the AWS SDK uses too.

use std::{error::Error as StdError, fmt, io, pin::Pin, sync::Arc, task};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream as RustlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use super::binding::server_end_point;
use lambda_idempotency_core::{
    Error, ErrorKind,
    store::{BoxFuture, toolkit::start_random},
};

/// Makes TLS sessions in which the server's certificate and name are always verified.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts the certificates in `pem`, or else those of the operating system.
    pub(super) fn new(pem: Option<&[u8]>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        let (found, unreadable) = match pem {
            Some(pem) => {
                let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect();
                let count = all.len();
                let read: Vec<_> = all.into_iter().flatten().collect();
                let unreadable = count - read.len();
                (read, unreadable)
            }
            // Unreadable certificates are skipped. If none can be read, no server is trusted, and the handshake fails.
            None => (rustls_native_certs::load_native_certs().certs, 0),
        };
        let (added, ignored) = roots.add_parsable_certificates(found);
        if pem.is_some() && (added == 0 || ignored > 0 || unreadable > 0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the root certificates can't be read; give them in PEM format",
            ));
        }
        let provider = aws_lc_rs::default_provider();
        let random = provider.secure_random;
        drop(start_random(move || _ = random.fill(&mut [0; 1])));
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| Error::new(ErrorKind::Invalid, "this build of rustls supports no TLS version"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connector;
    type Error = Failure;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connector, Failure> {
        // The client also calls this for a Unix socket, which has no host name and never starts a handshake.
        Ok(Connector { config: Arc::clone(&self.0), name: ServerName::try_from(host.to_owned()).ok() })
    }
}

/// Makes one TLS session.
pub(super) struct Connector {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl TlsConnect<Socket> for Connector {
    type Stream = Stream;
    type Error = Failure;
    type Future = BoxFuture<'static, Result<Stream, Failure>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = self.name.ok_or_else(|| {
                Failure(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the host's name isn't a valid TLS server name",
                ))
            })?;
            let stream = TlsConnector::from(self.config).connect(name, socket).await.map_err(Failure)?;
            Ok(Stream(Box::new(stream)))
        })
    }
}

/// A handshake that failed.
#[derive(Debug)]
pub(super) struct Failure(io::Error);

impl Failure {
    /// Whether the handshake failed because of TLS, such as a rejected certificate, and not because of the network.
    pub(super) fn is_refusal(&self) -> bool {
        self.0.kind() == io::ErrorKind::InvalidData
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Failure {}

/// A TLS session.
pub(super) struct Stream(Box<RustlsStream<Socket>>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let hash = certificate.and_then(|certificate| server_end_point(certificate));
        hash.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &[u8],
    ) -> task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_root_certificates_are_refused() {
        for pem in [&b""[..], b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            assert_eq!(Tls::new(Some(pem)).err().map(|error| error.kind()), Some(ErrorKind::Invalid));
        }
        assert!(Tls::new(None).is_ok());
    }

    #[test]
    fn only_tls_failures_count_as_refusals() {
        let failure = |kind| Failure(io::Error::new(kind, "why"));
        assert!(failure(io::ErrorKind::InvalidData).is_refusal());
        assert!(!failure(io::ErrorKind::UnexpectedEof).is_refusal());
        assert_eq!(failure(io::ErrorKind::InvalidData).to_string(), "why");
    }
}
