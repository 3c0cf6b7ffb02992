//! Connections over TCP and TLS.

use std::{io, sync::Arc};

use garenne_common::{client_tls::client_config, config::Certificates};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::endpoint::Endpoint;

/// A plain connection, or one over TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the broker. Certificates are read again each time.
pub(crate) async fn connect(endpoint: &Endpoint, files: &Certificates) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    stream.set_nodelay(true)?;
    if !endpoint.tls {
        return Ok(Box::new(stream));
    }
    let config = client_config(files).map_err(io::Error::other)?;
    let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}
