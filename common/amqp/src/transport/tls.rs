//! TLS on a connection, if the URI begins with `amqps`.

use std::{io, sync::Arc};

use garenne_common::{certificates::Certificates, client_tls::client_config};
use lapin::uri::{AMQPScheme, AMQPUri};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::Transport;
use crate::error::BrokerError;

/// Settings of TLS; empty with `amqp`.
pub(crate) struct Tls(Option<TlsConnector>);

impl Tls {
    /// Reads the certificate files if the URI begins with `amqps`.
    pub(crate) fn read(uri: &AMQPUri, files: &Certificates) -> Result<Self, BrokerError> {
        if uri.scheme != AMQPScheme::AMQPS {
            return Ok(Self(None));
        }
        let config = client_config(files).map_err(|error| BrokerError::Certificate(error.to_string()))?;
        Ok(Self(Some(Arc::new(config).into())))
    }

    pub(super) async fn open(&self, host: &str, stream: TcpStream) -> io::Result<Box<dyn Transport>> {
        let Some(connector) = &self.0 else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }
}
