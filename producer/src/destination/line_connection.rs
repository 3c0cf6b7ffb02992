//! Connections of the TCP line protocol: connected, encrypted and authenticated.

use std::{io, sync::Arc, time::Duration};

use garenne_common::reloaded::Reloaded;
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    SendError,
    token::{Token, refused},
};

/// An authenticated connection.
pub(super) type LineConnection = BufReader<Box<dyn Stream>>;

/// A plain connection, or one over TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Time to connect, for the TLS handshake and the answer to the token together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens connections to one gateway.
pub(crate) struct LineConnector {
    /// Host and port.
    pub(super) address: String,
    pub(super) token: Option<Arc<Token>>,
    /// Read again when a certificate file has changed.
    tls: Option<(Reloaded<TlsConnector>, ServerName<'static>)>,
}

impl LineConnector {
    /// For a gateway at `address`, host and port.
    pub(super) fn new(
        address: &str,
        token: Option<Arc<Token>>,
        tls: Option<Reloaded<TlsConnector>>,
    ) -> Result<Self, String> {
        let host = match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => host,
            _ => return Err(format!("--to {address} is invalid, expected HOST:PORT")),
        };
        let tls = match tls {
            None => None,
            Some(tls) => {
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host);
                let name = name.map_err(|error| format!("--to {address} has no valid host: {error}"))?;
                Some((tls, name))
            }
        };
        Ok(Self { address: address.to_owned(), token, tls })
    }

    /// Connects and authenticates.
    pub(super) async fn connect(&self) -> Result<LineConnection, SendError> {
        let connected = timeout(TIMEOUT, async {
            let mut connection = self.open().await.map_err(|error| self.again(&error))?;
            if let Some(token) = &self.token {
                self.authenticate(&mut connection, token.read()?.expose_secret()).await?;
                token.accept();
            }
            Ok(connection)
        });
        connected.await.unwrap_or_else(|_| Err(self.again(&io::ErrorKind::TimedOut.into())))
    }

    async fn open(&self) -> io::Result<LineConnection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some((tls, name)) => {
                tls.refresh();
                let connecting = tls.get().connect(name.clone(), stream);
                Box::new(connecting.await?)
            }
        };
        Ok(BufReader::new(stream))
    }

    /// Waits for the answer before any reading is sent: a gateway that refuses the token closes the connection, which
    /// would discard an answer that is not read yet.
    async fn authenticate(&self, connection: &mut LineConnection, token: &str) -> Result<(), SendError> {
        let mut answer = String::new();
        let exchange = async {
            connection.write_all(format!("auth {token}\n").as_bytes()).await?;
            connection.flush().await?;
            connection.read_line(&mut answer).await
        };
        match exchange.await {
            Ok(0) => Err(self.again(&io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.again(&error)),
            Ok(_) => match answer.trim_end().strip_prefix("error ") {
                None => Ok(()),
                Some(refusal) => {
                    let fatal = || SendError::fatal(format!("{}: {refusal}", self.address));
                    Err(line_refusal(refusal, self.token.as_deref()).unwrap_or_else(fatal))
                }
            },
        }
    }

    /// A lost connection, which may be opened again.
    pub(super) fn again(&self, error: &io::Error) -> SendError {
        SendError::Retry { reason: format!("{}: {error}", self.address), retry_after: None }
    }
}

/// The code of a refused token.
pub(super) const UNAUTHORIZED: &str = "unauthorized";

/// The meaning of a refusal that no reading caused, by its code. `None` if the reading of the line did.
pub(super) fn line_refusal(refusal: &str, token: Option<&Token>) -> Option<SendError> {
    let (code, _) = refusal.split_once(' ').unwrap_or((refusal, ""));
    match code {
        "busy" | "unavailable" | "rate-limited" | "timeout" => {
            Some(SendError::Retry { reason: refusal.to_owned(), retry_after: None })
        }
        UNAUTHORIZED => Some(refused(token, refusal.to_owned())),
        "tls-required" => Some(SendError::fatal(refusal.to_owned())),
        _ => None,
    }
}
