//! The connection below AMQP: TCP, and TLS for `amqps`.

#[cfg_attr(not(feature = "tls"), path = "transport/no_tls.rs")]
mod tls;

use std::{fmt, io};

use lapin::uri::AMQPUri;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

pub(crate) use tls::Tls;

/// A TCP connection, or TLS on one.
pub(crate) trait Transport: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Transport for T {}

pub(crate) async fn connect(uri: &AMQPUri, tls: &Tls) -> io::Result<Box<dyn Transport>> {
    let host = uri.authority.host.as_str();
    let stream = TcpStream::connect((host, uri.authority.port)).await?;
    stream.set_nodelay(true)?;
    tls.open(host, stream).await
}
